"""Check the client against a real service: lists, comparisons, jobs, and every kind of error response."""

import http.server
import json
import socket
import threading
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace

import httpx
import pandas as pd
import pytest
import yaml
from support.each import each
from support.listening import served
from support.serving import SPEC, configured, copied

from theodolite import errors
from theodolite.api.credentials import create_credential
from theodolite.api.problems import problem_response
from theodolite.client import IDLE_SECONDS, Client, Job
from theodolite.errors import (
    ClusterError,
    ResultsNotFoundError,
    RunNotFoundError,
    ServiceError,
    SpecError,
    TheodoliteError,
)
from theodolite.service_errors import error_of
from theodolite.settings import Settings
from theodolite.store.cache import Cache
from theodolite.submission.job_store import End, end_attempt, read_jobs, record_run


def all_errors(error=TheodoliteError):
    return [error, *(below for child in error.__subclasses__() for below in all_errors(child))]


def test_runs_are_a_table_newest_first(service):
    frame = service.runs()
    assert sorted(frame["run_id"]) == ["heads-0", "tiny-0"]
    assert frame["created"].is_monotonic_decreasing
    assert frame["sets"].iloc[0] == {"harmful": 10, "harmless": 9, "nouns": 6}
    assert isinstance(frame["created"].iloc[0], pd.Timestamp)
    assert len(service.runs(model="TINY", contrast="subject")) == 2
    nothing = service.runs(model="other")
    assert len(nothing) == 0
    assert nothing.columns.tolist() == frame.columns.tolist()


def test_ask_joins_all_pages(service):
    whole = service.ask("/v1/runs/tiny-0/curves")
    in_pages = service.ask("/v1/runs/tiny-0/curves", limit=25)
    assert len(whole["items"]) > 50
    assert in_pages["items"] == whole["items"]
    assert in_pages["next"] is None


def test_a_comparison_is_a_table_with_its_milestones(service):
    frame = service.compare(["tiny-0", "heads-0"], "auroc", contrast="refusal", bound=0.5)
    assert frame["run_id"].unique().tolist() == ["tiny-0", "heads-0"]
    assert frame[["value", "low", "high"]].dtypes.tolist() == [float] * 3
    assert frame["relative_depth"].between(0, 1).all()
    assert [row["run_id"] for row in frame.attrs["milestones"]] == ["tiny-0", "heads-0"]
    with pytest.raises(SpecError, match="contrast: not given, and tiny-0 has 2; choose one of: refusal, subject"):
        service.compare(["tiny-0"], "auroc")


@each("error", [error for error in all_errors() if error.__module__ == errors.__name__])
def test_every_error_class_is_raised_again_by_the_client(error):
    answer = problem_response(409, error.kind(), "why")
    raised = error_of(httpx.Response(409, content=answer.body), "http://here")
    assert type(raised) is error
    assert str(raised) == "why"


@each(
    "status, kind, error",
    [
        (422, "cursor", SpecError),
        (422, "invalid-request", SpecError),
        (503, "busy", ClusterError),
        (409, "incomplete", ResultsNotFoundError),
        (404, "section-not-found", ResultsNotFoundError),
        (429, "job-limit", TheodoliteError),
        (403, "not-yours", TheodoliteError),
    ],
)
def test_other_problems_raise_the_error_of_their_status(status, kind, error):
    raised = error_of(httpx.Response(status, content=problem_response(status, kind, "why").body), "http://here")
    assert type(raised) is error
    assert str(raised) == "why"


def runs_of(*arguments, **options):
    with closing(Client(*arguments, **options)) as client:
        return client.runs()


def test_the_token_is_sent_and_a_missing_token_raises(shelf, tmp_path, service):
    store = copied(shelf, tmp_path, "tiny-0")
    token, _ = create_credential(store, ("read",), "", None)
    with served(store, tokenless=False) as url:
        with pytest.raises(TheodoliteError, match=rf"{url}: this service needs a token.*Client\(url, token=…\)"):
            runs_of(url)
        with pytest.raises(TheodoliteError, match=r"unknown to this service.*Client\(url, token=…\)"):
            runs_of(url, "th_wrong")
        with closing(Client(url, token)) as client:
            assert len(client.runs()) == 1
            with pytest.raises(TheodoliteError, match="needs the scope submit"):
                client.submit(SPEC)
            assert token not in repr(client) + client._repr_html_()


