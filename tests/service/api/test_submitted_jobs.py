"""Check survey jobs over HTTP with a fake Ray cluster: one job for each spec, and one attempt at a time."""

import json
import re
import subprocess
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from support.each import each
from support.serving import SPEC, assert_problem, bearer, captured_run, client_of
from support.submitted_jobs import ID, URL, another, show, submit

import theodolite
from theodolite.api.credentials import create_credential
from theodolite.errors import StoreError
from theodolite.submission.job_store import End, end_attempt, record_run


@pytest.fixture
def store(tmp_path):
    return str(tmp_path)


@pytest.fixture
def client(store, ray):
    return client_of(store, jobs_url=URL)


def test_the_id_of_a_job_is_its_spec_digest_and_location_names_its_url(client, ray):
    answer = submit(client)
    assert answer.headers["location"] == f"/v1/jobs/{ID}"
    job = answer.json()
    assert (job["id"], job["state"], job["attempt"], job["model"]) == (ID, "queued", 1, "smollm2-135m-instruct")
    assert (job["run_id"], job["progress"], job["reason"], job["yours"]) == (None, {}, None, True)
    age = datetime.now(UTC) - datetime.fromisoformat(job["submitted"])
    assert timedelta(seconds=-1) < age < timedelta(minutes=1)
    assert client.get(answer.headers["location"]).json() == job
    assert client.get("/v1/jobs").json() == {"items": [job], "next": None}
    assert [name.rsplit("-", 1)[0] for name in ray.submitted] == [f"theodolite-{ID[:16]}-1"]


def test_a_job_has_no_progress_before_its_run_exists(client, store):
    submit(client)
    record_run(store, ID, "tiny-0")
    assert (show(client)["run_id"], show(client)["progress"]) == ("tiny-0", {})
    assert client.get("/v1/jobs").json()["items"] == [show(client)]


def test_no_text_of_the_user_reaches_the_shell(client, ray):
    submit(client, {**SPEC, "name": "; rm -rf / $(id) `id`"})
    (job,) = ray.jobs.values()
    assert re.fullmatch(r"python -m theodolite_jobs\.job [0-9a-f]{64} 1", job["entrypoint"])
    assert set(job) - {"status", "message", "type"} == {"entrypoint", "submission_id", "runtime_env"}
    assert "rm -rf" not in json.dumps(job)


def test_a_job_inherits_the_store_and_the_limits_but_no_secret(store, ray):
    settings = {"job_tokens": 5000, "remote_code_allowed": ["org/a"], "ray_token": "RAY-SECRET", "hosts": ["x.example"]}
    submit(client_of(store, jobs_url=URL, **settings))
    (job,) = ray.jobs.values()
    assert job["runtime_env"] == {
        "env_vars": {
            "THEODOLITE_STORE": store,
            "THEODOLITE_SUBMITTED_BY": theodolite.__version__,
            "THEODOLITE_JOB_TOKENS": "5000",
            "THEODOLITE_REMOTE_CODE_ALLOWED": '["org/a"]',
            "PYTHONUNBUFFERED": "1",
        }
    }


def test_a_job_reserves_the_memory_of_its_driver_on_the_head(store, ray):
    submit(client_of(store, jobs_url=URL, driver_memory=2**32))
    (job,) = ray.jobs.values()
    assert job["entrypoint_memory"] == 2**32
    assert job["entrypoint_resources"] == {"node:__internal_head__": 0.001}  # else Ray may choose another node
    assert "THEODOLITE_DRIVER_MEMORY" not in job["runtime_env"]["env_vars"]


def test_a_relative_store_reaches_the_job_as_an_absolute_path(tmp_path, monkeypatch, ray):
    monkeypatch.chdir(tmp_path)
    submit(client_of("here", jobs_url=URL))
    (job,) = ray.jobs.values()
    assert job["runtime_env"]["env_vars"]["THEODOLITE_STORE"] == str(tmp_path / "here")


