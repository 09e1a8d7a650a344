"""Estimate the cost of a survey on the cluster, over HTTP and from Python."""

import json
import re
import threading
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.serving import SPEC, assert_problem, bearer, client_of
from support.submitted_jobs import URL, another

import theodolite
from theodolite.api.credentials import create_credential
from theodolite.errors import ClusterError, SpecError
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.submission.estimates import RESULT
from theodolite.submission.ray_jobs import cluster_state
from theodolite_jobs import estimate_job
from theodolite_jobs.estimate import plan_survey

PATH = "/v1/spec/estimate"


@pytest.fixture
def client(tmp_path, ray):
    return client_of(tmp_path, jobs_url=URL)


def run_the_job(ray, capsys, monkeypatch, **variables: str) -> None:
    """Run the entry point of the cluster's only Ray job in this process, as the cluster would."""
    ((name, job),) = ray.jobs.items()
    pattern = r".* -m (\S+) ([0-9a-f]{64}\.json)( --example)?"
    module, upload, *options = re.fullmatch(pattern, job["entrypoint"]).groups("")
    assert module == "theodolite_jobs.estimate_job"
    with monkeypatch.context() as patched:
        patched.setattr("sys.argv", ["job", upload, *map(str.strip, options)])
        changed = {f"THEODOLITE_{name.upper()}": value for name, value in variables.items()}
        for variable, value in (job["runtime_env"]["env_vars"] | changed).items():
            patched.setenv(variable, value)
        estimate_job.main()
    ray.log = f'a warning\n{capsys.readouterr().out}{{"another": 1}}\n'
    ray.set_state(name, "SUCCEEDED")


def test_the_estimate_is_that_of_the_command(client, ray, capsys, monkeypatch, tmp_path):
    first = client.post(PATH, json=SPEC)
    assert (first.status_code, first.json(), first.headers["Retry-After"]) == (202, {"state": "running"}, "2")
    assert client.post(PATH, json=SPEC).status_code == 202
    assert len(ray.jobs) == 1
    run_the_job(ray, capsys, monkeypatch, gpus_per_replica="0")  # otherwise, the devices of the cluster decide
    found = client.post(PATH, json=SPEC)
    assert found.status_code == 200, found.text
    content = found.json()
    of_command = plan_survey(parse_spec(SPEC), Path(), Settings(store=str(tmp_path)), with_example=True)
    expected = json.loads(json.dumps(of_command))
    for one in (content, expected):  # measured on the spot, so two measurements differ
        for part in (*(one["parts_about"][name] for name in ("capture", "total")), one["on_request_about"]["effects"]):
            assert part["seconds"].pop("one CPU core") > 0
    assert content == expected
    assert content["example"]["set"] == "harmless"  # the other set is the built-in harmful one
    assert "".join(part["text"] for part in content["example"]["parts"]).startswith("<|im_start|>")
    assert content["sets"]["harmful"]["prompts"] == 8
    assert content["sets"]["harmful"]["tokens"] > 8 * 30  # with the chat template
    assert content["run_id"].startswith("smollm2-135m-instruct-")
    assert ray.jobs == {}  # so that a later request estimates it again
    assert client.post(PATH, json=SPEC).status_code == 202


def test_a_service_that_shows_no_prompts_has_no_example(ray, capsys, monkeypatch, tmp_path):
    client = client_of(tmp_path, jobs_url=URL, prompts_shown=False)
    client.post(PATH, json=SPEC)
    run_the_job(ray, capsys, monkeypatch, gpus_per_replica="0")
    assert "<|im_start|>" not in ray.log
    found = client.post(PATH, json=SPEC)
    assert found.status_code == 200, found.text
    assert "example" not in found.json()


def test_an_impossible_survey_is_a_problem_that_says_why(client, ray, capsys, monkeypatch):
    spec = {**SPEC, "analyses": ["effects"], "model": {"id": "all-minilm-l6-v2"}}
    assert client.post(PATH, json=spec).status_code == 202
    run_the_job(ray, capsys, monkeypatch)
    assert_problem(client.post(PATH, json=spec), 422, "effects")


@pytest.mark.parametrize(("status", "message"), [("FAILED", "exit code 1"), ("SUCCEEDED", "")])
def test_a_job_without_a_result_is_an_error_of_the_cluster(client, ray, status, message):
    client.post(PATH, json=SPEC)
    ray.set_state(next(iter(ray.jobs)), status, message)
    assert_problem(client.post(PATH, json=SPEC), 503, "could not estimate the survey", message)


def test_two_requests_at_once_start_one_job_and_read_it_once(client, ray, monkeypatch):
    client.post(PATH, json=SPEC)
    (name,) = ray.jobs
    with monkeypatch.context() as patched:  # both have looked before one of them has started the Ray job
        states = iter([None, *[cluster_state(client.app.state.settings, name)] * 2])
        patched.setattr("theodolite.submission.estimates.cluster_state", lambda *_: next(states))
        assert client.post(PATH, json=SPEC).status_code == 202
    assert list(ray.jobs) == [name]
    ray.set_state(name, "SUCCEEDED")
    with monkeypatch.context() as patched:  # the other has read the log and removed the Ray job
        patched.setattr("theodolite.submission.estimates.cluster_logs", lambda *_: None)
        assert client.post(PATH, json=SPEC).status_code == 202


