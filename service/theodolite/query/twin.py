"""Find the untrained twin of a run: a run of the same model with random weights, on the same prompts."""

from collections.abc import Iterator
from contextlib import suppress

import xarray as xr

from theodolite.digests import digest_of
from theodolite.errors import StoreError
from theodolite.query.auroc_difference import auroc_difference
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite.store.runs import RANDOM_WEIGHTS, Run, find_run, list_run_ids

COMPARED = ("curves", "separation", "directions")
"""The analyses whose sections compare a run with its untrained twin."""


def read_twin(run: Run, *groups: str, contrast: str | None = None) -> dict[str, dict[str, xr.Dataset]]:
    """Return results of the run's untrained twin by contrast and group, for contrasts that both runs define equally.

    `contrast` selects one of them.

    The attribute `seed` is the seed of the random weights. The analysis `separation` has the difference of the AUROCs
    too, as `auroc_beyond_twin`: see `auroc_difference`. Groups that the twin lacks, or that cannot be read, are left
    out; without a twin, the result is empty.
    """
    twin = untrained_twin(run)
    found: dict[str, dict[str, xr.Dataset]] = {}
    if twin is None:
        return found
    for group in groups:
        with suppress(StoreError):
            own, others = (read_contrasts(one, finished_groups(one)) for one in (run, twin))
            results = read_group(twin, group).assign_attrs(seed=twin.record.model.seed)
            for name in results["contrast"].values.tolist():
                if own.get(name) == others[name] and contrast in (None, name):
                    of_twin = results.sel(contrast=name)
                    if group == "separation":
                        with suppress(StoreError):  # the scores of prompts cannot be read
                            of_twin = of_twin.assign(auroc_beyond_twin=auroc_difference(run, twin, name))
                    found.setdefault(name, {})[group] = of_twin
    return found


def untrained_twin(run: Run) -> Run | None:
    """Return the newest complete run of the same model with random weights; None if the store has none.

    Both runs have the same tokens and positions in all sets of `prompts`, and the same sites and layers. A run with
    random weights has no twin. A run that cannot be read is no twin.
    """
    return max(_twins(run), key=lambda twin: twin.record.created, default=None)


def twin_state(run: Run) -> str:
    """Return a text that changes with the run's untrained twin and its results; empty without a twin."""
    twin = untrained_twin(run)
    return "" if twin is None else f"{twin.id} {digest_of(finished_groups(twin))}"


def _twins(run: Run) -> Iterator[Run]:
    if run.record.model.weights == "random":
        return
    # The id of a run starts with the name of its model, so few other runs have to be read.
    prefix = f"{run.id.rpartition('-')[0]}-{RANDOM_WEIGHTS.replace(' ', '-')}-"
    for run_id in list_run_ids(run.store):
        if run_id.startswith(prefix):
            with suppress(StoreError):
                other = find_run(run.store, run_id, run.cache)
                if other is not None and _is_twin(run, other) and finished_groups(other):
                    yield other


def _is_twin(run: Run, other: Run) -> bool:
    ours, theirs = run.record, other.record
    of_ours = {"name": ours.model.name, "dequantised_from": ours.model.dequantised_from}
    trained = theirs.model.model_copy(update={**of_ours, "weights": "trained", "seed": None})
    return (
        theirs.model.weights == "random"
        and trained == ours.model
        and theirs.layers == ours.layers
        and theirs.spec.capture.sites == ours.spec.capture.sites
        and theirs.spec.capture.keep == ours.spec.capture.keep
        and all(
            name in theirs.sets
            and theirs.sets[name].token_ids_sha256 == ours.sets[name].token_ids_sha256
            and theirs.sets[name].positions == ours.sets[name].positions
            and theirs.spec.positions_of(name) == ours.spec.positions_of(name)
            for name in ours.spec.prompts
        )
    )
