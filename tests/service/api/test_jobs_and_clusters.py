"""Check survey jobs whose cluster is missing, is unreachable, refuses them, or sends invalid responses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from support.sealed import reseal
from support.serving import SPEC, RayStandIn, assert_problem, client_of
from support.submitted_jobs import ID, URL, another, show, submit

from theodolite.store.cache import Cache
from theodolite.submission.job_store import End, end_attempt, read_jobs


@pytest.fixture
def store(tmp_path):
    return str(tmp_path)


@pytest.fixture
def client(store, ray):
    return client_of(store, jobs_url=URL)


def test_without_a_cluster_submissions_fail_and_known_jobs_are_lost(client, ray, store):
    submit(client)
    without = client_of(store)
    assert_problem(without.post("/v1/jobs", json=another(1)), 503, "no cluster for survey jobs", "THEODOLITE_JOBS_URL")
    assert (show(without)["state"], "no cluster" in show(without)["reason"]) == ("lost", True)
    assert without.get("/v1/jobs").json()["items"][0]["state"] == "lost"
    assert len(read_jobs(store, Cache(0))) == 1


@pytest.mark.parametrize(
    "failure", [httpx.ConnectError("refused"), httpx.ReadTimeout("slow"), httpx.RemoteProtocolError("bye")]
)
def test_with_an_unreachable_cluster_submissions_fail_and_unfinished_jobs_are_lost(client, ray, store, failure):
    submit(client)
    submit(client, another(1))
    end_attempt(store, ID, 1, End("succeeded"))
    ray.failure = failure
    assert_problem(client.post("/v1/jobs", json=another(2)), 503, "cannot be reached", URL)
    states = {job["id"]: job for job in client.get("/v1/jobs").json()["items"]}
    assert states.pop(ID)["state"] == "succeeded"
    (lost,) = states.values()
    assert lost["state"] == "lost"
    assert "cannot be reached" in lost["reason"]
    assert len(read_jobs(store, Cache(0))) == 2
    ray.failure = None
    assert show(client, lost["id"])["state"] == "queued"


def test_the_error_of_a_cluster_with_another_token_names_the_setting(store, monkeypatch):
    cluster = RayStandIn(token="right")
    monkeypatch.setattr("theodolite.submission.ray_jobs.httpx.request", cluster.request)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nonexistent")
    for token in (None, "wrong"):
        answer = client_of(store, jobs_url=URL, ray_token=token).post("/v1/jobs", json=SPEC)
        assert_problem(answer, 503, "rejects the token", "THEODOLITE_RAY_TOKEN")
        assert "wrong" not in answer.text
    submit(client_of(store, jobs_url=URL, ray_token="right"))


def test_a_refused_attempt_is_recorded_and_its_submission_id_is_not_reused(client, ray, monkeypatch):
    monkeypatch.setattr("theodolite.submission.job_store.secrets.token_hex", lambda _: "chance")
    name = f"theodolite-{ID[:16]}-1-chance"
    ray.jobs[name] = {"status": "STOPPED", "submission_id": name}
    assert_problem(client.post("/v1/jobs", json=SPEC), 503, "answered 500", "exists")
    assert show(client)["state"] == "failed"
    assert submit(client).json()["attempt"] == 2


def test_an_attempt_that_was_never_sent_is_lost_after_a_while(client, ray, store):
    submit(client)
    ray.jobs.clear()
    (Path(store) / "jobs" / ID / "sent" / "00001.json").unlink()
    file = Path(store) / "jobs" / ID / "attempts" / "00001.json"
    fresh = client_of(store, jobs_url=URL)
    assert show(fresh)["state"] == "queued"  # in transit
    old = (datetime.now(UTC) - timedelta(minutes=2)).isoformat()
    reseal(file, submitted=old)
    later = client_of(store, jobs_url=URL)
    assert show(later)["state"] == "lost"
    assert submit(later).json()["attempt"] == 2


def test_stopping_a_job_fails_while_the_cluster_is_unreachable(client, ray):
    submit(client)
    ray.failure = httpx.ConnectError("refused")
    assert_problem(client.delete(f"/v1/jobs/{ID}"), 503)


def answering(monkeypatch, status, text):
    def request(method, url, **_):
        return httpx.Response(status, text=text, request=httpx.Request(method, url))

    monkeypatch.setattr("theodolite.submission.ray_jobs.httpx.request", request)


@pytest.mark.parametrize(
    ("status", "text"),
    [(404, "404: Not Found"), (200, "<html>a login page</html>"), (302, ""), (200, "[]"), (200, "{}")],
)
def test_a_url_that_is_not_a_ray_cluster_accepts_no_job(store, monkeypatch, status, text):
    answering(monkeypatch, status, text)
    client = client_of(store, jobs_url=URL)
    assert_problem(client.post("/v1/jobs", json=SPEC), 503)


@pytest.mark.parametrize(
    ("status", "text"), [(200, "<html>"), (302, ""), (200, "null"), (200, '{"status": "RESTARTING"}'), (200, "{}")]
)
def test_after_an_invalid_response_of_the_cluster_jobs_are_lost(client, ray, monkeypatch, status, text):
    submit(client)
    submit(client, another(1))
    answering(monkeypatch, status, text)
    assert client.get("/v1/jobs").status_code == 200
    assert client.get(f"/v1/jobs/{ID}/logs").status_code in (404, 503)
    assert show(client)["state"] == "lost"


def test_errors_do_not_contain_the_password_of_the_cluster(store, ray):
    ray.failure = httpx.ConnectError("refused")
    answer = client_of(store, jobs_url="http://user:PASSWORD@head:8265").post("/v1/jobs", json=SPEC)
    assert_problem(answer, 503)
    assert "PASSWORD" not in answer.text