@pytest.mark.parametrize("status", ["PENDING", "RUNNING", "SUCCEEDED"])
def test_the_same_spec_is_the_same_job_and_is_submitted_once(client, ray, status):
    submit(client, {**SPEC, "name": "first"})
    ray.set_state(ray.submitted[0], status)
    turned = dict(reversed(list(SPEC.items()))) | {"prompts": dict(reversed(list(SPEC["prompts"].items())))}
    for spec in (SPEC, turned, {**SPEC, "name": "another label"}, {**SPEC, "gram": {"samples": 2048}}):
        answer = submit(client, spec).json()
        assert (answer["id"], answer["attempt"], answer["name"]) == (ID, 1, "first")
    assert len(ray.jobs) == 1
    assert submit(client, another(1)).json()["id"] != ID


@pytest.mark.parametrize(
    ("status", "state"),
    [
        ("PENDING", "queued"),
        ("RUNNING", "running"),
        ("SUCCEEDED", "succeeded"),
        ("FAILED", "failed"),
        ("STOPPED", "stopped"),
    ],
)
def test_states_of_the_cluster_map_to_states_of_the_job(client, ray, status, state):
    submit(client)
    ray.set_state(ray.submitted[0], status, "why")
    assert show(client)["state"] == state
    assert client.get("/v1/jobs").json()["items"][0]["state"] == state
    assert (show(client)["reason"] == "why") == (state == "failed")


@pytest.mark.parametrize("status", ["FAILED", "STOPPED"])
def test_a_failed_or_stopped_job_resumes_under_a_new_submission_id(client, ray, status):
    submit(client)
    ray.set_state(ray.submitted[0], status)
    assert submit(client).json()["attempt"] == 2
    assert submit(client).json()["attempt"] == 2  # the second attempt is queued
    names = [name.rsplit("-", 1)[0] for name in ray.submitted]
    assert names == [f"theodolite-{ID[:16]}-{number}" for number in (1, 2)]
    assert show(client)["state"] == "queued"


def test_a_job_that_is_unknown_to_its_cluster_is_lost_and_resumes(client, ray):
    submit(client)
    ray.jobs.clear()  # a new cluster
    assert show(client)["state"] == "lost"
    assert "submit it again" in show(client)["reason"]
    assert submit(client).json()["attempt"] == 2
    assert show(client)["state"] == "queued"


def test_a_failure_that_the_cluster_reported_outlives_the_cluster(client, ray):
    submit(client)
    ray.set_state(ray.submitted[0], "FAILED")
    failed = show(client)
    assert failed["state"] == "failed"
    ray.jobs.clear()  # the cluster restarts
    assert show(client) == failed
    again = submit(client, failed["spec"]).json()
    assert (again["id"], again["attempt"], again["state"]) == (ID, 2, "queued")


def test_a_failed_job_is_shown_although_the_store_refuses_writes(client, ray, monkeypatch):
    def refuse(*_arguments):
        raise StoreError("read-only")

    submit(client)
    ray.set_state(ray.submitted[0], "FAILED")
    monkeypatch.setattr("theodolite.submission.job_store.end_attempt", refuse)
    assert show(client)["state"] == "failed"


def interpreter_of(job):
    """Return the interpreter that the shell of the cluster's head runs."""
    command = f"echo {job['entrypoint'].partition(' -m ')[0]}"
    return subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]"])
def test_a_job_on_this_machine_runs_in_the_interpreter_of_the_service(store, ray, monkeypatch, tmp_path, host):
    here = tmp_path / "my env" / "python"
    here.parent.mkdir()
    here.touch(mode=0o755)
    monkeypatch.setattr("sys.executable", str(here))
    submit(client_of(store, jobs_url=f"http://{host}:8265"))
    (job,) = ray.jobs.values()
    assert interpreter_of(job) == str(here)
    here.unlink()  # the address is the end of a tunnel, and the head lacks this interpreter
    assert interpreter_of(job) == "python"


