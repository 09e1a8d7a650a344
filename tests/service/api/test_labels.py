"""Labels change over HTTP with the scope submit, and runs are deleted with the scope admin."""

import json
import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from support.each import each
from support.serving import assert_problem, bearer, client_of, copied
from support.submitted_jobs import ID, URL, show, submit

from theodolite.api import access_log
from theodolite.api.credentials import create_credential
from theodolite.client import Client
from theodolite.errors import RunNotFoundError, SpecError, TheodoliteError
from theodolite.store.labels import Labels, all_labels
from theodolite.store.leases import held_lease
from theodolite.submission.job_store import End, end_attempt, record_run

RUN = "/v1/runs/tiny-0"


@pytest.fixture
def store(library, tmp_path):
    return copied(library, tmp_path, "tiny-0")


@pytest.fixture
def client(store):
    return client_of(store)


def test_given_labels_replace_the_former_ones_and_others_stay(client, store):
    answer = client.patch(RUN, json={"name": "first try", "tags": ["paper"]})
    assert answer.json() == {"run_id": "tiny-0", "name": "first try", "tags": ["paper"], "remarks": ""}
    client.patch(RUN, json={"remarks": "Look at layer 3."})
    assert all_labels(store) == {"tiny-0": Labels(name="first try", tags=("paper",), remarks="Look at layer 3.")}
    (line,) = client.get("/v1/runs").json()["items"]
    assert (line["name"], line["tags"]) == ("first try", ["paper"])
    assert client.get(RUN).json()["remarks"] == "Look at layer 3."
    assert client.patch(RUN, json={"name": None}).json()["name"] is None


def test_a_change_of_labels_changes_the_etag_of_the_run_and_of_the_list(client):
    tags = {path: client.get(path).headers["etag"] for path in (RUN, "/v1/runs")}
    client.patch(RUN, json={"name": "first try"})
    assert all(client.get(path, headers={"If-None-Match": tag}).status_code == 200 for path, tag in tags.items())


def test_requests_that_change_different_labels_lose_nothing(client):
    changes = [{"name": "first try"}, {"tags": ["paper"]}, {"remarks": "Look."}] * 4
    with client, ThreadPoolExecutor(6) as pool:  # `with client`: one event loop for all requests, as in a server
        assert {one.status_code for one in pool.map(lambda one: client.patch(RUN, json=one), changes)} == {200}
    run = client.get(RUN).json()
    assert (run["name"], run["tags"], run["remarks"]) == ("first try", ["paper"], "Look.")


@each(
    "body, detail",
    [
        ({"tags": "paper"}, "tags: given 'paper'"),
        ({"tags": ["a,b"]}, "tags.0: given 'a,b'; contains a comma; give several tags as a list"),
        ({"tags": ["x"] * 21}, "tags: given"),
        ({"name": 3}, "name: given 3"),
        ({"name": "x" * 201}, "at most 200 characters"),
        ({"name": "a\u0000b"}, "U+0000"),
        ({"remarks": "x" * 10_001}, "at most 10000 characters"),
        ({"title": "x"}, "title: given 'x'"),
        ([1], "the body is not a JSON object"),
        (None, "the body is not a JSON object"),
    ],
)
def test_wrong_labels_are_refused_by_name(client, store, body, detail):
    assert_problem(
        client.patch(RUN, content=json.dumps(body), headers={"Content-Type": "application/json"}), 422, detail
    )
    assert all_labels(store) == {}


@each("body", ["", "{", '{"name": NaN}', '{"name": "\\ud800"}', "[" * 10_000])
def test_a_body_that_is_no_json_is_refused(client, store, body):
    assert_problem(client.patch(RUN, content=body, headers={"Content-Type": "application/json"}), 422)
    assert all_labels(store) == {}


@each("run_id", ["nobody", "captured-0", "tiny-1"])
def test_an_unknown_run_has_no_labels_and_cannot_be_deleted(client, store, run_id):
    assert_problem(client.patch(f"/v1/runs/{run_id}", json={"name": "x"}), 404, run_id)
    assert_problem(client.delete(f"/v1/runs/{run_id}"), 404, run_id)
    assert not (Path(store) / "labels").exists()


