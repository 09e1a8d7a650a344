"""Check each request before it reaches a route, and add security headers to each response."""

import logging
import traceback
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from theodolite.api.access import LOCAL, LOOPBACK, Caller, needed_scope
from theodolite.api.bodies import (
    UPLOADS,
    BodyRule,
    body_rule,
    check_declared_length,
    check_type,
    discard_body,
    read_body,
    replay,
)
from theodolite.api.methods import methods_at, route_at
from theodolite.api.problems import Problem, error_response, problem_response
from theodolite.api.rate_limits import RateLimit
from theodolite.api.shares import THREADS, BodyPlaces, Turns
from theodolite.errors import TheodoliteError

JSON_PLACES, UPLOAD_PLACES = (8, 32, 64), (2, 8, 16)
"""Maximum numbers of bodies in memory: of one caller, from one address, and in all (at most 64 MiB, and 16 uploads)."""

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
    """Middleware that rejects foreign hosts and origins, and bodies that are too long or whose caller lacks the scope.

    It also shares the service among the callers, answers HEAD and OPTIONS, and adds security headers.

    It checks `Host` and `Origin` on loopback too. Otherwise a page of any site could reach a service on loopback by a
    name that resolves to 127.0.0.1 (DNS rebinding).

    Args:
        app: the wrapped app.
        hosts: host names of the service, without ports, in addition to those of loopback.
        requests_per_minute: maximum number of requests to the API of one caller.
        upload_bytes: maximum size of an uploaded prompt file.
    """

    # Not Starlette's TrustedHostMiddleware: it returns 400 in plain text, and this API returns 421 as problem+json.

    def __init__(self, app: ASGIApp, hosts: Collection[str], requests_per_minute: int, upload_bytes: int) -> None:
        self.app, self.hosts, self._upload_bytes = app, LOOPBACK | {host.lower() for host in hosts}, upload_bytes
        self._limit = RateLimit(requests_per_minute)
        self._places, self._upload_places = BodyPlaces(*JSON_PLACES), BodyPlaces(*UPLOAD_PLACES)
        self._turns = Turns(THREADS - 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Reject the request, or pass it to the app."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        with ExitStack() as held:
            await self._answer(scope, receive, send, headers, held)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Mapping[str, str], held: ExitStack
    ) -> None:
        """Send the response; `held` gets what the request occupies, until the response is computed."""
        has_started = False

        async def with_headers(message: Message) -> None:
            nonlocal has_started
            if message["type"] == "http.response.body" and scope["method"] == "HEAD":
                message = {**message, "body": b""}
            if message["type"] == "http.response.start":
                has_started = True
                if any(name == b"content-length" for name, _ in message["headers"]):  # it is computed
                    held.close()  # a client may read the response slowly
                present = {name.lower() for name, _ in message["headers"]}
                extra = [(name.lower().encode(), value.encode()) for name, value in _HEADERS.items()]
                message["headers"] = [*message["headers"], *(pair for pair in extra if pair[0] not in present)]
            await send(message)

        body: bytes | None = None
        rule = body_rule(scope["path"], self._upload_bytes)
        try:
            self._check_head(scope, headers)
            check_declared_length(headers, rule)
            caller = await self._count(scope, headers) if scope["path"].startswith("/v1/") else None
            methods = methods_at(scope) if scope["method"] not in ("GET", "HEAD") else []
            if scope["method"] == "OPTIONS" and methods:
                await Response(status_code=204, headers={"Allow": ", ".join(methods)})(scope, receive, with_headers)
                return
            if scope["method"] in _WITH_BODY and scope["method"] in methods:
                check_type(headers, rule)
                body = await self._read_body(scope, receive, rule, held)
            if caller is not None and not _has_own_threads(scope):
                held.callback((await self._turns.take(caller)).release)
        except (Problem, TheodoliteError) as error:
            await _refuse(error_response(error), scope, receive, with_headers)
            return
        # The routes answer GET; the response to HEAD has the same headers and no body.
        scope["state"]["is_head"] = scope["method"] == "HEAD"
        asked = {**scope, "method": "GET"} if scope["state"]["is_head"] else scope
        try:
            await self.app(asked, receive if body is None else replay(body, receive), with_headers)
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

    def _check_head(self, scope: Scope, headers: Mapping[str, str]) -> None:
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

    async def _count(self, scope: Scope, headers: Mapping[str, str]) -> str:
        """Count a request, and return the name of its caller: the id of its token, or its address without a valid one.

        Raises:
            Problem: 429 if the caller has sent too many requests.
            StoreError: the credentials cannot be read.
        """
        name = await _name_of_caller(scope, headers)
        self._limit.count(name)
        return name

    async def _read_body(self, scope: Scope, receive: Receive, rule: BodyRule, held: ExitStack) -> bytes:
        """Return the body of a request, if its token has the scope that its route needs; `held` then holds a place.

        Raises:
            Problem: 401 or 403 before the body is read, 429 if there is no place, and as `read_body` does.
        """
        caller = await scope["app"].state.access.allow(scope, needed_scope(route_at(scope)))
        places = self._upload_places if scope["path"] == UPLOADS else self._places
        held.enter_context(places.taken(_name_of(caller, scope), _address(scope)))
        return await read_body(receive, rule)


def _has_own_threads(scope: Scope) -> bool:
    """Return whether the route of a request waits for the cluster, in other threads than those that compute."""
    path = str(scope["path"])
    return path == "/v1/spec/estimate" or path.endswith("/events")


async def _refuse(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send a response, and close the connection: what follows may be the body, and is no second request."""
    response.headers["Connection"] = "close"

    async def send_before_the_close(message: Message) -> None:
        if message["type"] == "http.response.body":
            await send({**message, "more_body": True})
            await discard_body(receive)
            message = {"type": "http.response.body", "body": b""}
        await send(message)

    await response(scope, receive, send_before_the_close)


async def _name_of_caller(scope: Scope, headers: Mapping[str, str]) -> str:
    """Return the id of the bearer token, or the client's address without a valid one; raises StoreError."""
    if "authorization" in headers:
        with suppress(Problem):
            return _name_of(await scope["app"].state.access.identify(scope), scope)
    return _address(scope)


def _name_of(caller: Caller, scope: Scope) -> str:
    return _address(scope) if caller.id == LOCAL else caller.id


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope["client"] else ""


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin, or None if it is malformed."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _name(host: str) -> str:
    """Return a host without its port."""
    return host if host.endswith("]") else host.rpartition(":")[0] or host