def test_a_job_on_another_machine_runs_in_the_python_of_that_machine(store, ray):
    submit(client_of(store, jobs_url="http://head:8265"))
    (job,) = ray.jobs.values()
    assert interpreter_of(job) == "python"


def test_the_recorded_end_of_a_job_takes_precedence_over_the_cluster(client, ray, store):
    submit(client)
    end_attempt(store, ID, 1, End("failed", "prompts.harmful: there is no such column"))
    ray.jobs.clear()
    job = show(client)
    assert (job["state"], job["reason"]) == ("failed", "prompts.harmful: there is no such column")
    assert submit(client).json()["attempt"] == 2
    assert show(client)["reason"] is None
    end_attempt(store, ID, 2, End("succeeded"))
    assert show(client)["state"] == "succeeded"
    assert submit(client).json()["attempt"] == 2


def test_a_restarted_service_reads_all_jobs_from_the_store(client, ray, store):
    submit(client)
    ray.set_state(ray.submitted[0], "RUNNING")
    before = show(client)
    later = client_of(store, jobs_url=URL)
    assert show(later) == before
    assert submit(later).json() == before
    assert len(ray.jobs) == 1


def test_a_job_is_stopped_once_on_the_cluster_and_resumes_when_submitted_again(client, ray):
    submit(client)
    ray.set_state(ray.submitted[0], "RUNNING")
    for _ in range(2):
        answer = client.delete(f"/v1/jobs/{ID}")
        assert (answer.status_code, answer.json()["state"]) == (200, "stopped")
    assert [path for method, path in ray.requests if path.endswith("/stop")] == [f"/api/jobs/{ray.submitted[0]}/stop"]
    assert submit(client).json()["attempt"] == 2


def test_stopping_a_finished_job_changes_nothing(client, ray, store):
    submit(client)
    end_attempt(store, ID, 1, End("succeeded"))
    assert client.delete(f"/v1/jobs/{ID}").json()["state"] == "succeeded"
    assert not any(path.endswith("/stop") for _, path in ray.requests)


def test_logs_are_those_of_the_last_attempt(client, ray):
    assert_problem(client.get(f"/v1/jobs/{ID}/logs"), 404, "no job")
    submit(client)
    answer = client.get(f"/v1/jobs/{ID}/logs")
    assert (answer.status_code, answer.text) == (200, "capturing\n")
    ray.jobs.clear()
    assert_problem(client.get(f"/v1/jobs/{ID}/logs"), 404, "no logs")
    ray.failure = httpx.ConnectError("refused")
    assert_problem(client.get(f"/v1/jobs/{ID}/logs"), 503)


def test_a_job_has_its_run_id_and_the_progress_of_each_set(client, ray, store):
    submit(client)
    record_run(store, ID, "tiny-0")
    assert (show(client)["run_id"], show(client)["progress"]) == (
        "tiny-0",
        {},
    )  # the run does not exist
    run = captured_run(Path(store))
    whole = {"harmful": 10, "harmless": 9, "nouns": 6}
    assert show(client)["progress"] == {name: {"done": n, "total": n} for name, n in whole.items()}
    (Path(run.url) / "shards" / "harmful" / "00002.json").unlink()
    assert show(client)["progress"]["harmful"] == {"done": 8, "total": 10}
    assert client.get("/v1/jobs").json()["items"][0]["progress"]["harmful"]["done"] == 8


