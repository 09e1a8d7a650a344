"""Check the service against its OpenAPI description, with requests that schemathesis generates from a fixed seed.

The environment variable OPENAPI_EXAMPLES sets the number of valid and of invalid requests for each operation.
"""

import asyncio
import base64
import json
import os
import re
from hashlib import sha256
from typing import Any

import hypothesis
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.config import GenerationConfig, ProjectConfig, ProjectsConfig, SchemathesisConfig
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from starlette.testclient import TestClient
from support.each import each
from support.serving import SPEC, bearer, client_of, copied
from support.submitted_jobs import URL

from theodolite.api import bodies
from theodolite.api.app import create_app
from theodolite.api.credentials import create_credential
from theodolite.errors import StoreError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec

HOST = {"Host": "localhost"}
PUBLIC = {"/healthz", "/readyz", "/v1/spec.schema.json"}
KNOWN = {"run_id": "tiny-0", "contrast": "refusal", "layer": 1, "head": 0, "prompt_set": "harmful", "sample": 3}
NAMES = {
    **KNOWN,
    "job_id": "0" * 64,
    "name": "growth",
    "group": "gram",
    "key": "tables/growth.parquet",
    "upload": f"{sha256(b'one').hexdigest()}.csv",
}
REQUIRED = {
    ("POST", "/v1/uploads"): {"type": "csv"},
    ("GET", "/v1/compare"): {"run": "tiny-0"},
    ("GET", "/v1/runs/{run_id}/directions/{contrast}"): {"site": "resid_pre", "layer": 1},
}

PATHS = create_app(Settings(store="nowhere")).openapi()["paths"]
CALLS = [(method.upper(), path) for path, of_path in PATHS.items() for method in of_path]
BODIES: dict[str, Any] = {"POST": SPEC, "PATCH": {"name": "first try"}}
OF_PATH: dict[str, Any] = {"/v1/runs/{run_id}/sentence-spec": {"sentence": "Two birds"}}
EXAMPLES = int(os.environ.get("OPENAPI_EXAMPLES", "2"))

BOUNDED = hypothesis.settings(
    max_examples=EXAMPLES,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def content_type(path: str) -> dict[str, str]:
    return {"Content-Type": "application/octet-stream" if path == "/v1/uploads" else "application/json"}


def described(app: Any) -> Any:
    project = ProjectConfig(generation=GenerationConfig(deterministic=True, codec="utf-8"))
    config = SchemathesisConfig(seed=1, projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config, headers=HOST)


def own_library(library, folder, method):
    """Return the library, or a copy of it for a call that changes runs."""
    changes_runs = method in ("PATCH", "DELETE")
    return copied(library, folder / "own", "tiny-0", "captured-0") if changes_runs else library


@pytest.fixture
def description(library, tmp_path, method):
    return described(client_of(own_library(library, tmp_path, method)).app)


CONFORMANCE = [status_code_conformance, content_type_conformance, response_schema_conformance]


def ask_all(operation: Any, **places: Any) -> None:
    """Send generated requests, both valid and invalid according to the description, and check each response."""
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @BOUNDED
        def ask(case: Any) -> None:
            case.path_parameters = {**(case.path_parameters or {}), **places}
            assert_as_described(case, case.call(headers=HOST))

        try:
            ask()
        except hypothesis.errors.Unsatisfiable:  # a call without parameters has no invalid request
            assert mode == GenerationMode.NEGATIVE


def assert_as_described(case: Any, response: Any) -> None:
    assert response.headers["x-content-type-options"] == ["nosniff"]
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
    has_no_cluster = response.status_code == 503 and case.path in ("/v1/jobs", "/v1/spec/estimate")
    case.validate_response(response, checks=CONFORMANCE if has_no_cluster else [not_a_server_error, *CONFORMANCE])


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_responses_to_generated_requests_are_as_described(description, method, path):
    ask_all(description[path][method])


@pytest.mark.parametrize(("method", "path"), [call for call in CALLS if "{run_id}" in call[1]])
def test_responses_about_an_existing_run_are_as_described(description, method, path):
    places = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in path}
    ask_all(description[path][method], **places)


@pytest.fixture(scope="module")
def locked(library, tmp_path_factory):
    """A client without a token, of a service that needs one."""
    store = copied(library, tmp_path_factory.mktemp("locked"), "captured-0")
    create_credential(store, ["read", "submit"])
    return client_of(store)


@pytest.fixture(scope="module")
def damaged(library, tmp_path_factory):
    """A client of a service whose run has a record that cannot be read."""
    store = tmp_path_factory.mktemp("damaged")
    copied(library, store, "tiny-0")
    (store / "runs" / "tiny-0" / "run.json").write_text("{}")
    return client_of(store)


@pytest.fixture(scope="module")
def hasty(library, tmp_path_factory):
    """A client whose second request within a minute is refused."""
    return client_of(copied(library, tmp_path_factory.mktemp("hasty"), "captured-0"), requests_per_minute=1)


