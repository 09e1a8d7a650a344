"""Compare a run in which memory ran out: halved batches give other bits, so its commit records are put to the test."""

from pathlib import Path
from typing import Any

import numpy as np

from chaos.damages import shard_of
from chaos.outcomes import Outcome, compare_keys, contents, records_of
from chaos.processes import capture_without_ray
from theodolite.settings import Settings
from theodolite.store.commits import read_commits
from theodolite.store.objects import delete
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run
from theodolite.store.shards import read_shard
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair

_COMPUTED = ("reduced/", "results.zarr/", "tables/")
_TOLERANCE = {"rtol": 1e-4, "atol": 1e-5}
"""Rounding errors of float32 in a model with small activations."""


def recaptured(run: Run, whole: Run, outcome: Outcome) -> tuple[dict[str, bytes], dict[str, Any]]:
    """Delete all arrays and results of a run, repair it, and return the objects and records that it must have again.

    The repair captures each shard in the batches of its record, so it must compute the same bits. An undisturbed run,
    `whole`, differs only in rounding errors: otherwise `outcome` says that the run is different.
    """
    expected, records = contents(run), records_of(run)
    compare_keys(expected, contents(whole), outcome)
    values = _values(run)
    outcome.different += [name for name, value in _values(whole).items() if not _is_close(values[name], value)]
    delete(run.location, [key for key in expected if _is_array_of_shard(key) or key.startswith(_COMPUTED)])
    with capture_without_ray():
        outcome.lost += repair(run.id, None, Path(), Settings(store=run.store), Console())
    return expected, records


def _is_array_of_shard(key: str) -> bool:
    return key.startswith("activations.zarr/") and shard_of(key) is not None


def _values(run: Run) -> dict[str, np.ndarray]:
    """Return the stored activations of each shard and site, and the means of all prompts."""
    stored = {
        f"{name}/{index}, {site}": read_shard(run, commit, site)
        for name in run.record.sets
        for index, commit in read_commits(run, name).items()
        if index < run.record.bounds(name).n_stored
        for site in run.record.spec.capture.all_sites
    }
    return stored | {"means": read_group(run, "moments")["mean"].values}


def _is_close(values: np.ndarray, expected: np.ndarray) -> bool:
    return values.shape == expected.shape and np.allclose(values, expected, **_TOLERANCE, equal_nan=True)