def test_the_number_of_unfinished_jobs_of_a_token_is_limited(store, ray):
    one, _ = create_credential(store, ["read", "submit"])
    other, _ = create_credential(store, ["read", "submit"])
    client = client_of(store, jobs_url=URL, jobs_per_token=2)
    first = submit(client, another(0), headers=bearer(one)).json()
    submit(client, another(1), headers=bearer(one))
    refused = client.post("/v1/jobs", json=another(2), headers=bearer(one))
    assert_problem(refused, 429, "2 jobs", "2 are allowed")
    assert int(refused.headers["retry-after"]) > 0
    assert len(ray.jobs) == 2
    submit(client, another(0), headers=bearer(one))  # the same spec adds no job
    submit(client, another(2), headers=bearer(other))
    ray.set_state(ray.submitted[0], "FAILED")
    submit(client, another(3), headers=bearer(one))
    assert_problem(client.post("/v1/jobs", json=another(0), headers=bearer(one)), 429)
    assert show_as(client, one, first["id"])["attempt"] == 1


def show_as(client, token, job_id):
    return client.get(f"/v1/jobs/{job_id}", headers=bearer(token)).json()


def test_concurrent_submissions_to_two_services_create_one_attempt(store, ray):
    clients = [client_of(store, jobs_url=URL) for _ in range(2)]
    with clients[0], clients[1]:  # each client has one event loop, like a service
        for client in clients:  # FastAPI prepares its routes at the first request, which is not thread-safe
            client.get("/v1/jobs")
            client.get("/openapi.json")
        start, answers = threading.Barrier(8), []

        def go(client):
            start.wait()
            answers.append(client.post("/v1/jobs", json=SPEC))

        threads = [threading.Thread(target=go, args=(clients[index % 2],)) for index in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {answer.status_code for answer in answers} == {202}
    assert {answer.json()["id"] for answer in answers} == {ID}
    assert [name.rsplit("-", 1)[0] for name in ray.submitted] == [f"theodolite-{ID[:16]}-1"]


def test_pages_contain_each_job_once(store, ray):
    client = client_of(store, jobs_url=URL, jobs_per_token=10)
    ids = {submit(client, another(number)).json()["id"] for number in range(5)}
    seen, cursor = [], None
    while True:
        page = client.get("/v1/jobs", params={"limit": 2, **({"cursor": cursor} if cursor else {})}).json()
        seen += [job["id"] for job in page["items"]]
        cursor = page["next"]
        if cursor is None:
            break
    assert len(seen) == 5
    assert set(seen) == ids


@each("job_id", ["x", "0" * 63, "0" * 65, "A" * 64, "0" * 63 + "g", "..%2f" + "0" * 64])
def test_an_id_that_is_not_a_digest_is_rejected(client, job_id):
    for path in (f"/v1/jobs/{job_id}", f"/v1/jobs/{job_id}/logs"):
        assert client.get(path).status_code in (404, 422)
    assert_problem(client.get("/v1/jobs/" + "0" * 64), 404, "no job 000000000000")


def test_the_id_of_a_job_is_not_a_run_id(client):
    submit(client)
    show(client)
    for path in (f"/v1/runs/{ID}", f"/v1/runs/{ID}/curves"):
        assert_problem(client.get(path), 404, "no run")


def test_other_jobs_are_listed_beside_a_job_with_a_damaged_run(client, store):
    submit(client)
    submit(client, another(1))
    run = captured_run(Path(store))
    record_run(store, ID, run.id)
    (Path(run.url) / "run.json").write_text("{")
    assert len(client.get("/v1/jobs").json()["items"]) == 2
    assert show(client)["run_id"] == run.id


@pytest.mark.parametrize("name", ["spec.json", "attempts/00001.json", "ends/00001.json", "run.json"])
@pytest.mark.parametrize("content", ["{", '{"x": 1}'])
def test_other_jobs_are_listed_beside_a_job_with_a_broken_file(store, ray, name, content):
    client = client_of(store, jobs_url=URL)
    submit(client)
    other = submit(client, another(1)).json()
    end_attempt(store, ID, 1, End("succeeded"))
    record_run(store, ID, "tiny-0")
    (Path(store) / "jobs" / ID / name).write_text(content)
    later = client_of(store, jobs_url=URL)
    answer = later.get("/v1/jobs")
    assert answer.status_code == 200
    assert other["id"] in [job["id"] for job in answer.json()["items"]]
