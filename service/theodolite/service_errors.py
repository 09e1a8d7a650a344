"""Convert the error responses of a service to errors, and tell which requests can be repeated."""

import httpx

from theodolite import errors
from theodolite.errors import ClusterError, ResultsNotFoundError, ServiceError, SpecError, TheodoliteError


def error_of(response: httpx.Response, url: str) -> TheodoliteError:
    """Return the error of an error response of the service at a URL: by its problem type, or else by its status."""
    kind, detail = _problem(response)
    if not kind:
        status = f"{response.status_code} {response.reason_phrase}".strip()
        return ServiceError(f"{url} answered {status}, which is not a response of a Theodolite service; check the URL")
    if response.status_code in (401, 403) and kind in ("unauthorised", "scope"):
        return ServiceError(f"{url}: {detail}; pass the token to the client: Client(url, token=…)")
    by_status: dict[int, type[TheodoliteError]] = {422: SpecError, 503: ClusterError}
    return _KINDS.get(kind, by_status.get(response.status_code, TheodoliteError))(detail)


_KINDS: dict[str, type[TheodoliteError]] = {
    **{error.kind(): error for error in vars(errors).values() if hasattr(error, "kind")},
    **dict.fromkeys(("incomplete", "section-not-found"), ResultsNotFoundError),
}
"""The error classes by problem type; `run-not-found` is RunNotFoundError."""

_REFUSED_UNREAD = ("rate-limit", "body-limit")
"""The problem types of requests that the service has not read, so that they can be repeated."""


def seconds_to_wait(response: httpx.Response) -> float | None:
    """Return after how many seconds a refused request should be repeated, or None if it should not."""
    return float(response.headers["Retry-After"]) if _problem(response)[0] in _REFUSED_UNREAD else None


def _problem(response: httpx.Response) -> tuple[str, str]:
    """Return the type of a problem without its prefix, and its detail; empty for another response."""
    try:
        content = response.json()
        return content["type"].removeprefix("urn:theodolite:"), content["detail"]
    except (ValueError, KeyError, TypeError, AttributeError):
        return "", ""
