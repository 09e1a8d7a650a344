"""Check each request before it reaches a route, and add security headers to each response."""

import asyncio
import logging
import traceback
from collections.abc import Collection, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from theodolite.api.methods import methods_at
from theodolite.api.problems import Problem, error_response, problem_response
from theodolite.api.rate_limits import RateLimit
from theodolite.errors import TheodoliteError

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

BODY_BYTES = 2**20
"""Maximum size of a request's body. A spec has a few kilobytes, but its sentences may be long."""

BODY_SECONDS = 10.0
"""Time in which a request's body must arrive."""

MAX_BODIES = 16
"""Maximum number of bodies that are read at the same time; other requests wait."""

_WITH_BODY = ("POST", "PUT", "PATCH")

_log = logging.getLogger(__name__)
"""Logs the type and the location of an error, but not its message, which may contain text of a user."""

_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # Allows inline styles: Plotly sets them from script.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
}


class Guard:
    """Middleware that rejects foreign hosts and origins, and bodies that are long, not JSON, or without a credential.

    It also answers HEAD and OPTIONS, and adds security headers.

    It checks `Host` and `Origin` on loopback too. Otherwise a page of any site could reach a service on loopback by a
    name that resolves to 127.0.0.1 (DNS rebinding).

    Args:
        app: the wrapped app.
        hosts: host names of the service, without ports, in addition to those of loopback.
        requests_per_minute: maximum number of requests to the API of one caller; None is no limit.
    """

    # Not Starlette's TrustedHostMiddleware: it returns 400 in plain text, and this API returns 421 as problem+json.

    def __init__(self, app: ASGIApp, hosts: Collection[str] = (), requests_per_minute: int | None = None) -> None:
        self.app, self.hosts = app, LOOPBACK | {host.lower() for host in hosts}
        self._limit = RateLimit(requests_per_minute) if requests_per_minute else None
        self._bodies = asyncio.Semaphore(MAX_BODIES)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it to the app."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}

        has_started = False

        async def with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.body" and scope["method"] == "HEAD":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                has_started = True
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in present)]
            await send(message)

        body: bytes | None = None
        try:
            self._check_head(scope, headers)
            if self._limit and scope["path"].startswith("/v1/"):  # not the page's many files, nor probes
                self._limit.count(await _name_of_caller(scope, headers))
            methods = methods_at(scope) if scope["method"] not in ("GET", "HEAD") else []
            if scope["method"] == "OPTIONS" and methods:
                await Response(status_code=204, headers={"Allow": ", ".join(methods)})(scope, receive, with_headers)
                return
            if scope["method"] in _WITH_BODY and scope["method"] in methods:
                _check_type(headers)
                # Only a caller with a credential may occupy memory with a body.
                await scope["app"].state.access.identify(scope)
                async with self._bodies:
                    body = await _read_body(receive)
        except (Problem, TheodoliteError) as error:
            response = error_response(error)
            response.headers["Connection"] = "close"  # what follows may be the body, and is no second request
            await response(scope, receive, with_headers)
            return
        # The routes answer GET; the response to HEAD has the same headers and no body.
        asked = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            await self.app(asked, receive if body is None else _replay(body, receive), with_headers)
        except Exception as error:
            place = "".join(traceback.format_tb(error.__traceback__)[-3:])
            _log.error("request %s: %s in %s", scope["state"]["request_id"], type(error).__name__, place)
            if has_started:
                raise
            detail = "the service failed on this request; its log has the location of the error"
            await problem_response(500, "internal", detail)(scope, receive, with_headers)
        finally:
            if "route" in asked:
                scope["route"] = asked["route"]  # the metrics of HEAD requests name it

    def _check_head(self, scope: Scope, headers: dict[str, str]) -> None:
        """Raise Problem if the service does not accept a request with this head."""
        if {"content-length", "transfer-encoding"} <= headers.keys():
            # A proxy that believes the other one would take the rest of the body for a second request.
            detail = "the request has both Content-Length and Transfer-Encoding; send one of them"
            raise Problem(400, "ambiguous-length", detail)
        host = headers.get("host", "").lower()
        if _name(host) not in self.hosts:
            detail = f"Host: given {host!r}; allowed: {', '.join(sorted(self.hosts))}"
            raise Problem(421, "foreign-host", f"{detail}; add a name to THEODOLITE_HOSTS")
        origin = headers.get("origin")
        if origin is not None and _netloc(origin) != host:
            raise Problem(
                403, "foreign-origin", f"Origin: given {origin!r}; pages of other sites may not call this service"
            )
        declared = headers.get("content-length", "0")
        if declared.isascii() and declared.isdigit() and (len(declared) > 18 or int(declared) > BODY_BYTES):
            raise _too_long()


async def _name_of_caller(scope: Scope, headers: Mapping[str, str]) -> str:
    """Return the id of the bearer token, or the client's address without a valid one; raises StoreError."""
    if "authorization" in headers:
        with suppress(Problem):
            return str((await scope["app"].state.access.identify(scope)).id)
    return scope["client"][0] if scope["client"] else ""


def _check_type(headers: Mapping[str, str]) -> None:
    """Raise Problem if a body is not JSON."""
    kind = headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Problem(415, "not-json", f"Content-Type: given {kind!r}; allowed: application/json")


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin, or None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return a host without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host


async def _read_body(receive: Receive) -> bytes:
    """Return the body; raise Problem 413 if it is longer than BODY_BYTES, 408 if it takes longer than BODY_SECONDS."""
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            while len(body) <= BODY_BYTES:
                message: Any = await receive()
                body += message.get("body", b"")
                if message["type"] != "http.request" or not message.get("more_body", False):
                    break
    except TimeoutError:
        detail = f"the body did not arrive within {BODY_SECONDS:.0f} seconds; send the request again"
        raise Problem(408, "body-too-slow", detail) from None
    if len(body) > BODY_BYTES:
        raise _too_long()
    return bytes(body)


def _too_long() -> Problem:
    detail = f"the body is longer than the limit of {BODY_BYTES} bytes; shorten the spec"
    return Problem(413, "body-too-long", detail)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns the body that was read, and then the messages of the server."""
    pending = [body]

    async def replayed() -> Message:
        return {"type": "http.request", "body": pending.pop(), "more_body": False} if pending else await receive()

    return replayed
