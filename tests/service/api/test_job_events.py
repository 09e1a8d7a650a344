"""Follow a survey job by server-sent events: each change once, and an end when the job ends."""

import json
import threading
import time
from typing import Any

import httpx
import pytest
from support.serving import assert_problem, bearer, client_of
from support.submitted_jobs import ID, URL, show, submit

from theodolite.api.credentials import create_credential, revoke_credential
from theodolite.submission.job_store import record_run

PATH = f"/v1/jobs/{ID}/events"


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("theodolite.api.job_events.SECONDS", 0.02)


@pytest.fixture
def client(tmp_path, ray):
    return client_of(tmp_path, jobs_url=URL)


def events_of(text: str) -> list[tuple[str, Any]]:
    """Return the names and the contents of the events in a response, read as the standard says."""
    events = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if not line.startswith(":"))
        if fields:
            events.append((fields["event"], json.loads(fields["data"])))
    return events


class Following:
    """A client that reads the events in a thread, while the test changes the job."""

    def __init__(self, client, ray, **given):
        known = len(ray.requests)
        self.answer: Any = None
        self._thread = threading.Thread(target=lambda: setattr(self, "answer", client.get(PATH, **given)))
        self._thread.start()
        deadline = time.monotonic() + 60
        while len(ray.requests) < known + 2 and self._thread.is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)

    def end(self) -> list[tuple[str, Any]]:
        self._thread.join(20)
        assert self.answer is not None, "the events did not end"
        assert self.answer.headers["content-type"].startswith("text/event-stream")
        return events_of(self.answer.text)


def test_each_change_is_one_event_until_the_job_ends(client, ray, tmp_path):
    submit(client)
    following = Following(client, ray)
    time.sleep(0.2)
    ray.set_state(ray.submitted[0], "RUNNING")
    time.sleep(0.2)
    record_run(str(tmp_path), ID, "tiny-0")
    time.sleep(0.2)
    ray.set_state(ray.submitted[0], "SUCCEEDED")
    names, jobs = zip(*following.end(), strict=True)
    assert set(names) == {"job"}
    assert [(job["state"], job["run_id"]) for job in jobs[:3]] == [
        ("queued", None),
        ("running", None),
        ("running", "tiny-0"),
    ]
    assert [job["state"] for job in jobs[3:]] == ["succeeded"]
    assert jobs[3] == show(client)
    assert client.app.state.streams.total() == 0


def test_a_job_that_has_ended_is_one_event(client, ray):
    submit(client)
    ray.set_state(ray.submitted[0], "FAILED", "why")
    answer = client.get(PATH)
    assert events_of(answer.text) == [("job", show(client))]


def test_head_ends_at_once_while_a_job_runs(client, ray):
    submit(client)
    answer = client.head(PATH)
    assert (answer.status_code, answer.text) == (200, "")


def test_an_unknown_job_and_too_many_streams_are_problems(client, ray, monkeypatch):
    assert_problem(client.get(PATH), 404, "there is no job")
    submit(client)
    monkeypatch.setattr("theodolite.api.job_events.MAX_STREAMS_OF_CALLER", 1)
    following = Following(client, ray)
    assert_problem(client.get(PATH), 429, "1 streams of this caller are open, and 1 in all, the maximum")
    ray.set_state(ray.submitted[0], "SUCCEEDED")
    following.end()
    assert client.get(PATH).status_code == 200


def test_a_short_silence_of_the_cluster_is_no_change(client, ray):
    submit(client)
    following = Following(client, ray)
    ray.failure = httpx.ConnectError("refused")
    time.sleep(0.3)
    ray.failure = None
    ray.set_state(ray.submitted[0], "SUCCEEDED")
    assert [job["state"] for _, job in following.end()] == ["queued", "succeeded"]


def test_a_job_that_stays_lost_ends_the_events(client, ray, monkeypatch):
    monkeypatch.setattr("theodolite.api.job_events.SECONDS_LOST", 0.1)
    submit(client)
    following = Following(client, ray)
    ray.failure = httpx.ConnectError("refused")
    assert [job["state"] for _, job in following.end()] == ["queued", "lost"]


def test_a_revoked_token_ends_the_events(tmp_path, ray):
    token, credential = create_credential(str(tmp_path), ("read", "submit"))
    client = client_of(tmp_path, jobs_url=URL, seconds_cached=0)
    submit(client, headers=bearer(token))
    following = Following(client, ray, headers=bearer(token))
    revoke_credential(str(tmp_path), credential.id)
    name, problem = following.end()[-1]
    assert (name, problem["status"]) == ("problem", 401)


def test_a_stopping_service_ends_the_events(client, ray):
    submit(client)
    following = Following(client, ray)
    client.app.state.is_stopping = lambda: True
    assert [name for name, _ in following.end()] == ["job"]


def test_streams_do_not_count_as_slow_responses(client, ray):
    submit(client)
    ray.set_state(ray.submitted[0], "SUCCEEDED")

    def counts() -> list[str]:
        lines = client.get("/metrics").text.splitlines()
        return [line for line in lines if "/events" in line and ("seconds_count" in line or 'status="200"' in line)]

    client.get(PATH.replace(ID, "0" * 64))  # a problem is timed
    client.get(PATH)
    before = counts()
    client.get(PATH)
    changed = set(counts()) - set(before)
    assert [line.partition("{")[0] for line in changed] == ["theodolite_http_requests_total"]
