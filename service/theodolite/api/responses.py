"""The responses of a route for OpenAPI: the model of its content in each form, and its problems."""

from typing import Annotated, Any, Literal

from fastapi import Depends, Query
from pydantic import BaseModel

from theodolite.api.encoding import ARROW, CSV, HAS_ARROW, PARQUET
from theodolite.api.problems import MEDIA_TYPE

_TEXT: dict[str, Any] = {"schema": {"type": "string"}}
FILE: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
"""The schema of content that is not text."""


def _format(
    format: Annotated[
        Literal["json", "csv", "parquet", "arrow"] | None,
        Query(description="Form of the response; by default that of the header Accept, else JSON."),
    ] = None,
) -> None:
    """Declare the parameter of routes with several forms, which `encoding.choose_form` reads."""


FORMS = [Depends(_format)]
"""The dependencies of a route that offers CSV, Parquet and Arrow."""

UNCHANGED: dict[int | str, dict[str, Any]] = {
    304: {"description": "Not modified: If-None-Match contains the current ETag."}
}

_PROBLEMS = {
    400: "The request has both Content-Length and Transfer-Encoding, or its body has no end.",
    401: "The token is missing, unknown or expired.",
    403: "The request comes from another site, the token lacks the scope, or the deployment does not allow the spec.",
    404: "The run, the results or the job do not exist.",
    406: "The route offers none of the media types in Accept.",
    408: "The body did not arrive in time.",
    409: "The run is incomplete, damaged or in use, or its results changed after the previous page.",
    413: "The body is too long, or the spec exceeds a limit of the deployment.",
    415: "The Content-Type of the body is not application/json.",
    421: "The Host header is not a name of this service.",
    422: "A parameter or the body is invalid; `detail` lists the allowed values.",
    429: "The caller exceeds a limit; the header Retry-After contains the seconds to wait.",
    500: "The service failed; its log has the location of the error.",
    503: "The service cannot reach the store or the cluster.",
}


def described(model: type[BaseModel], *problems: int, flat: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of the responses of a route that calls `answer`.

    Args:
        model: the schema of the JSON response.
        problems: the statuses of the route's own problems; `openapi.py` adds those that the guard returns.
        flat: whether the route also offers CSV, Parquet and Arrow.
    """
    forms = {CSV: _TEXT, PARQUET: FILE, **({ARROW: FILE} if HAS_ARROW else {})} if flat else {}
    return {200: {"model": model, "content": forms}, **UNCHANGED, **problems_of(406, *problems)}


def problems_of(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return OpenAPI's description of problems with these statuses."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}
    problems: dict[int | str, dict[str, Any]] = {
        str(status): {"description": _PROBLEMS[status], "content": content} for status in statuses
    }
    if "429" in problems:
        problems["429"]["headers"] = {"Retry-After": {"required": True, "schema": {"type": "integer"}}}
    return problems
