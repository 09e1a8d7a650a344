"""Define the route that sends the changes of a survey job as server-sent events."""

import time
from collections import Counter
from collections.abc import AsyncIterator
from typing import Annotated, Any

import anyio.to_thread
from fastapi import APIRouter, Depends, Request
from fastapi.sse import EventSourceResponse, ServerSentEvent

from theodolite.api.access import Caller, Reader, reader
from theodolite.api.encoding import to_json
from theodolite.api.job_lookup import JobId, content_of_job
from theodolite.api.problems import Problem, error_response
from theodolite.api.responses import problems_of
from theodolite.errors import TheodoliteError
from theodolite.submission.surveys import UNFINISHED

SECONDS = 2.0
"""Time between two reads of a survey job."""

SECONDS_LOST = 30.0
"""Time for which a survey job may be `lost` before the events end: the cluster may not respond for a moment."""

MAX_STREAMS, MAX_STREAMS_OF_CALLER = 64, 16
"""Maximum numbers of streams of events; a client without one can read the survey job again and again."""

_READS = anyio.CapacityLimiter(1)
"""Survey jobs are read in one thread for all streams: a slow cluster must not occupy those of other responses."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


async def _place(request: Request, caller: Reader) -> AsyncIterator[None]:
    """Hold a place among the streams; raises Problem 429 if there are too many."""
    streams: Counter[str] = request.app.state.streams
    if streams.total() >= MAX_STREAMS or streams[caller.id] >= MAX_STREAMS_OF_CALLER:
        detail = f"{streams[caller.id]} streams of this caller are open, and {streams.total()} in all, the maximum"
        raise Problem(429, "stream-limit", f"{detail}; read the survey job again later", {"Retry-After": "2"})
    streams[caller.id] += 1
    try:
        yield
    finally:
        streams[caller.id] -= 1


async def _read(request: Request, caller: Reader, job_id: JobId) -> dict[str, Any]:
    return await anyio.to_thread.run_sync(content_of_job, request, caller, job_id, limiter=_READS)


@router.get(
    "/{job_id}/events",
    response_class=EventSourceResponse,
    responses=problems_of(404),
    dependencies=[Depends(_place)],
)
async def follow_job(
    request: Request, caller: Reader, job_id: JobId, content: Annotated[dict[str, Any], Depends(_read)]
) -> AsyncIterator[ServerSentEvent]:
    """Send a survey job as the event `job`, at once and after each change, until the survey job ends.

    An error is the event `problem`, the last one.
    """
    if request.state.is_head:
        return
    try:
        async for changed in _changes(request, caller, job_id, content):
            yield ServerSentEvent(event="job", raw_data=to_json(changed).decode())
    except (Problem, TheodoliteError) as error:
        yield ServerSentEvent(event="problem", raw_data=bytes(error_response(error).body).decode())


async def _changes(
    request: Request, caller: Caller, job_id: str, content: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yield the given content of a survey job, and each other one, until the survey job or the service ends."""
    yield content
    sent, known_at = content, time.monotonic()
    while content["state"] in (*UNFINISHED, "lost"):
        await anyio.sleep(SECONDS)
        if request.app.state.is_stopping():
            return
        content = await _read(request, caller, job_id)
        await reader(request, None)  # the token may be revoked
        is_lost = content["state"] == "lost"
        if not is_lost:
            known_at = time.monotonic()
        has_waited = time.monotonic() - known_at > SECONDS_LOST
        if content != sent and (has_waited or not is_lost):
            yield (sent := content)
        if is_lost and has_waited:
            return
