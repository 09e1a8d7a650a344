"""Find survey jobs for the routes, and describe them to a caller."""

from typing import Annotated, Any

from fastapi import Path, Request

from theodolite.api.access import Caller
from theodolite.api.problems import Problem
from theodolite.store.cache import Cache
from theodolite.submission.job_store import StoredJob, read_jobs
from theodolite.submission.ray_jobs import ClusterState
from theodolite.submission.surveys import job_content, job_states

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Id of the survey job: the digest of its spec.")]


def find_job(request: Request, job_id: str) -> StoredJob:
    """Return a survey job; raises Problem 404 if there is none with this id."""
    cache: Cache = request.app.state.cache
    stored = read_jobs(request.app.state.settings.store, cache, job_id)
    if not stored:
        raise Problem(404, "job-not-found", f"there is no job {job_id[:12]}…; a job's id is the digest of its spec")
    return stored[0]


def find_own_job(request: Request, caller: Caller, job_id: str) -> StoredJob:
    """Return a survey job of the caller; raises Problem 403 if another token submitted it, and 404 if it is unknown."""
    job = find_job(request, job_id)
    if not _is_owner(caller, job):
        raise Problem(403, "not-yours", "another token submitted this job; only that one may stop it and read its logs")
    return job


def content_of(request: Request, caller: Caller, job: StoredJob, state: ClusterState) -> dict[str, Any]:
    """Return the description of a survey job in this state for a caller."""
    content = job_content(request.app.state.settings, job, state, request.app.state.cache)
    is_owner = _is_owner(caller, job)
    if content["state"] == "failed" and not is_owner:
        content["reason"] = "shown only to the token that submitted the job"  # an error may quote the spec
    return {**content, "yours": "submit" in caller.scopes and is_owner}


def content_of_job(request: Request, caller: Caller, job_id: str) -> dict[str, Any]:
    """Return the description of the survey job of an id, as it is now, for a caller."""
    job = find_job(request, job_id)
    return content_of(request, caller, job, job_states(request.app.state.settings, [job])[job_id])


def _is_owner(caller: Caller, job: StoredJob) -> bool:
    return job.attempt is None or job.attempt.owner == caller.id
