"""Authenticate callers by bearer token, and check their scopes."""

import asyncio
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from starlette.datastructures import Headers
from starlette.types import Scope

from theodolite.api.credentials import SCOPES, Credential, find_credential, had_credentials, list_credentials
from theodolite.api.problems import Problem
from theodolite.api.token_uses import Uses

SECONDS_CACHED = 2.0
"""Default for how long the list of credentials is cached; a revoked token is valid for at most as long."""

LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

LOCAL = "local"
"""The id of every caller of a service without tokens."""

_FORWARDED = ("forwarded", "via", "x-forwarded-", "x-real-ip")
"""Headers that proxies add, or how their names begin."""

_bearer = HTTPBearer(auto_error=False, description="A bearer token that `theodolite token create` printed.")
_Documented = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
"""Adds the bearer token to the schema of a route; `Access.caller` reads the header."""


@dataclass(frozen=True)
class Caller:
    """A caller: the id of its credential (`local` on a service without tokens) and its scopes."""

    id: str
    scopes: tuple[str, ...]


class Access:
    """Authenticates the callers of a service by the credentials in its store.

    Args:
        store: URL of the store.
        open_without_tokens: whether every caller has all scopes while there are no tokens; only for loopback.
        seconds_cached: how long the list of credentials is cached.
    """

    def __init__(self, store: str, *, open_without_tokens: bool, seconds_cached: float = SECONDS_CACHED) -> None:
        self.store, self.open_without_tokens, self.seconds_cached = store, open_without_tokens, seconds_cached
        self.clock = time.monotonic
        self._read_at = float("-inf")
        self._reading = asyncio.Lock()
        self._credentials: list[Credential] = []
        self._is_open = False
        self._uses = Uses(store)

    async def caller(self, headers: Mapping[str, str]) -> Caller:
        """Return the caller of a request with these headers; their names are in lower case.

        Raises:
            Problem: 401 if the bearer token is missing, unknown or expired; 403 if the request came through a proxy
                while the service has no tokens.
        """
        async with self._reading:  # one request reads the list, and waiting requests use it
            if self.clock() - self._read_at > self.seconds_cached:
                await run_in_threadpool(self._read)
        if self._is_open and _is_forwarded(headers):
            raise Problem(
                403,
                "forwarded",
                "the request came through a proxy, and this service has no tokens, so only programs on this machine "
                "may use it; create a token with `theodolite token create`",
            )
        if self._is_open:
            return Caller(LOCAL, SCOPES)
        scheme, token = get_authorization_scheme_param(headers.get("authorization"))
        if scheme.lower() != "bearer" or not token:
            raise _unauthorised(
                "this service needs a token: send `Authorization: Bearer TOKEN`, a token from `theodolite token create`"
            )
        credential = find_credential(self._credentials, token)
        if credential is None:
            raise _unauthorised("the token is unknown to this service; create one with `theodolite token create`")
        if credential.is_expired():
            raise _unauthorised(f"the token expired at {credential.expires}; create one with `theodolite token create`")
        return Caller(credential.id, credential.scopes)

    async def identify(self, scope: Scope) -> Caller:
        """Return the caller of a request, remember it in the request's state, and store that its token was used.

        It raises as `caller` does.
        """
        found = await self.caller(Headers(scope=scope))
        scope["state"]["caller"] = found
        if found.id != LOCAL:
            self._uses.record(found.id)
        return found

    async def allow(self, scope: Scope, needed: str) -> Caller:
        """Return the caller of a request whose route needs a scope.

        Raises:
            Problem: as `caller` does; and 403 if the token lacks the scope.
        """
        found = await self.identify(scope)
        if needed not in found.scopes:
            scopes = " and ".join(found.scopes)
            raise Problem(403, "scope", f"the token has the scope {scopes}, but this call needs the scope {needed}")
        return found

    def _read(self) -> None:
        """Read the store's credentials; their age counts from the start of the read, since a store may be slow."""
        start = self.clock()
        self._credentials = list_credentials(self.store)
        self._is_open = self.open_without_tokens and not self._credentials and not had_credentials(self.store)
        self._read_at = start


# Coroutines, since every request calls one of them: FastAPI would run a plain function in a thread.
async def reader(request: Request, _bearer: _Documented) -> Caller:
    """Return the caller; raises Problem 403 if its token lacks the scope read."""
    return await _allow(request, "read")


async def submitter(request: Request, _bearer: _Documented) -> Caller:
    """Return the caller; raises Problem 403 if its token lacks the scope submit."""
    return await _allow(request, "submit")


async def admin(request: Request, _bearer: _Documented) -> Caller:
    """Return the caller; raises Problem 403 if its token lacks the scope admin."""
    return await _allow(request, "admin")


async def metrics_reader(request: Request, _bearer: _Documented) -> None:
    """Accept callers on loopback, and callers with the scope read."""
    client = request.client.host if request.client else ""
    names = {name.strip("[]") for name in LOOPBACK}
    on_loopback = client in ("127.0.0.1", "::1") and request.url.hostname in names
    if not on_loopback or _is_forwarded(request.headers):
        await _allow(request, "read")


def needed_scope(route: APIRoute) -> str:
    """Return the scope that the dependencies of a route check; every route with a body checks one."""
    return next(_SCOPE_OF[one.call] for one in _dependencies(route.dependant) if one.call in _SCOPE_OF)


def _dependencies(dependant: Dependant) -> Iterator[Dependant]:
    for one in dependant.dependencies:
        yield one
        yield from _dependencies(one)


async def _allow(request: Request, needed: str) -> Caller:
    allowed: Caller = await request.app.state.access.allow(request.scope, needed)
    return allowed


def _is_forwarded(headers: Mapping[str, str]) -> bool:
    """Return whether a proxy has passed the request on; it may have replaced Host by a name of loopback."""
    return any(name.startswith(_FORWARDED) for name in headers)


def _unauthorised(detail: str) -> Problem:
    return Problem(401, "unauthorised", detail, {"WWW-Authenticate": "Bearer"})


_SCOPE_OF: dict[Any, str] = {reader: "read", submitter: "submit", admin: "admin"}

Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
Admin = Annotated[Caller, Depends(admin)]
