"""Open the run of a request, with the service's cache."""

from collections.abc import Iterable
from typing import Annotated

from fastapi import Path, Request

from theodolite.api.problems import Problem
from theodolite.digests import digest_of
from theodolite.errors import RunNotFoundError
from theodolite.query.runs import run_state
from theodolite.query.twin import COMPARED, twin_state
from theodolite.store.manifest import finished_groups
from theodolite.store.runs import Run, find_run
from theodolite.version import __version__

RUN_ID = r"^[a-z0-9][a-z0-9._-]{0,120}$"

RunId = Annotated[
    str,
    Path(
        pattern=RUN_ID,
        description="Id of the run; `/v1/runs` lists them.",
        examples=["smollm2-135m-instruct-119a33e2a535"],
    ),
]


def any_run(request: Request, run_id: str) -> Run:
    """Return a run, complete or not; raises RunNotFoundError, and otherwise as `find_run` does."""
    run = find_run(request.app.state.settings.store, run_id, request.app.state.cache)
    if run is None:  # the message contains neither the store's URL nor ids of other runs
        raise RunNotFoundError(f"there is no run {run_id!r}; /v1/runs lists the existing runs")
    return run


def complete_run(request: Request, run_id: str) -> Run:
    """Return a complete run; raises Problem 409 if it is not complete."""
    run = any_run(request, run_id)
    if not finished_groups(run):
        state = run_state(run)
        detail = f"{run_id} is not complete: its state is {state}; retry when its survey has finished"
        raise Problem(409, "incomplete", detail)
    return run


def digest_over(run: Run, groups: Iterable[str] = ()) -> str:
    """Return the digest of one analysis, or a digest over several; no names select all finished analyses."""
    finished = finished_groups(run)
    named = list(groups)
    if len(named) == 1 and named[0] in finished:
        return finished[named[0]]
    # Sentences and figures over several groups also depend on the version of this package.
    return digest_of([__version__, {name: finished.get(name) for name in named or sorted(finished)}])


def digest_of_section(run: Run, group: str) -> str:
    """Return the digest of the sections and figures of a group, which may contain results of the untrained twin."""
    return digest_with_twin(run) if group in COMPARED else digest_over(run)


def digest_with_twin(run: Run) -> str:
    """Return a digest over all results of a run and those of its untrained twin, if there is one."""
    state = twin_state(run)
    return digest_of([digest_over(run), state]) if state else digest_over(run)
