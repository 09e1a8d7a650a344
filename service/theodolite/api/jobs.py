"""Define the routes of survey jobs: submit a survey, show its progress, read its logs, stop it."""

from functools import partial

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from theodolite.api.access import Reader, Submitter
from theodolite.api.encoding import JSON, to_json
from theodolite.api.job_lookup import JobId, content_of, content_of_job, find_own_job
from theodolite.api.job_schemas import Job, JobList
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.api.spec_policy import check_submission
from theodolite.api.specs import SPEC_BODY, SpecBody
from theodolite.api.upload_quota import check_quota
from theodolite.settings import Settings
from theodolite.store.uploads import texts_of
from theodolite.submission.job_store import read_jobs
from theodolite.submission.ray_jobs import cluster_logs
from theodolite.submission.surveys import job_states, stop_survey, submit_survey

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])


@router.post("", status_code=202, responses={202: {"model": Job}}, openapi_extra=SPEC_BODY)
def submit_job(request: Request, caller: Submitter, spec: SpecBody) -> Response:
    """Submit a survey. The same spec is the same survey job: it resumes if it failed, was stopped or is lost."""
    settings: Settings = request.app.state.settings
    check_submission(spec, settings)
    check_quota(settings, caller.id, texts_of(spec))
    job_id = submit_survey(settings, spec, caller.id, request.app.state.cache, partial(_check_job_limit, settings))
    content = content_of_job(request, caller, job_id)
    return Response(to_json(content), 202, {"Location": f"/v1/jobs/{job_id}"}, JSON)


@router.get("", responses={200: {"model": JobList}, **problems_of(409)})
def list_jobs(request: Request, caller: Reader, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Return the survey jobs, newest first."""
    stored, start = read_jobs(request.app.state.settings.store, request.app.state.cache), start_of(cursor)
    page = stored[start : start + limit]
    states = job_states(request.app.state.settings, page)
    items = [content_of(request, caller, job, states[job.id]) for job in page]
    return Response(to_json({"items": items, "next": next_cursor(start + limit, len(stored))}), media_type=JSON)


@router.get("/{job_id}", responses={200: {"model": Job}, **problems_of(404)})
def show_job(request: Request, caller: Reader, job_id: JobId) -> Response:
    """Return one survey job: its state on the cluster, and its progress in the store."""
    return Response(to_json(content_of_job(request, caller, job_id)), media_type=JSON)


@router.get("/{job_id}/logs", response_class=PlainTextResponse, responses=problems_of(404))
def read_logs(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """Return the output of the job's last attempt, only to the token that submitted it. Logs contain no prompts."""
    job = find_own_job(request, caller, job_id)
    logs = cluster_logs(request.app.state.settings, job.attempt.submission) if job.attempt else None
    if logs is None:
        raise Problem(404, "logs-not-found", f"the cluster has no logs of job {job_id[:12]}…; it may have deleted them")
    return PlainTextResponse(logs)


@router.delete("/{job_id}", responses={200: {"model": Job}, **problems_of(404)})
def stop_job(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """Stop a survey job, only for the token that submitted it. Submitting the same spec again resumes it."""
    stop_survey(request.app.state.settings, find_own_job(request, caller, job_id))
    return Response(to_json(content_of_job(request, caller, job_id)), media_type=JSON)


def _check_job_limit(settings: Settings, unfinished: int) -> None:
    if unfinished >= settings.jobs_per_token:
        detail = f"this token has {unfinished} jobs that have not ended, and {settings.jobs_per_token} are allowed"
        advice = "wait until one has ended, or stop one"
        raise Problem(429, "job-limit", f"{detail}; {advice}", {"Retry-After": "60"})