def test_an_error_of_the_cluster_is_not_one_of_the_survey(client, ray, capsys, monkeypatch):
    client.post(PATH, json=SPEC)
    with monkeypatch.context() as patched:
        patched.setattr("theodolite.submission.ray_jobs.__version__", "0.0.1")
        run_the_job(ray, capsys, patched)
    assert_problem(client.post(PATH, json=SPEC), 503, "the cluster has Theodolite 0.0.1, but version")
    client.post(PATH, json=SPEC)
    run_the_job(ray, capsys, monkeypatch, store="/nonexistent/store")
    assert_problem(client.post(PATH, json=SPEC), 503, "has no such spec")


def test_an_estimate_ends_in_time_and_reserves_no_memory(client, ray, capsys, monkeypatch, tmp_path):
    client = client_of(tmp_path, jobs_url=URL, driver_memory=2**35)
    client.post(PATH, json=SPEC)
    assert "entrypoint_memory" not in next(iter(ray.jobs.values()))
    monkeypatch.setattr(estimate_job, "SECONDS", 1)
    monkeypatch.setattr(estimate_job, "plan_survey", lambda *_, **__: threading.Event().wait(60))
    run_the_job(ray, capsys, monkeypatch)
    assert_problem(client.post(PATH, json=SPEC), 503, "took longer than 1 seconds")


def test_a_refused_estimate_stores_nothing(client, ray, tmp_path, monkeypatch):
    monkeypatch.setattr("theodolite.api.specs._MAX_ESTIMATES", 0)
    spec = {**SPEC, "prompts": {"mine": {"source": "inline", "texts": ["One.", "Two."]}}, "contrasts": {}}
    assert_problem(client.post(PATH, json=spec), 429, "computes 0 estimates", "allowed: 0")
    assert not (tmp_path / "uploads").exists()


def test_prompts_are_in_no_request_to_the_cluster(client, ray, tmp_path):
    texts = {"source": "inline", "texts": ["A secret prompt.", "Another one."]}
    client.post(PATH, json={**SPEC, "prompts": {"mine": texts}, "contrasts": {}})
    assert "secret" not in json.dumps(ray.jobs)
    uploads = [path.read_text() for path in (Path(tmp_path) / "uploads").iterdir()]
    (spec,) = [parse_spec(json.loads(text)) for text in uploads if "model" in text]
    assert spec.prompts["mine"].source.startswith("upload:")


def test_one_caller_cannot_use_all_estimates_of_the_cluster(ray, tmp_path):
    mine, yours = (bearer(create_credential(str(tmp_path), ("submit",))[0]) for _ in range(2))
    client = client_of(tmp_path, jobs_url=URL)
    statuses = [client.post(PATH, json=another(number), headers=mine).status_code for number in range(3)]
    assert statuses == [202, 202, 429]
    assert client.post(PATH, json=another(3), headers=yours).status_code == 202
    assert client.post(PATH, json=another(0), headers=yours).status_code == 202
    assert_problem(client.post(PATH, json=another(4), headers=yours), 429, "4 estimates, 2 of them of this caller")
    assert len(ray.jobs) == 4


def test_the_spec_of_an_estimate_is_removed_when_the_estimate_is_read(client, ray, tmp_path):
    client.post(PATH, json=SPEC)
    assert len(list((tmp_path / "uploads").iterdir())) == 1
    (name,) = ray.jobs
    ray.log = RESULT + json.dumps({"estimate": {"run_id": "tiny-0"}})
    ray.set_state(name, "SUCCEEDED")
    assert client.post(PATH, json=SPEC).json() == {"run_id": "tiny-0"}
    assert not (tmp_path / "uploads").exists()
    assert not (tmp_path / "upload-owners").exists()


def test_estimates_are_limited_and_need_the_scope_submit(client, ray, tmp_path, monkeypatch):
    monkeypatch.setattr("theodolite.api.specs._MAX_ESTIMATES", 1)
    client.post(PATH, json=SPEC)
    assert_problem(
        client.post(PATH, json=another(1)), 429, "computes 1 estimates, 1 of them of this caller; allowed: 1"
    )
    assert_problem(client_of(tmp_path).post(PATH, json=SPEC), 503, "no cluster")
    token, _ = create_credential(str(tmp_path), ("read",))
    closed = client_of(tmp_path, jobs_url=URL, tokenless=False)
    assert_problem(closed.post(PATH, json=SPEC, headers=bearer(token)), 403, "needs the scope submit")


@pytest.fixture
def python(client, monkeypatch) -> theodolite.Client:
    """A Python client whose requests reach the service in this process."""
    monkeypatch.setattr("time.sleep", lambda _seconds: None)
    made = theodolite.Client("http://localhost")
    made._http = client
    return made


def test_the_python_client_waits_for_the_estimate(python, client, ray, monkeypatch, tmp_path):
    (tmp_path / "goals.csv").write_text("prompt\nName a city.\nName a river.\n")
    spec = {**SPEC, "prompts": {"goals": {"source": f"file:{tmp_path.name}/goals.csv"}}, "contrasts": {}}
    monkeypatch.chdir(tmp_path.parent)
    answers = []

    def post(method, url, **given):
        answer = TestClient.request(client, method, url, **given)
        answers.append(answer.status_code)
        if answer.status_code == 202 and answers.count(202) == 2:
            (name,) = ray.jobs
            ray.log = RESULT + json.dumps({"estimate": {"run_id": "tiny-0"}})
            ray.set_state(name, "SUCCEEDED")
        return answer

    monkeypatch.setattr(client, "request", post)
    assert python.plan(spec) == {"run_id": "tiny-0"}
    assert answers == [201, 202, 202, 200]
    with pytest.raises(ClusterError, match="did not estimate the survey in 0 s"):
        python.plan(SPEC, seconds_to_wait=0)
    with pytest.raises(SpecError):
        python.plan({**SPEC, "contrasts": 3})