@each("method, path", CALLS)
def test_every_call_without_a_token_returns_401(locked, method, path):
    url = path.format(**{**NAMES, "run_id": "captured-0"})
    content = {"content": b"{}", "headers": content_type(path)} if method in BODIES else {}
    answer = locked.request(method, url, **content)
    assert answer.status_code == (200 if path in PUBLIC else 401), answer.text


def slowed(app: Any) -> Any:
    """Return an app whose clients send their bodies slowly."""

    async def slow(scope: Any, receive: Any, send: Any) -> None:
        async def late() -> Any:
            await asyncio.sleep(0.05)
            return await receive()

        await app(scope, late, send)

    return slow


def reading_an_upload(store: Any) -> TestClient:
    """Return a client of a service with a survey job that reads an upload."""
    client = client_of(store, jobs_url=URL)
    client.post("/v1/uploads", params={"type": "csv"}, content=b"one", headers=content_type("/v1/uploads"))
    prompts = {**SPEC["prompts"], "mine": {"source": f"upload:{NAMES['upload']}"}}
    assert client.post("/v1/jobs", json={**SPEC, "prompts": prompts}).status_code == 202
    return client


@each("method, path", CALLS)
def test_an_operation_describes_exactly_the_problems_that_it_returns(
    library, client, hasty, damaged, locked, tmp_path, monkeypatch, ray, method, path
):
    """Provoke each kind of problem on each operation. No request provokes 500, which every operation describes."""
    operation = PATHS[path][method.lower()]
    returned = set()

    def ask(client: Any, headers: Any = (), **change: Any) -> None:
        params = dict(REQUIRED.get((method, path), {}))
        if "run_id" in change and "run" in params:
            params["run"] = change["run_id"]
        url = path.format(**{**NAMES, **change})
        body = {"content": json.dumps(OF_PATH.get(path, BODIES[method]))} if method in BODIES else {}
        sent = {**(content_type(path) if body else {}), **dict(headers)}
        returned.add(
            client.request(method, url, params=params | change.get("params", {}), headers=sent, **body).status_code
        )

    own = own_library(library, tmp_path, method)
    client = client if own == library else client_of(own)
    for headers in (
        {"If-None-Match": "*"},
        {"Content-Length": "2", "Transfer-Encoding": "chunked"},
        {"Content-Length": str(2**30)},
        {"Content-Type": "text/plain"},
        {"Accept": "image/png"},
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
    ):
        ask(client, headers)
    for run_id in ("nobody-0", "captured-0"):
        ask(client, run_id=run_id)
    for params in ({"nothing": 1}, {"cursor": base64.b32encode(b"1.another.").decode()}):
        ask(client, params=params)

    if "{upload}" in path:
        ask(reading_an_upload(tmp_path / "reading"))
    monkeypatch.setattr(bodies, "BODY_SECONDS", 0.01)
    monkeypatch.setattr(bodies, "UPLOAD_SECONDS", 0.01)
    ask(TestClient(slowed(client.app), "http://localhost"))
    for other in (hasty, hasty, damaged, locked):
        ask(other)

    def fail(_store: str) -> Any:
        raise StoreError("the store does not respond")

    monkeypatch.setattr("theodolite.api.access.list_credentials", fail)
    monkeypatch.setattr("theodolite.api.health.list_run_ids", fail)
    ask(client_of(library, requests_per_minute=1), bearer("unknown"))

    problems = {int(status) for status in operation["responses"] if status[0] != "2"}
    assert {status for status in returned if status >= 300} == problems - {500}
    assert 500 in problems


def test_the_description_of_a_problem_names_its_media_type_and_schema():
    schema = create_app(Settings(store="nowhere")).openapi()
    assert {"detail", "status", "title", "type"} == set(schema["components"]["schemas"]["ProblemDetails"]["properties"])
    for operations in schema["paths"].values():
        for operation in operations.values():
            for status, response in operation["responses"].items():
                if int(status) >= 400:
                    (media,) = response["content"].items()
                    reference = {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}
                    assert media == ("application/problem+json", reference)


def test_the_description_contains_the_schema_of_specs():
    """The body of a survey job refers to the schema of specs, whose references all exist."""
    schema = create_app(Settings(store="nowhere")).openapi()
    (body,) = schema["paths"]["/v1/jobs"]["post"]["requestBody"]["content"].values()
    assert body["schema"] == {"$ref": "#/components/schemas/SurveySpec"}
    references = set(re.findall(r'"#/components/schemas/(\w+)"', json.dumps(schema)))
    assert references <= schema["components"]["schemas"].keys()
    properties = schema["components"]["schemas"]["SurveySpec"]["properties"]
    assert properties.keys() == SurveySpec.model_fields.keys()
    assert not {"HTTPValidationError", "ValidationError"} & schema["components"]["schemas"].keys()
