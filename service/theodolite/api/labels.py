"""Define the routes that change a run after its survey: its labels, and its removal."""

from typing import Any

from fastapi import APIRouter, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import Response
from pydantic import ValidationError

from theodolite.api.access import Admin, Submitter
from theodolite.api.encoding import JSON
from theodolite.api.problems import Problem
from theodolite.api.run_lookup import RunId, any_run
from theodolite.api.schemas import LabelsOfRun, problems_of
from theodolite.errors import first_line
from theodolite.settings import Settings
from theodolite.spec_file import parse_json
from theodolite.store.labels import Labels, read_labels, write_labels
from theodolite.store.removal import remove_run
from theodolite.submission.job_store import read_jobs
from theodolite.submission.surveys import UNFINISHED, job_states

router = APIRouter(prefix="/v1/runs", tags=["runs"])

_EXAMPLE = {"name": "refusal, first try", "tags": ["paper"], "remarks": "Compare with the base model."}
_BODY = {
    "requestBody": {
        "required": True,
        "description": "The labels to replace; the others stay. `name: null` is the name of the spec again.",
        "content": {JSON: {"schema": Labels.model_json_schema(), "example": _EXAMPLE}},
    }
}


@router.patch("/{run_id}", responses={200: {"model": LabelsOfRun}, **problems_of(404, 409)}, openapi_extra=_BODY)
async def change_labels(request: Request, _caller: Submitter, run_id: RunId) -> dict[str, Any]:
    """Change the name, the tags or the remarks that lists and the page show with a run."""
    return await run_in_threadpool(_change, request, run_id, await request.body())


def _change(request: Request, run_id: str, body: bytes) -> dict[str, Any]:
    run = any_run(request, run_id)
    try:
        given = parse_json(body)
        if not isinstance(given, dict):
            raise ValueError("it is not a JSON object")
        labels = Labels.model_validate({**read_labels(run.store, run_id).model_dump(), **given})
    except ValidationError as error:
        raise Problem(422, "invalid-labels", "; ".join(map(_described, error.errors()))) from error
    except ValueError as error:
        raise Problem(422, "invalid-json", f"the body cannot be read as JSON: {first_line(error)}") from error
    write_labels(run.store, run_id, labels)
    return {"run_id": run_id, **labels.model_dump(mode="json")}


def _described(problem: Any) -> str:
    """Return a problem of the labels as a sentence: the field, and what is wrong."""
    field = ".".join(map(str, problem["loc"])) or "labels"
    message = problem["msg"].removeprefix("Value error, ")
    return f"{field}: {message[0].lower()}{message[1:]}"


@router.delete("/{run_id}", status_code=204, response_class=Response, responses=problems_of(404, 409))
def delete_run(request: Request, _caller: Admin, run_id: RunId) -> None:
    """Delete a run with all of its data, which cannot be restored; the survey can be run again."""
    run = any_run(request, run_id)
    if _is_surveyed(request.app.state.settings, request, run_id):
        detail = f"a survey job of {run_id} is queued or running; stop it, or delete the run when it has ended"
        raise Problem(409, "running", detail)
    remove_run(run)


def _is_surveyed(settings: Settings, request: Request, run_id: str) -> bool:
    """Return whether a survey job that writes to the run has not ended."""
    jobs = [job for job in read_jobs(settings.store, request.app.state.cache) if job.run_id == run_id and not job.end]
    return any(state.state in UNFINISHED for state in job_states(settings, jobs).values())
