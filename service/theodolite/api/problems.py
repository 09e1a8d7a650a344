"""Convert errors to RFC 9457 problem details: the problem, the given value, the allowed values."""

from http import HTTPStatus
from typing import Any

import orjson
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from theodolite import errors
from theodolite.api.methods import methods_at
from theodolite.errors import TheodoliteError
from theodolite.metrics import count_store_error

MEDIA_TYPE = "application/problem+json"

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
    content = {"type": f"urn:theodolite:{kind}", "title": title, "status": status, "detail": detail}
    return Response(orjson.dumps(content), status, headers, MEDIA_TYPE)


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
        details = dict.fromkeys(_detail(problem) for problem in error.errors())
        return problem_response(422, "invalid-request", "; ".join(details))

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


def _detail(problem: dict[str, Any]) -> str:
    field = ".".join(str(part) for part in problem["loc"][1:]) or "body"
    given = repr(problem.get("input"))
    shown = "" if problem["type"] == "missing" else f"given {given if len(given) < 60 else given[:57] + '…'}; "
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field}: {shown}{message[0].lower()}{message[1:]}"
