"""Labels change over HTTP with the scope submit, and runs are deleted with the scope admin."""

import pytest
from support.serving import assert_problem, bearer, client_of, copied
from support.submitted_jobs import URL, submit

from theodolite.api.credentials import create_credential
from theodolite.client import Client
from theodolite.store.labels import Labels, read_labels
from theodolite.submission.job_store import record_run

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
    assert read_labels(store, "tiny-0") == Labels(name="first try", tags=("paper",), remarks="Look at layer 3.")
    (line,) = client.get("/v1/runs").json()["items"]
    assert (line["name"], line["tags"]) == ("first try", ["paper"])
    assert client.get(RUN).json()["remarks"] == "Look at layer 3."
    assert client.patch(RUN, json={"name": None}).json()["name"] is None


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        ({"tags": "paper"}, "tags"),
        ({"name": 3}, "name"),
        ({"title": "x"}, "title"),
        ([1], "not a JSON object"),
    ],
)
def test_wrong_labels_are_refused_by_name(client, body, detail):
    problem = assert_problem(client.patch(RUN, json=body), 422)
    assert detail in problem["detail"]


def test_an_unknown_run_has_no_labels(client):
    assert_problem(client.patch("/v1/runs/nobody", json={"name": "x"}), 404)
    assert_problem(client.delete("/v1/runs/nobody"), 404)


def test_each_change_needs_its_scope(store):
    client = client_of(store)
    tokens = {scope: create_credential(store, [scope])[0] for scope in ("read", "submit", "admin")}
    client.app.state.access.seconds_cached = -1.0
    for scope, token in tokens.items():
        status = 200 if scope == "submit" else 403
        assert client.patch(RUN, json={"name": scope}, headers=bearer(token)).status_code == status
    for scope in ("read", "submit"):
        assert_problem(client.delete(RUN, headers=bearer(tokens[scope])), 403)
    assert client.delete(RUN, headers=bearer(tokens["admin"])).status_code == 204


def test_a_deleted_run_is_gone(client):
    assert client.delete(RUN).status_code == 204
    assert_problem(client.get(RUN), 404)
    assert client.get("/v1/runs").json()["items"] == []


def test_a_run_whose_survey_runs_is_not_deleted(store, ray):
    client = client_of(store, jobs_url=URL)
    submit(client)
    (job,) = client.get("/v1/jobs").json()["items"]
    record_run(store, job["id"], "tiny-0")
    problem = assert_problem(client.delete(RUN), 409)
    assert "stop it" in problem["detail"]
    ray.set_state(ray.submitted[0], "SUCCEEDED")
    assert client.delete(RUN).status_code == 204


def test_the_client_changes_labels_and_deletes(client, monkeypatch):
    here = Client("http://localhost")
    monkeypatch.setattr(here, "_http", client)
    monkeypatch.setattr(here, "url", "")
    assert here.label("tiny-0", tags=["paper"]) == {"name": None, "tags": ["paper"], "remarks": ""}
    here.remove("tiny-0")
    assert here.runs().empty
