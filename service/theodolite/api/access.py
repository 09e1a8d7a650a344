"""Who asks, and what they may do."""

import asyncio
import time
from dataclasses import dataclass
from typing import Annotated

from fastapi import Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from theodolite.api.credentials import SCOPES, TokenRecord, find_token, had_tokens, list_tokens
from theodolite.api.guards import LOOPBACK
from theodolite.api.problems import Problem

_SECONDS_KEPT = 2.0
"""How long the list of tokens is not read again: as long does a revoked one still count."""

_bearer = HTTPBearer(auto_error=False, description="A token of `theodolite token create`.")
_Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]


@dataclass(frozen=True)
class Caller:
    """Who asks: a token's id, or `local` on a service without tokens, and what they may do."""

    id: str
    scopes: tuple[str, ...]


class Access:
    """Knows the tokens of a store.

    Args:
        store: the store.
        open_without_tokens: whether everybody may do everything while there are none; for loopback alone.
    """

    def __init__(self, store: str, *, open_without_tokens: bool) -> None:
        self.store, self.open_without_tokens = store, open_without_tokens
        self._looked = float("-inf")
        self._looking = asyncio.Lock()
        self._records: list[TokenRecord] = []
        self._is_open = False

    async def caller(self, token: str | None) -> Caller:
        """Return who asks; raises Problem 401 for a token that is missing, wrong or expired."""
        async with self._looking:  # one reads, and who waits finds what was read
            if time.monotonic() - self._looked > _SECONDS_KEPT:
                await run_in_threadpool(self._look)
        if self._is_open:
            return Caller("local", SCOPES)
        if token is None:
            raise _unauthorised("this service needs a token: Authorization: Bearer …")
        record = find_token(self._records, token)
        if record is None:
            raise _unauthorised("the token is not one of this service's")
        if record.is_expired():
            raise _unauthorised(f"the token expired at {record.expires}")
        return Caller(record.id, record.scopes)

    def _look(self) -> None:
        """Read the store's tokens."""
        began = time.monotonic()
        self._records = list_tokens(self.store)
        self._is_open = self.open_without_tokens and not self._records and not had_tokens(self.store)
        self._looked = began


# These are asked before every answer: what is no coroutine would go through a thread each time.
async def reader(request: Request, given: _Given) -> Caller:
    """Return who asks, if they may read."""
    return await _with_scope(request, given, "read")


async def submitter(request: Request, given: _Given) -> Caller:
    """Return who asks, if they may submit jobs."""
    return await _with_scope(request, given, "submit")


async def metrics_reader(request: Request, given: _Given) -> None:
    """Let through who may read, and whoever asks on loopback."""
    client = request.client.host if request.client else ""
    on_loopback = client in ("127.0.0.1", "::1") and request.url.hostname in {name.strip("[]") for name in LOOPBACK}
    if not on_loopback:
        await _with_scope(request, given, "read")


async def _with_scope(request: Request, given: HTTPAuthorizationCredentials | None, scope: str) -> Caller:
    caller: Caller = await request.app.state.access.caller(given.credentials if given else None)
    if scope not in caller.scopes:
        raise Problem(403, "scope", f"this token may {' and '.join(caller.scopes)}; this call needs the scope {scope}")
    return caller


def _unauthorised(detail: str) -> Problem:
    return Problem(401, "unauthorised", detail, {"WWW-Authenticate": "Bearer"})


Reader = Annotated[Caller, Depends(reader)]
Submitter = Annotated[Caller, Depends(submitter)]