def test_the_error_for_an_unreachable_url_names_it():
    with pytest.raises(TheodoliteError, match=r"cannot reach http://127\.0\.0\.1:9: .*theodolite serve"):
        runs_of("http://127.0.0.1:9/")
    with pytest.raises(TheodoliteError, match=r"cannot reach localhost:8000: .* http://127\.0\.0\.1:8000"):
        runs_of("localhost:8000")


def test_the_error_after_a_timeout_names_the_url():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(ServiceError, match=rf"{url} did not respond within 0\.1 s; retry later"):
            runs_of(url, timeout_seconds=0.1)


def test_the_error_for_a_url_that_is_not_a_service_names_it():
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Thread(target=server.serve_forever).start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        with pytest.raises(TheodoliteError, match=f"{url} answered 501 .*check the URL"):
            runs_of(url)
    finally:
        server.shutdown()
        server.server_close()


def test_an_invalid_run_id_raises(service):
    for name in ("../jobs", "tiny 0", "a?b=c"):
        with pytest.raises(TheodoliteError):
            service.run(name)
    with pytest.raises(RunNotFoundError):
        service.run("tiny-9")


def test_a_spec_is_checked_from_a_dictionary_or_a_file(service, tmp_path):
    file = tmp_path / "survey.yaml"
    file.write_text(yaml.safe_dump({"name": "mine", **SPEC}))
    checked = service.check(SPEC)
    assert checked["valid"] is True
    assert service.check(file)["id"] == checked["id"] == service.check(str(file))["id"]
    with pytest.raises(SpecError, match="modle: unknown field"):
        service.check({**SPEC, "modle": {}})
    with pytest.raises(SpecError, match=r"cannot read the spec .*none\.yaml"):
        service.check(tmp_path / "none.yaml")


@pytest.fixture
def submitting(shelf, tmp_path, cluster):
    """The client of a service with its own store and a fake Ray cluster; then the store and the cluster."""
    store = copied(shelf, tmp_path, "tiny-0")
    with served(store, jobs_url="http://head:8265") as url:
        client = Client(url)
        yield client, store, cluster
        client.close()


def test_wait_shows_the_progress_and_returns_the_run(submitting, capsys):
    client, store, cluster = submitting
    job = client.submit({"name": "<script>", **SPEC})
    assert client.submit(SPEC).id == job.id
    assert job.state == "queued"
    assert job.progress == {}
    cluster.set_state(cluster.submitted[0], "RUNNING")
    record_run(store, job.id, "tiny-0")
    assert job.progress["harmful"] == {"done": 10, "total": 10}
    assert job.logs() == cluster.log
    assert "<script" not in job._repr_html_()
    assert "tiny-0" in job._repr_html_()
    with pytest.raises(ClusterError, match=r"is still running after 0\.05 s; wait again"):
        job.wait(timeout=0.05, poll_seconds=0.01)
    end_attempt(store, job.id, 1, End("succeeded"))
    run = job.wait(poll_seconds=0.01)
    assert run.id == "tiny-0"
    assert run.curves()["value"].size
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        "running: harmful 10/10, harmless 9/9, nouns 6/6",
        "succeeded: harmful 10/10, harmless 9/9, nouns 6/6",
    ]


def test_a_failed_job_raises_its_reason(submitting):
    client, store, _ = submitting
    job = client.submit(SPEC)
    end_attempt(store, job.id, 1, End("failed", "the model is too large"))
    with pytest.raises(ClusterError, match="failed: the model is too large; submit the same spec again to resume"):
        job.wait(poll_seconds=0.01)


