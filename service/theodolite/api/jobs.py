"""Calls about jobs: submit a survey, see how far it is, read its logs, stop it."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from theodolite.api.access import Caller, Reader, Submitter
from theodolite.api.encoding import JSON, to_json
from theodolite.api.finished import any_run
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.problems import Problem
from theodolite.api.schemas import Job, JobList, described, problems_of
from theodolite.api.submission import check_submission
from theodolite.cluster.submit import (
    ClusterState,
    cluster_logs,
    cluster_state,
    cluster_states,
    stop,
    submit,
)
from theodolite.errors import ClusterError, ClusterRefusedError, StoreError
from theodolite.query.runs import progress
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_json, parse_spec
from theodolite.store.jobs import End, StoredJob, begin_attempt, end_attempt, read_jobs, store_spec, tell_sent
from theodolite.store.objects import absolute

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
spec_router = APIRouter(prefix="/v1", tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="The digest of the job's spec.")]

_UNFINISHED = ("queued", "running")
_SECONDS_TO_ARRIVE = 60
"""How long an attempt may be on its way to the cluster: it is written down before it is sent."""

_EXAMPLE = {
    "model": {"id": "smollm2-135m-instruct"},
    "prompts": {
        "harmful": {"source": "builtin:harmful", "limit": 32},
        "harmless": {"source": "builtin:harmless", "limit": 32},
    },
    "contrasts": {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}},
    "analyses": ["curves", "separation"],
}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "A survey, as `/v1/spec.schema.json` says.",
        "content": {JSON: {"schema": {"type": "object"}, "example": _EXAMPLE}},
    }
}


async def spec_of_body(request: Request) -> SurveySpec:
    """Return the spec that was sent; raises SpecError, or Problem 422 for what is no JSON object."""
    return await run_in_threadpool(_spec_of, await request.body())


def _spec_of(body: bytes) -> SurveySpec:
    try:
        data = parse_json(body)
    except ValueError as error:
        raise Problem(422, "invalid-json", f"the body cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise Problem(422, "invalid-json", "the body must be a JSON object, as /v1/spec.schema.json says")
    return parse_spec(data)


_Spec = Annotated[SurveySpec, Depends(spec_of_body)]


@spec_router.get("/spec.schema.json")
def spec_schema() -> dict[str, Any]:
    """The JSON Schema of specs, with a description of every field."""
    return SurveySpec.model_json_schema()


@spec_router.post("/spec/check", openapi_extra=_BODY)
def check_spec(request: Request, _caller: Reader, spec: _Spec) -> dict[str, Any]:
    """Whether a spec could be submitted; 422, 403 or 413 say what is wrong with it."""
    check_submission(spec, request.app.state.settings)
    return {"valid": True, "id": spec.digest(), "spec": spec.model_dump(mode="json", exclude_none=True)}


@router.post("", status_code=202, responses=described(Job, status=202), openapi_extra=_BODY)
def submit_job(request: Request, caller: Submitter, spec: _Spec) -> Response:
    """Submit a survey. The same spec again is the same job: it goes on where it was lost, failed or was stopped."""
    settings: Settings = request.app.state.settings
    check_submission(spec, settings)
    job_id, jobs = spec.digest(), read_jobs(settings.store, request.app.state.kept)
    # After the store, so that the cluster knows what the store says was sent; or 503: nothing is begun unseen.
    known = cluster_states(settings)
    found = next((job for job in jobs if job.id == job_id), None)
    state = _state(found, known, None).state if found else None
    if state not in (*_UNFINISHED, "succeeded"):
        _check_queue(settings, caller, jobs, known)
        store_spec(settings.store, spec)
        _begin(settings, job_id, (found.attempt.number if found and found.attempt else 0) + 1, caller)
    return _one(request, caller, job_id, status=202)


@router.get("", responses=described(JobList))
def list_jobs(request: Request, caller: Reader, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Jobs, the latest submitted first."""
    found, start = read_jobs(request.app.state.settings.store, request.app.state.kept), start_of(cursor)
    page = found[start : start + limit]
    states = _states(request.app.state.settings, page)
    items = [_content(request, caller, job, states[job.id]) for job in page]
    return Response(to_json({"items": items, "next": next_cursor(start + limit, len(found))}), media_type=JSON)


@router.get("/{job_id}", responses=described(Job))
def show_job(request: Request, caller: Reader, job_id: JobId) -> Response:
    """One job: its state, as the cluster says, and its progress, as the store does."""
    return _one(request, caller, job_id)


