"""Define the routes of survey jobs: submit a survey, show its progress, read its logs, stop it."""

from functools import cache, partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import PlainTextResponse, Response

from theodolite.api.access import Caller, Reader, Submitter
from theodolite.api.encoding import JSON, to_json
from theodolite.api.job_schemas import CheckedSpec, Job, JobList, Sentence
from theodolite.api.openapi import SPEC_SCHEMA
from theodolite.api.paging import Cursor, Limit, next_cursor, start_of
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.api.run_lookup import RunId, complete_run
from theodolite.api.spec_policy import check_submission
from theodolite.query.runs import spec_of_results
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_file import parse_json, parse_spec
from theodolite.store.uploads import with_uploaded_texts
from theodolite.submission.job_store import StoredJob, read_jobs
from theodolite.submission.ray_jobs import ClusterState, cluster_logs
from theodolite.submission.sentences import sentence_spec
from theodolite.submission.surveys import job_content, job_states, stop_survey, submit_survey

router = APIRouter(prefix="/v1/jobs", tags=["jobs"])
spec_router = APIRouter(prefix="/v1", tags=["jobs"])
run_router = APIRouter(prefix="/v1/runs", tags=["jobs"])

JobId = Annotated[str, Path(pattern=r"^[0-9a-f]{64}$", description="Id of the survey job: the digest of its spec.")]

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
        "description": "A survey's spec as JSON.",
        "content": {JSON: {"schema": SPEC_SCHEMA, "example": _EXAMPLE}},
    }
}


async def spec_of_body(request: Request) -> SurveySpec:
    """Return the spec in a request's body; raises SpecError, or Problem 422 if the body is not a JSON object."""
    return await run_in_threadpool(_spec_of, await request.body())


def _spec_of(body: bytes) -> SurveySpec:
    try:
        data = parse_json(body)
    except ValueError as error:
        raise Problem(422, "invalid-json", f"the body cannot be read as JSON: {error}") from error
    if not isinstance(data, dict):
        raise Problem(422, "invalid-json", "the body is not a JSON object; /v1/spec.schema.json describes a spec")
    return parse_spec(data)


_Spec = Annotated[SurveySpec, Depends(spec_of_body)]


@spec_router.get("/spec.schema.json")
async def spec_schema() -> dict[str, Any]:
    """Return the JSON Schema of specs, with a description of every field."""
    return _schema()


@cache
def _schema() -> dict[str, Any]:
    return SurveySpec.model_json_schema()


@spec_router.post("/spec/check", responses={200: {"model": CheckedSpec}}, openapi_extra=_BODY)
def check_spec(request: Request, _caller: Reader, spec: _Spec) -> dict[str, Any]:
    """Validate a spec without submitting it; the `detail` of 422, 403 and 413 describes the error in it."""
    return _checked(request, spec)


@run_router.post("/{run_id}/sentence-spec", responses={200: {"model": CheckedSpec}, **problems_of(404, 409)})
def spec_of_sentence(request: Request, _caller: Reader, run_id: RunId, given: Sentence) -> dict[str, Any]:
    """Return the spec of a survey of a sentence's trajectory in the run's model; `POST /v1/jobs` submits it."""
    run = complete_run(request, run_id)
    return _checked(request, sentence_spec(run.record, given.sentence, umap=spec_of_results(run).words.umap))


def _checked(request: Request, spec: SurveySpec) -> dict[str, Any]:
    check_submission(spec, request.app.state.settings)
    job_id = with_uploaded_texts(spec).digest()
    has_cluster = request.app.state.settings.jobs_url is not None
    content = spec.model_dump(mode="json", exclude_none=True)
    return {"valid": True, "id": job_id, "has_cluster": has_cluster, "spec": content}


