"""Remove a run from a store."""

from theodolite.store.labels import delete_labels
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.objects import delete, keys, links, open_location, remove_empty_folders, sweep_staged, unlink
from theodolite.store.runs import Run


def remove_run(run: Run) -> int:
    """Delete a run with its labels, and return the number of the run's objects. Links are removed and never followed.

    COMPLETE is deleted first, so that no reader takes the run for a complete one, and the record of the run last, so
    that an interrupted removal is listed and can be repeated.

    Raises:
        StoreError: the store refuses.
    """
    store = open_location(run.store)  # a local folder that becomes empty is removed only below its location
    stored = keys(store, f"runs/{run.id}")
    first, last = (f"runs/{run.id}/{key}" for key in (COMPLETE, RUN_RECORD))
    others = [key for key in stored if key not in (first, last)]
    for some in ([first], others, [last]):
        delete(store, [key for key in some if key in stored])
    unlink(store, links(store, f"runs/{run.id}"))
    sweep_staged(run.url, 0)
    remove_empty_folders(run.url)
    delete_labels(run)  # last: `change_labels` deletes what it writes without a record of the run
    return len(stored)