def test_a_stopped_or_lost_job_raises(submitting):
    client, store, cluster = submitting
    job = client.submit(SPEC)
    cluster.set_state(cluster.submitted[0], "RUNNING")
    job.stop()
    assert job.state == "stopped"
    with pytest.raises(ClusterError, match="was stopped"):
        job.wait(poll_seconds=0.01)
    again = client.submit(SPEC)
    cluster.set_state(cluster.submitted[1], "RUNNING")
    cluster.failure = httpx.ConnectError("no route")
    assert read_jobs(store, Cache(0), again.id)[0].end is None
    with pytest.raises(ClusterError, match=r"is lost: .*cannot be reached"):
        again.wait(poll_seconds=0.01, lost_seconds=0.0)
    with pytest.raises(ClusterError, match=r"is lost: .*cannot be reached"):
        again.wait(timeout=0.05, poll_seconds=0.01)


def test_wait_continues_while_the_cluster_does_not_respond(submitting, monkeypatch, capsys):
    client, store, cluster = submitting
    job = client.submit(SPEC)
    record_run(store, job.id, "tiny-0")
    cluster.failure = httpx.ConnectError("no route")
    seen = []

    def sleep(_seconds):
        seen.append(job.state)
        if len(seen) == 2:
            cluster.failure = None
            end_attempt(store, job.id, 1, End("succeeded"))

    monkeypatch.setattr("theodolite.submission.waiting.time.sleep", sleep)
    assert job.wait(poll_seconds=0.01).id == "tiny-0"
    assert seen == ["lost", "lost"]
    assert capsys.readouterr().err.splitlines()[0].startswith("lost")


def test_submitting_to_a_service_without_a_cluster_raises(service):
    with pytest.raises(ClusterError, match="no cluster for survey jobs"):
        service.submit(SPEC)


def test_wait_draws_bars_on_a_terminal(submitting, monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")
    client, store, _ = submitting
    job = client.submit(SPEC)
    record_run(store, job.id, "tiny-0")
    end_attempt(store, job.id, 1, End("succeeded"))
    assert job.wait(poll_seconds=0.01).id == "tiny-0"
    shown = capsys.readouterr().err
    assert "harmless" in shown
    assert "9/9" in shown


def test_representations_are_short_and_escaped():
    client = Client('http://"><script>alert(1)</script>')
    assert "<script" not in client._repr_html_()
    assert repr(Client("http://here/")) == "Client('http://here')"
    assert repr(Job(Client("http://here"), {"id": "a" * 64, "model": "m"})) == "Job(aaaaaaaaaaaa…, 'm', 'http://here')"


def test_relative_prompt_files_of_a_spec_are_uploaded(submitting, tmp_path, monkeypatch):
    client, store, _ = submitting
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "goals.csv").write_text("prompt\nOne\nTwo\n")
    prompts = {**SPEC["prompts"], "more": {"source": "file:goals.csv"}}
    (folder / "survey.yaml").write_text(yaml.safe_dump({**SPEC, "prompts": prompts}))
    job = client.submit(folder / "survey.yaml")
    (name,) = (path.name for path in (Path(store) / "uploads").iterdir())
    stored = json.loads((Path(store) / "jobs" / job.id / "spec.json").read_text())
    assert stored["spec"]["prompts"]["more"] == {"source": f"upload:{name}"}
    assert (Path(store) / "uploads" / name).read_bytes() == b"prompt\nOne\nTwo\n"

    monkeypatch.chdir(folder)
    as_dictionary = {**SPEC, "prompts": prompts}
    assert client.submit(as_dictionary).id == job.id
    assert as_dictionary["prompts"]["more"] == {"source": "file:goals.csv"}


def test_a_compressed_prompt_file_is_uploaded_with_its_type(submitting, tmp_path):
    client, _, _ = submitting
    (tmp_path / "goals.v2.TSV.gz").write_bytes(b"packed")
    assert client.upload(tmp_path / "goals.v2.TSV.gz").endswith(".tsv.gz")


