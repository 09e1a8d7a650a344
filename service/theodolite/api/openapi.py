"""Complete the OpenAPI description: the problems that each operation can return, and the schema of specs."""

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from fastapi import FastAPI

from theodolite.api.responses import problems_of
from theodolite.api.schemas import ProblemDetails
from theodolite.spec import SurveySpec

_REFERENCE = "#/components/schemas/{model}"

SPEC_SCHEMA = {"$ref": _REFERENCE.format(model=SurveySpec.__name__)}
"""The schema of a body that is a spec."""


def complete_openapi(app: FastAPI) -> None:
    """Make an app describe, besides the responses that its routes declare, the problems of its guard.

    An operation has no 405: the guard returns it for methods that are no operation.
    """
    plain = app.openapi

    @cache
    def complete() -> dict[str, Any]:
        schema = plain()
        for path, operations in schema["paths"].items():
            for operation in operations.values():
                responses = operation["responses"] | problems_of(*_guarded(path, operation))
                operation["responses"] = {status: responses[status] for status in sorted(responses)}
        # FastAPI adds the schemas of its own errors, which this service does not return.
        own = {"HTTPValidationError", "ValidationError"}
        declared = {name: one for name, one in schema["components"]["schemas"].items() if name not in own}
        schema["components"]["schemas"] = declared | _schemas()
        return schema

    app.openapi = complete  # type: ignore[method-assign]


def _guarded(path: str, operation: Mapping[str, Any]) -> Iterator[int]:
    """Yield the statuses that the checks before a route return."""
    yield from (400, 403, 413, 421, 500)
    if "security" in operation:
        yield from (401, 503)  # the credentials are in the store
    if "requestBody" in operation:
        yield from (408, 415)
    if path.startswith("/v1/"):
        yield from (422, 429, 503)  # the limit of requests reads the credentials too


def _schemas() -> dict[str, Any]:
    """Return the schemas of problems and of specs, with those of the parts of a spec beside them."""
    spec = SurveySpec.model_json_schema(ref_template=_REFERENCE)
    return {**spec.pop("$defs"), SurveySpec.__name__: spec, ProblemDetails.__name__: ProblemDetails.model_json_schema()}
