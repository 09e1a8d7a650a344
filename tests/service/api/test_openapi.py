"""Check the service against its OpenAPI description with requests that schemathesis generates from a fixed seed."""

from collections.abc import Sequence
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
from support.serving import client_of, copied

from theodolite.api.app import create_app
from theodolite.api.credentials import create_credential
from theodolite.settings import Settings

HOST = {"Host": "localhost"}
PUBLIC = {"/healthz", "/readyz", "/v1/spec.schema.json"}
KNOWN = {"run_id": "tiny-0", "contrast": "refusal", "layer": 1, "head": 0, "prompt_set": "harmful", "sample": 3}

CALLS = [
    (method.upper(), path)
    for path, of_path in create_app(Settings(store="nowhere")).openapi()["paths"].items()
    for method in of_path
]

BOUNDED = hypothesis.settings(
    max_examples=8,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def described(app: Any) -> Any:
    project = ProjectConfig(generation=GenerationConfig(deterministic=True, codec="utf-8"))
    config = SchemathesisConfig(seed=1, projects=ProjectsConfig(default=project))
    return schemathesis.openapi.from_asgi("/openapi.json", app, config=config, headers=HOST)


@pytest.fixture(scope="module")
def description(client):
    return described(client.app)


BOTH = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)


def ask_all(operation: Any, check: Any, modes: Sequence[GenerationMode] = BOTH, **places: Any) -> None:
    """Send generated requests, both valid and invalid according to the description, and check each response."""
    for mode in modes:

        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        @BOUNDED
        def ask(case: Any) -> None:
            case.path_parameters = {**(case.path_parameters or {}), **places}
            check(case, case.call(headers=HOST))

        try:
            ask()
        except hypothesis.errors.Unsatisfiable:  # a call without parameters has no invalid request
            assert mode == GenerationMode.NEGATIVE


def assert_as_described(case: Any, response: Any) -> None:
    assert response.headers["x-content-type-options"] == ["nosniff"]
    if response.status_code >= 400:
        assert response.headers["content-type"] == ["application/problem+json"]
    if response.status_code == 503 and case.path == "/v1/jobs":  # there is no cluster
        return
    case.validate_response(response, checks=[not_a_server_error])


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_no_generated_request_makes_the_service_fail(description, method, path):
    ask_all(description[path][method], assert_as_described)


@pytest.mark.parametrize(("method", "path"), [call for call in CALLS if "{run_id}" in call[1]])
def test_no_generated_request_for_an_existing_run_makes_the_service_fail(description, method, path):
    places = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in path}
    ask_all(description[path][method], assert_as_described, **places)


@pytest.mark.parametrize(("method", "path"), CALLS)
def test_every_call_without_a_token_returns_401(library, tmp_path, method, path):
    store = copied(library, tmp_path, "captured-0")
    create_credential(store, ["read", "submit"])
    client = client_of(store)
    url = path.format(**{**KNOWN, "run_id": "captured-0", "job_id": "0" * 64, "name": "x", "group": "gram"})
    content = {"json": {}} if method == "POST" else {}
    answer = client.request(method, url, **content)
    assert answer.status_code == (200 if path in PUBLIC else 401), answer.text


CONFORMANCE = (status_code_conformance, content_type_conformance, response_schema_conformance)


@pytest.mark.parametrize(
    ("method", "path"),
    [call for call in CALLS if call[0] == "GET"],
)
def test_responses_conform_to_the_description(description, method, path):
    """For valid requests to an existing run, the description lists the status, content type and schema."""

    def assert_conforms(case: Any, response: Any) -> None:
        case.validate_response(response, checks=list(CONFORMANCE))

    places = {name: value for name, value in KNOWN.items() if f"{{{name}}}" in path}
    ask_all(description[path][method], assert_conforms, [GenerationMode.POSITIVE], **places)
