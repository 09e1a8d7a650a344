"""Survey and analyse a run again, and stop, or refuse the weights, on the way."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from support.damages import interrupt, opened, settings, store_of

from theodolite.errors import ModelError
from theodolite.spec import SurveySpec
from theodolite.store.manifest import finished_groups
from theodolite_jobs import analysis
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.progress import Console
from theodolite_jobs.requested import requested_spec
from theodolite_jobs.results.context import Context
from theodolite_jobs.survey import survey


def survey_again(run: Path, spec: SurveySpec) -> None:
    """Survey the model of a run again, into the same store."""
    survey(spec, Path(), settings(store_of(run)), Console())


@contextmanager
def killed_before(group: str) -> Iterator[None]:
    """Stop the analysis when it begins to compute a group."""
    compute = analysis._compute

    def stop(context: Context) -> None:
        if group in context.stale:
            interrupt()
        compute(context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "_compute", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def killed_after_the_passes() -> AbstractContextManager[None]:
    """Stop the analysis when the groups of the passes are written."""
    return killed_before("heads")


def analyse(run: Path) -> None:
    """Compute what was requested of a run and is missing."""
    analyse_run(opened(run), requested_spec(opened(run)), None, settings(store_of(run)), Console())


def assert_nothing_to_compute(run: Path) -> None:
    """Check that another analysis changes no result."""
    finished = finished_groups(opened(run))
    analyse(run)
    assert finished_groups(opened(run)) == finished


@contextmanager
def without_weights(error: Exception | None = None) -> Iterator[None]:
    """Raise an error when the weights are opened."""

    def refuse(*_arguments: object) -> None:
        raise error or ModelError("there are no weights")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(analysis, "_open_weights", refuse)
        yield