@router.post("", status_code=202, responses={202: {"model": Job}}, openapi_extra=_BODY)
def submit_job(request: Request, caller: Submitter, spec: _Spec) -> Response:
    """Submit a survey. The same spec is the same survey job: it resumes if it failed, was stopped or is lost."""
    settings: Settings = request.app.state.settings
    check_submission(spec, settings)
    job_id = submit_survey(settings, spec, caller.id, request.app.state.cache, partial(_check_job_limit, settings))
    return _one(request, caller, job_id, status=202)


@router.get("", responses={200: {"model": JobList}, **problems_of(409)})
def list_jobs(request: Request, caller: Reader, limit: Limit = 50, cursor: Cursor = None) -> Response:
    """Return the survey jobs, newest first."""
    stored, start = read_jobs(request.app.state.settings.store, request.app.state.cache), start_of(cursor)
    page = stored[start : start + limit]
    states = job_states(request.app.state.settings, page)
    items = [_content(request, caller, job, states[job.id]) for job in page]
    return Response(to_json({"items": items, "next": next_cursor(start + limit, len(stored))}), media_type=JSON)


@router.get("/{job_id}", responses={200: {"model": Job}, **problems_of(404)})
def show_job(request: Request, caller: Reader, job_id: JobId) -> Response:
    """Return one survey job: its state on the cluster, and its progress in the store."""
    return _one(request, caller, job_id)


@router.get("/{job_id}/logs", response_class=PlainTextResponse, responses=problems_of(404))
def read_logs(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """Return the output of the job's last attempt, only to the token that submitted it. Logs contain no prompts."""
    job = _own(request, caller, job_id)
    logs = cluster_logs(request.app.state.settings, job.attempt.submission) if job.attempt else None
    if logs is None:
        raise Problem(404, "logs-not-found", f"the cluster has no logs of job {job_id[:12]}…; it may have deleted them")
    return PlainTextResponse(logs)


@router.delete("/{job_id}", responses={200: {"model": Job}, **problems_of(404)})
def stop_job(request: Request, caller: Submitter, job_id: JobId) -> Response:
    """Stop a survey job, only for the token that submitted it. Submitting the same spec again resumes it."""
    stop_survey(request.app.state.settings, _own(request, caller, job_id))
    return _one(request, caller, job_id)


def _job(request: Request, job_id: str) -> StoredJob:
    stored = read_jobs(request.app.state.settings.store, request.app.state.cache, job_id)
    if not stored:
        raise Problem(404, "job-not-found", f"there is no job {job_id[:12]}…; a job's id is the digest of its spec")
    return stored[0]


def _own(request: Request, caller: Caller, job_id: str) -> StoredJob:
    job = _job(request, job_id)
    if not _is_owner(caller, job):
        raise Problem(403, "not-yours", "another token submitted this job; only that one may stop it and read its logs")
    return job


def _is_owner(caller: Caller, job: StoredJob) -> bool:
    return job.attempt is None or job.attempt.owner == caller.id


def _one(request: Request, caller: Caller, job_id: str, status: int = 200) -> Response:
    job = _job(request, job_id)
    content = _content(request, caller, job, job_states(request.app.state.settings, [job])[job_id])
    return Response(to_json(content), status, {"Location": f"/v1/jobs/{job_id}"} if status == 202 else None, JSON)


def _check_job_limit(settings: Settings, unfinished: int) -> None:
    if unfinished >= settings.jobs_per_token:
        detail = f"this token has {unfinished} jobs that have not ended, and {settings.jobs_per_token} are allowed"
        advice = "wait until one has ended, or stop one"
        raise Problem(429, "job-limit", f"{detail}; {advice}", {"Retry-After": "60"})


def _content(request: Request, caller: Caller, job: StoredJob, state: ClusterState) -> dict[str, Any]:
    content = job_content(request.app.state.settings, job, state, request.app.state.cache)
    is_owner = _is_owner(caller, job)
    if content["state"] == "failed" and not is_owner:
        content["reason"] = "shown only to the token that submitted the job"  # an error may quote the spec
    return {**content, "yours": "submit" in caller.scopes and is_owner}