def test_a_prompt_file_that_cannot_be_uploaded_is_named(submitting, tmp_path):
    client, _, _ = submitting
    with pytest.raises(SpecError, match=r"cannot read the prompt file .*none\.csv: No such file"):
        client.upload(tmp_path / "none.csv")
    with pytest.raises(SpecError, match=r"cannot read the prompt file .*: Is a directory"):
        client.upload(tmp_path)
    (tmp_path / "goals.doc").write_text("x")
    with pytest.raises(SpecError, match=r"goals\.doc has no supported suffix; allowed: \.csv, "):
        client.upload(tmp_path / "goals.doc")
    with pytest.raises(TheodoliteError, match="does not read this file over HTTP"):
        client.submit({**SPEC, "prompts": {**SPEC["prompts"], "more": {"source": "file:/nowhere/goals.csv"}}})
    with pytest.raises(SpecError, match="prompts: given 3"):
        client.submit({**SPEC, "prompts": 3})


def test_texts_of_a_spec_are_uploaded_by_the_service(submitting):
    client, store, _ = submitting
    job = client.submit({**SPEC, "prompts": {**SPEC["prompts"], "more": {"source": "inline", "texts": ["Ein Satz"]}}})
    (upload,) = (Path(store) / "uploads").iterdir()
    assert json.loads(upload.read_text()) == ["Ein Satz"]
    assert "Ein Satz" not in client.send("GET", f"/v1/jobs/{job.id}").text


def test_a_sentence_is_submitted_with_the_model_of_a_run(shelf, tmp_path, cluster):
    store = copied(shelf, tmp_path, "tiny-0")
    with served(store, jobs_url="http://head:8265", models_allowed=["tiny"]) as url:
        client = Client(url)
        job = client.submit_sentence("tiny-0", "Ein Satz")
        assert job.id == client.submit_sentence("tiny-0", "Ein Satz").id
        assert job.describe()["spec"]["words"]["sentences"] == ["Ein Satz"]
        assert len(cluster.submitted) == 1
        with pytest.raises(SpecError, match="at least one word"):
            client.submit_sentence("tiny-0", " ")
        with pytest.raises(RunNotFoundError):
            client.submit_sentence("none-0", "Ein Satz")
        client.close()


def test_uploads_are_listed_and_deleted(submitting, tmp_path):
    client, store, _ = submitting
    assert list(client.uploads()) == ["source", "bytes", "uploaded", "expires"]
    (tmp_path / "goals.txt").write_text("One\n")
    source = client.upload(tmp_path / "goals.txt")
    (row,) = client.uploads().itertuples(index=False)
    assert (row.source, row.bytes) == (source, 4)
    assert row.uploaded < row.expires
    client.remove_upload(source)
    assert len(client.uploads()) == 0
    assert not (Path(store) / "uploads").exists()
    with pytest.raises(TheodoliteError, match="this token has no upload"):
        client.remove_upload(source)


def test_a_connection_is_left_before_the_service_closes_it(tmp_path, monkeypatch):
    assert configured(Settings(store=str(tmp_path)), monkeypatch).timeout_keep_alive - 2 >= IDLE_SECONDS


def test_a_request_beyond_the_limit_is_repeated_when_there_is_room(shelf, monkeypatch):
    slept: list[float] = []
    with served(shelf, requests_per_minute=2) as url, closing(Client(url)) as client:
        clock = SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
        monkeypatch.setattr("theodolite.client.time", clock)
        assert [len(client.runs()), len(client.runs())] == [2, 2]
        with pytest.raises(TheodoliteError, match="2 requests in a minute"):
            client.runs()
        assert slept == [slept[0]] * len(slept)
        assert sum(slept) <= client.timeout_seconds < sum(slept) + slept[0]


@pytest.mark.parametrize("kind", ["job-limit", "estimate-limit", "stream-limit"])
def test_a_request_that_was_read_is_not_repeated(submitting, monkeypatch, kind):
    client, _, _ = submitting
    answer = problem_response(429, kind, "why", {"Retry-After": "1"})
    refused = httpx.Response(429, content=answer.body, headers=answer.headers)
    monkeypatch.setattr(client._http, "request", lambda *_arguments, **_request: refused)
    monkeypatch.setattr("theodolite.client.time", SimpleNamespace(sleep=None, monotonic=lambda: 0.0))
    with pytest.raises(TheodoliteError, match="why"):
        client.runs()
