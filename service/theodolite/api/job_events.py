"""Define the route that sends the changes of a survey job as server-sent events."""

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

MAX_STREAMS = 64
"""Maximum number of streams of events; a client without one can read the survey job again and again."""

_READS = anyio.CapacityLimiter(1)
"""Survey jobs are read in one thread for all streams: a slow cluster must not occupy those of other responses."""

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


async def _first(request: Request, caller: Reader, job_id: JobId) -> dict[str, Any]:
    """Return the survey job before the stream starts; raises Problem 429 if there are too many streams."""
    if request.app.state.streams >= MAX_STREAMS:
        detail = f"the service follows {MAX_STREAMS} survey jobs already, its maximum; read this one again later"
        raise Problem(429, "stream-limit", detail, {"Retry-After": "2"})
    return await _read(request, caller, job_id)


async def _read(request: Request, caller: Caller, job_id: str) -> dict[str, Any]:
    return await anyio.to_thread.run_sync(content_of_job, request, caller, job_id, limiter=_READS)


@router.get("/{job_id}/events", response_class=EventSourceResponse, responses=problems_of(404))
async def follow_job(
    request: Request, job_id: JobId, content: Annotated[dict[str, Any], Depends(_first)]
) -> AsyncIterator[ServerSentEvent]:
    """Send a survey job as the event `job`, at once and after each change, until the survey job ends.

    An error is the event `problem`, the last one.
    """
    state, sent = request.app.state, None
    if request.state.is_head:
        return
    state.streams += 1
    try:
        while not state.is_stopping():
            if content != sent:
                yield ServerSentEvent(event="job", raw_data=to_json(content).decode())
            if content["state"] not in UNFINISHED:
                return
            sent = content
            await anyio.sleep(SECONDS)
            caller = await reader(request, None)  # the token may be revoked
            content = await _read(request, caller, job_id)
    except (Problem, TheodoliteError) as error:
        yield ServerSentEvent(event="problem", raw_data=bytes(error_response(error).body).decode())
    finally:
        state.streams -= 1