@router.get("/{job_id}/logs", response_class=PlainTextResponse, responses=problems_of())
def read_logs(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """What the job's last attempt has printed; for its owner alone. Logs hold no prompt."""
    job = _own(request, caller, job_id)
    logs = cluster_logs(request.app.state.settings, job.attempt.submission) if job.attempt else None
    if logs is None:
        raise Problem(404, "logs-not-found", f"the cluster has no logs of job {job_id[:12]}… any more")
    return PlainTextResponse(logs)


@router.delete("/{job_id}", responses=described(Job))
def stop_job(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """Stop a job; what was captured stays, and submitting the same spec again goes on. For its owner alone."""
    job, settings = _own(request, caller, job_id), request.app.state.settings
    if job.attempt and job.end is None:
        said = cluster_state(settings, job.attempt.submission)  # or 503: nothing is stopped where nobody answers
        if said is not None and said.state in _UNFINISHED:
            stop(settings, job.attempt.submission)
            end_attempt(settings.store, job_id, job.attempt.number, End("stopped"))
    return _one(request, caller, job_id)


def _job(request: Request, job_id: str) -> StoredJob:
    found = read_jobs(request.app.state.settings.store, request.app.state.kept, job_id)
    if not found:
        raise Problem(404, "job-not-found", f"there is no job {job_id[:12]}…; a job's id is the digest of its spec")
    return found[0]


def _own(request: Request, caller: Caller, job_id: str) -> StoredJob:
    job = _job(request, job_id)
    if not _is_owner(caller, job):
        raise Problem(403, "not-yours", "another token submitted this job; only that one stops it and reads its logs")
    return job


def _is_owner(caller: Caller, job: StoredJob) -> bool:
    return job.attempt is None or job.attempt.owner == caller.id


def _one(request: Request, caller: Caller, job_id: str, status: int = 200) -> Response:
    job = _job(request, job_id)
    content = _content(request, caller, job, _states(request.app.state.settings, [job])[job_id])
    return Response(to_json(content), status, {"Location": f"/v1/jobs/{job_id}"} if status == 202 else None, JSON)


def _begin(settings: Settings, job_id: str, number: int, caller: Caller) -> None:
    """Make the next attempt, unless somebody else just did."""
    attempt = begin_attempt(settings.store, job_id, number, caller.id)
    if attempt is None:
        return
    try:
        submit(settings, absolute(settings.store), job_id, attempt)
    except ClusterRefusedError as error:
        end_attempt(settings.store, job_id, number, End("failed", str(error)))
        raise
    # Any other error leaves open whether the cluster took it: its own answer will tell.
    tell_sent(settings.store, job_id, number)


def _check_queue(
    settings: Settings, caller: Caller, jobs: Sequence[StoredJob], known: Mapping[str, ClusterState | None]
) -> None:
    own = [job for job in jobs if job.attempt and job.attempt.owner == caller.id]
    waiting = [job for job in own if _state(job, known, None).state in _UNFINISHED]
    if len(waiting) >= settings.jobs_per_token:
        raise Problem(
            429,
            "job-limit",
            f"this token has {len(waiting)} jobs that have not ended, and {settings.jobs_per_token} are allowed; wait "
            "for one, or stop it",
            {"Retry-After": "60"},
        )


def _states(settings: Settings, jobs: list[StoredJob]) -> Mapping[str, ClusterState]:
    """Return the state of each job: how its last attempt ended, or else what the cluster says of it."""
    open_ones = [job for job in jobs if job.attempt and job.end is None]
    known: dict[str, ClusterState | None] = {}
    unreachable = None
    try:
        if len(open_ones) == 1 and open_ones[0].attempt:
            name = open_ones[0].attempt.submission
            known = {name: cluster_state(settings, name)}
        elif open_ones:
            known = dict(cluster_states(settings))
    except ClusterError as error:
        unreachable = str(error)
    return {job.id: _state(job, known, unreachable) for job in jobs}


def _state(job: StoredJob, known: Mapping[str, ClusterState | None], unreachable: str | None) -> ClusterState:
    if job.end is not None:
        return ClusterState(job.end.state, job.end.reason)
    if job.attempt is None:
        return ClusterState("lost", "it was never sent to the cluster; submit it again")
    said = known.get(job.attempt.submission)
    if said is not None:
        return said
    age = (datetime.now(UTC) - datetime.fromisoformat(job.attempt.submitted)).total_seconds()
    if unreachable is None and not job.sent and age < _SECONDS_TO_ARRIVE:
        return ClusterState("queued", None)
    return ClusterState("lost", unreachable or "the cluster does not know it any more; submit it again to go on")


def _content(request: Request, caller: Caller, job: StoredJob, state: ClusterState) -> dict[str, Any]:
    try:
        done = progress(any_run(request, job.run_id)) if job.run_id else {}
    except StoreError:  # it is known, and not begun; or it is damaged, which asking for the run itself says
        done = {}
    return {
        "id": job.id,
        "name": job.spec.name,
        "model": job.spec.model.id,
        "state": state.state,
        "attempt": job.attempt.number if job.attempt else 0,
        "submitted": job.attempt.submitted if job.attempt else "",
        # An error may name what the spec holds, which is its owner's.
        "reason": state.reason if state.state != "failed" or _is_owner(caller, job) else "only its owner sees why",
        "run_id": job.run_id,
        "progress": done,
        "yours": "submit" in caller.scopes and _is_owner(caller, job),
    }
