"""Remove a run from a store, and notice that a run was removed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from time import monotonic

from theodolite.errors import RunNotFoundError, StoreError
from theodolite.store.labels import delete_labels, read_labels
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.leases import drop_dead_leases, refuse_in_use, wait_for_replicas
from theodolite.store.objects import (
    delete,
    keys,
    links,
    open_location,
    remove_empty_folders,
    sweep_staged,
    unlink,
    version,
)
from theodolite.store.runs import Run

_LOOK_SECONDS = 10.0
"""Time after which a driver looks again whether its run is still there."""


def remove_run(run: Run) -> int:
    """Delete a run with its labels, and return the number of the run's objects. Links are removed and never followed.

    COMPLETE is deleted first, so that no reader takes the run for a complete one, and the record of the run last, so
    that an interrupted removal is listed and can be repeated.

    Raises:
        RunInUseError: a driver works on the run.
        StoreError: the store refuses.
    """
    read_labels(run)  # raises before anything is deleted if their folder is a link
    refuse_in_use(run.store, run.id)
    wait_for_replicas(run.store, run.id)
    refuse_in_use(run.store, run.id)  # a driver may have started meanwhile
    store = open_location(run.store)  # a local folder that becomes empty is removed only below its location
    stored = keys(store, f"runs/{run.id}")
    first, last = (f"runs/{run.id}/{key}" for key in (COMPLETE, RUN_RECORD))
    others = [key for key in stored if key not in (first, last)]
    for some in ([first], others, [last]):
        delete(store, [key for key in some if key in stored])
    for folder in (f"runs/{run.id}", f"labels/{run.id}"):
        unlink(store, links(store, folder))
    sweep_staged(run.url, 0)
    remove_empty_folders(run.url)
    delete_labels(run)  # last: `change_labels` deletes what it writes without a record of the run
    drop_dead_leases(run.store, run.id)
    return len(stored)


@contextmanager
def unless_removed(run: Run) -> Iterator[Callable[[], None]]:
    """Raise RunNotFoundError at the end of the context if the run was removed meanwhile, whatever error that caused.

    Yields a function for the loops of the context: if some seconds have passed since the last look, it looks whether
    the run is still there, and raises the same error if it is not.
    """
    looked = monotonic()

    def look() -> None:
        nonlocal looked
        if monotonic() - looked > _LOOK_SECONDS:
            looked = monotonic()
            if _is_removed(run):
                raise _removed(run)

    try:
        yield look
    except Exception as error:
        if _is_removed(run):
            raise _removed(run) from error
        raise
    if _is_removed(run):
        raise _removed(run)


def _is_removed(run: Run) -> bool:
    """Return whether the store says that the run is gone; a store that does not respond says nothing."""
    with suppress(StoreError):
        return version(run.location, RUN_RECORD) is None
    return False


def _removed(run: Run) -> RunNotFoundError:
    return RunNotFoundError(
        f"{run.id}: the run was removed while this process worked on it; run the survey again, or delete what is left "
        f"in {run.url}"
    )
