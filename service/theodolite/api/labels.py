"""Define the routes that change a run after its survey: its labels, and its deletion."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from theodolite.api.access import Admin, Submitter
from theodolite.api.json_bodies import body_of, described_body
from theodolite.api.problems import Problem
from theodolite.api.responses import problems_of
from theodolite.api.run_lookup import RunId, any_run
from theodolite.api.schemas import LabelsOfRun
from theodolite.store.labels import Labels, change_labels
from theodolite.store.removal import remove_run
from theodolite.submission.surveys import unfinished_jobs

router = APIRouter(prefix="/v1/runs", tags=["runs"])


@router.patch(
    "/{run_id}",
    responses=problems_of(404, 409),
    openapi_extra=described_body(Labels.model_json_schema(), "The labels to replace."),
)
def label_run(
    request: Request, _caller: Submitter, run_id: RunId, changes: Annotated[Labels, Depends(body_of(Labels))]
) -> LabelsOfRun:
    """Replace the given labels of a run, which lists and the page show with it; its other labels stay."""
    labels = change_labels(any_run(request, run_id), changes)
    return LabelsOfRun(run_id=run_id, **labels.model_dump())


@router.delete("/{run_id}", status_code=204, response_class=Response, responses=problems_of(404, 409))
def delete_run(request: Request, _caller: Admin, run_id: RunId) -> None:
    """Delete a run with all of its data. It cannot be restored; its survey can run again."""
    run = any_run(request, run_id)
    state = request.app.state
    jobs = unfinished_jobs(state.settings, state.cache, lambda job: job.run_id == run_id)
    if jobs:
        detail = f"survey job {jobs[0].id[:12]}… of {run_id} has not ended; stop it, or wait until it has ended"
        raise Problem(409, "run-in-use", detail)
    remove_run(run)
