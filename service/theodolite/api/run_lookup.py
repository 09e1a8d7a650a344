"""Opening runs for a request: of complete ones, what is read is kept."""

from collections.abc import Iterable
from typing import Annotated

from fastapi import Path, Request

from theodolite import __version__
from theodolite.api.problems import Problem
from theodolite.errors import RunNotFoundError
from theodolite.query.runs import run_state
from theodolite.spec import digest_of
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run, find_run

RUN_ID = r"^[a-z0-9][a-z0-9._-]{0,120}$"

RunId = Annotated[
    str,
    Path(
        pattern=RUN_ID,
        description="A run's id, as `/v1/runs` lists them.",
        examples=["smollm2-135m-instruct-4e6f1ffc2d1b"],
    ),
]


def any_run(request: Request, run_id: str) -> Run:
    """Return a run, complete or not; raises RunNotFoundError, and else as `find_run` does."""
    run = find_run(request.app.state.settings.store, run_id, request.app.state.kept)
    if run is None:  # where the store lies, and what else is in it, is not said
        raise RunNotFoundError(f"there is no run {run_id!r}; /v1/runs lists those that there are")
    return run


def complete_run(request: Request, run_id: str) -> Run:
    """Return a complete run; raises Problem 409 for one that is not."""
    run = any_run(request, run_id)
    if not finished_groups(run):
        state = run_state(run)
        raise Problem(409, "incomplete", f"{run_id} is not complete but {state}; ask again when its job has ended")
    return run


def digest_over(run: Run, groups: Iterable[str] = ()) -> str:
    """Return the digest of one result group, or one over several; none are all that are finished."""
    finished = finished_groups(run)
    named = list(groups)
    if len(named) == 1 and named[0] in finished:
        return finished[named[0]]
    # What is said and drawn of several groups depends on the version that says it.
    return digest_of([__version__, {name: finished.get(name) for name in named or sorted(finished)}])