@each("run_id", ["..", "%2e%2e", "..%2fruns%2ftiny-0", "tiny-0%2f..", ".", "TINY-0", "tiny-0%00"])
def test_a_path_reaches_nothing_but_runs(client, store, run_id):
    before = sorted(Path(store).rglob("*"))
    assert client.delete(f"/v1/runs/{run_id}").status_code in (404, 405, 422)
    assert client.patch(f"/v1/runs/{run_id}", json={"name": "x"}).status_code in (404, 405, 422)
    assert sorted(Path(store).rglob("*")) == before


def test_each_change_needs_its_scope(store):
    client = client_of(store)
    tokens = {scope: create_credential(store, [scope])[0] for scope in ("read", "submit", "admin")}
    client.app.state.access.seconds_cached = -1.0
    for scope, token in tokens.items():
        status = 200 if scope == "submit" else 403
        assert client.patch(RUN, json={"name": scope}, headers=bearer(token)).status_code == status
    for scope in ("read", "submit"):
        assert_problem(client.delete(RUN, headers=bearer(tokens[scope])), 403, "needs the scope admin")
    assert client.delete(RUN, headers=bearer(tokens["admin"])).status_code == 204


def test_a_deleted_run_is_gone(client, store):
    client.patch(RUN, json={"name": "first try"})
    answer = client.delete(RUN)
    assert (answer.status_code, answer.content) == (204, b"")
    assert_problem(client.get(RUN), 404)
    assert_problem(client.delete(RUN), 404)
    assert client.get("/v1/runs").json()["items"] == []
    assert all_labels(store) == {}


def test_a_run_on_which_a_driver_works_is_not_deleted(client, store):
    with held_lease(store, "tiny-0"):
        problem = client.delete(RUN)
    assert_problem(problem, 409, "tiny-0 is in use: the process ")
    assert problem.json()["type"] == "urn:theodolite:run-in-use"
    assert client.get(RUN).status_code == 200
    assert client.delete(RUN).status_code == 204


def test_the_log_names_who_deleted_a_run(store, caplog):
    caplog.set_level(logging.INFO, logger=access_log.__name__)
    token, credential = create_credential(store, ["admin"])
    client_of(store).delete(RUN, headers=bearer(token))
    (line,) = [json.loads(record.getMessage()) for record in caplog.records if record.name == access_log.__name__]
    assert (line["method"], line["path"], line["status"], line["token"]) == ("DELETE", RUN, 204, credential.id)


def test_a_run_whose_survey_runs_is_not_deleted(store, ray):
    client = client_of(store, jobs_url=URL)
    submit(client)
    record_run(store, ID, "tiny-0")
    for state in ("PENDING", "RUNNING"):
        ray.set_state(ray.submitted[0], state)
        assert_problem(client.delete(RUN), 409, ID[:12], "stop it")
    ray.set_state(ray.submitted[0], "FAILED")
    assert client.delete(RUN).status_code == 204


def test_a_run_is_not_deleted_while_the_cluster_that_may_compute_it_does_not_respond(store, ray):
    client = client_of(store, jobs_url=URL)
    submit(client)
    record_run(store, ID, "tiny-0")
    ray.failure = httpx.ConnectError("no route")
    assert client.delete(RUN).status_code == 503
    assert client.get(RUN).status_code == 200


def test_the_survey_job_of_a_deleted_run_says_so_and_can_be_submitted_again(store, ray):
    client = client_of(store, jobs_url=URL)
    submit(client)
    record_run(store, ID, "tiny-0")
    end_attempt(store, ID, 1, End("succeeded"))
    assert submit(client).json()["attempt"] == 1
    client.delete(RUN)
    job = show(client)
    assert (job["state"], job["run_id"]) == ("succeeded", None)
    assert job["reason"] == "its run was deleted; submit the survey again to compute it"
    again = submit(client).json()
    assert (again["state"], again["attempt"], again["reason"]) == ("queued", 2, None)


def test_the_client_changes_labels_and_deletes(client, monkeypatch):
    here = Client("http://localhost")
    monkeypatch.setattr(here, "_http", client)
    assert here.label("tiny-0", tags=["paper"]) == {"name": None, "tags": ["paper"], "remarks": ""}
    assert list(here.runs()["tags"]) == [["paper"]]
    with pytest.raises(SpecError, match=r"tags\.0: given 'a,b'"):
        here.label("tiny-0", tags=["a,b"])
    here.remove("tiny-0")
    assert here.runs().empty
    with pytest.raises(RunNotFoundError):
        here.label("tiny-0", name="x")
    for escaping in ("..", "tiny-0/..", "tiny-0/curves"):
        with pytest.raises(TheodoliteError):
            here.remove(escaping)
