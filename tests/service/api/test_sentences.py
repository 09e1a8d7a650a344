"""The spec of a sentence's trajectory over HTTP, and its submission as a survey job."""

import json

from support.each import each
from support.serving import assert_problem, bearer, client_of, copied
from support.submitted_jobs import URL, submit

from theodolite.api.credentials import create_credential
from theodolite.spec_file import parse_spec
from theodolite.store.runs import open_run
from theodolite.submission.sentences import sentence_spec

PATH, SENTENCE = "/v1/runs/tiny-0/sentence-spec", "The capital of France is Paris"
ALLOWED = {"models_allowed": ["tiny"]}  # the model of the stored runs


def test_the_spec_is_that_of_a_survey_job_which_the_cluster_accepts(library, tmp_path, ray):
    store = copied(library, tmp_path, "tiny-0")
    client = client_of(store, jobs_url=URL, **ALLOWED)
    answer = client.post(PATH, json={"sentence": SENTENCE})
    assert answer.status_code == 200, answer.text
    content = answer.json()
    assert (content["valid"], content["has_cluster"]) == (True, True)
    expected = sentence_spec(open_run(store, "tiny-0").record, SENTENCE)
    assert parse_spec(content["spec"]) == expected
    assert ray.submitted == []
    job = submit(client, content["spec"]).json()
    assert (job["id"], job["name"]) == (content["id"], expected.name)
    assert submit(client, client.post(PATH, json={"sentence": SENTENCE}).json()["spec"]).json()["id"] == job["id"]
    assert len(ray.submitted) == 1


def test_the_service_tells_that_it_has_no_cluster(library):
    assert client_of(library, **ALLOWED).post(PATH, json={"sentence": SENTENCE}).json()["has_cluster"] is False


@each(
    "body, detail",
    [
        ({}, "sentence"),
        ({"sentence": ""}, "at least one word"),
        ({"sentence": " \t"}, "at least one word"),
        ({"sentence": 3}, "given 3"),
        ({"sentence": "a" * 100_001}, "at most 100000 characters"),
        ({"sentence": "\ud800"}, "surrogates"),
        ({"sentence": "a", "model": "org/x"}, "model"),
    ],
)
def test_a_wrong_body_is_refused_in_words(library, body, detail):
    content, headers = json.dumps(body), {"Content-Type": "application/json"}
    assert_problem(client_of(library, **ALLOWED).post(PATH, content=content, headers=headers), 422, detail)


def test_a_run_that_does_not_exist_or_is_not_complete_has_no_sentences(library):
    client = client_of(library, **ALLOWED)
    for run_id, status in {"none-0": 404, "captured-0": 409}.items():
        assert_problem(client.post(f"/v1/runs/{run_id}/sentence-spec", json={"sentence": SENTENCE}), status, run_id)


def test_a_model_that_the_deployment_does_not_survey_is_refused(library):
    answer = client_of(library, models_allowed=["org/*"]).post(PATH, json={"sentence": SENTENCE})
    assert_problem(answer, 403, "does not survey 'tiny' over HTTP")


def test_the_check_needs_the_scope_read(library, tmp_path):
    store = copied(library, tmp_path, "tiny-0")
    token, _ = create_credential(store, ["read"])
    client = client_of(store, **ALLOWED)
    assert_problem(client.post(PATH, json={"sentence": SENTENCE}), 401)
    assert client.post(PATH, json={"sentence": SENTENCE}, headers=bearer(token)).status_code == 200
