"""Define the routes for liveness, readiness and metrics."""

import asyncio
import time
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from theodolite import metrics
from theodolite.api.access import metrics_reader
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.errors import StoreError
from theodolite.store.runs import list_run_ids

router = APIRouter(tags=["health"])

_METRICS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}

SECONDS_CACHED = 2.0
"""How long the state of the store is cached."""


class StoreCheck:
    """Checks whether a store can be reached, one check at a time: callers of /readyz need no token."""

    def __init__(self, store: str) -> None:
        """Check nothing before the first request."""
        self._store, self._checking = store, asyncio.Lock()
        self._checked_at = float("-inf")
        self._error: StoreError | None = None

    async def error(self) -> StoreError | None:
        """Return why the store cannot be reached, or None; the answer is at most `SECONDS_CACHED` old."""
        async with self._checking:  # one request checks, and waiting requests use its answer
            if time.monotonic() - self._checked_at > SECONDS_CACHED:
                self._error = await run_in_threadpool(self._check)
                self._checked_at = time.monotonic()
        return self._error

    def _check(self) -> StoreError | None:
        try:
            list_run_ids(self._store)
        except StoreError as error:
            metrics.count_store_error(error)
            return error
        return None


@router.get("/healthz")
async def alive() -> dict[str, str]:
    """Return 200 while the process runs."""
    return {"status": "alive"}


@router.get("/readyz", responses=problems_of(503))
async def ready(request: Request) -> dict[str, str]:
    """Return 200 if the service can reach the store, and 503 otherwise."""
    if error := await request.app.state.store_check.error():  # its message contains the URL of the store
        raise Problem(503, "store", "the store cannot be reached") from error
    return {"status": "ready"}


@router.get("/metrics", dependencies=[Depends(metrics_reader)], response_class=Response, responses=_METRICS)
def prometheus() -> Response:
    """Return the metrics in Prometheus' text format; needs a token with the scope read, except on loopback."""
    return Response(generate_latest(metrics.REGISTRY), media_type=CONTENT_TYPE_LATEST)
