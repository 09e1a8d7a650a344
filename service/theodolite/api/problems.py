"""Convert errors to RFC 9457 problem details: the problem, the given value, the allowed values."""

from collections.abc import Sequence
from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from theodolite import errors
from theodolite.api.methods import methods_at
from theodolite.errors import TheodoliteError, short
from theodolite.metrics import count_store_error

MEDIA_TYPE = "application/problem+json"

_MOST_BYTES = 9_600
"""Maximum size of `detail` as JSON: a few bytes of a request must not give an answer of megabytes."""

_MOST_ENTRIES = 20
"""Maximum number of invalid fields or parameters that a problem names."""

_STATUS: dict[type[TheodoliteError], int] = {
    errors.SpecError: 422,
    errors.RunNotFoundError: 404,
    errors.ResultsNotFoundError: 404,
    errors.FigureNotFoundError: 404,
    errors.TableNotFoundError: 404,
    errors.RunInUseError: 409,
    errors.RunDamagedError: 409,
    errors.StoreVersionError: 409,
    errors.StoreError: 503,
    errors.ClusterError: 503,
    TheodoliteError: 422,
}
"""HTTP status of each error class; a class that is not listed has its parent's status."""


class Problem(Exception):
    """An error response.

    Args:
        status: the HTTP status.
        kind: the last part of `type`, such as `job-limit`.
        detail: the problem, the given value, the allowed values.
        headers: additional headers of the response.
    """

    def __init__(self, status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status, self.kind, self.detail, self.headers = status, kind, detail, headers or {}


def problem_response(status: int, kind: str, detail: str, headers: dict[str, str] | None = None) -> Response:
    """Return a problem as a response; its `type` is a URN, not a URL."""
    title = HTTPStatus(status).phrase
    content = {"type": f"urn:theodolite:{kind}", "title": title, "status": status, "detail": _bounded(detail)}
    return Response(orjson.dumps(content), status, headers, MEDIA_TYPE)


def _bounded(detail: str) -> str:
    """Return a text, cut if it is too long; JSON writes a character in at most 6 bytes."""
    if len(orjson.dumps(detail)) <= _MOST_BYTES:
        return detail
    kept = detail[: _MOST_BYTES // 6]
    return f"{kept}… ({len(detail) - len(kept)} more characters)"


def error_response(error: Problem | TheodoliteError) -> Response:
    """Return an error as a response."""
    if isinstance(error, Problem):
        return problem_response(error.status, error.kind, error.detail, error.headers)
    status = next(_STATUS[parent] for parent in type(error).__mro__ if parent in _STATUS)
    count_store_error(error)
    return problem_response(status, error.kind(), str(error))


def add_handlers(app: FastAPI) -> None:
    """Make an app return every error as a problem."""

    @app.exception_handler(Problem)
    def _(_request: Request, problem: Problem) -> Response:
        return error_response(problem)

    @app.exception_handler(TheodoliteError)
    def _(_request: Request, error: TheodoliteError) -> Response:
        return error_response(error)

    @app.exception_handler(RequestValidationError)
    def _(_request: Request, error: RequestValidationError) -> Response:
        problems = [{**one, "loc": one["loc"][1:]} for one in error.errors()]
        return error_response(invalid_request(problems, len(problems)))

    @app.exception_handler(HTTPException)
    def _(request: Request, error: HTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:  # Starlette names the methods of one route; a path can have several
            headers["Allow"] = ", ".join(methods_at(request.scope))
        details = {
            404: f"there is no page or file at {request.url.path}",
            405: f"{request.method} is not allowed for {request.url.path}; allowed: {headers.get('Allow')}",
        }
        detail = details.get(error.status_code, str(error.detail))
        return problem_response(error.status_code, "http", detail, headers)


def invalid_request(errors: Sequence[Any], count: int) -> Problem:
    """Return the problem of a request whose parameters or body are invalid, from (the first of) Pydantic's errors."""
    details = dict.fromkeys(map(_detail, errors[:_MOST_ENTRIES]))
    more = [f"and {count - _MOST_ENTRIES} more"] if count > _MOST_ENTRIES else []
    return Problem(422, "invalid-request", "; ".join([*details, *more]))


def _detail(problem: Any) -> str:
    field = ".".join(str(part) for part in problem["loc"]) or "body"
    shown = "" if problem["type"] == "missing" or "input" not in problem else f"given {short(problem['input'])}; "
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field[:200]}: {shown}{message[0].lower()}{message[1:]}"
