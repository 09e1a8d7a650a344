"""Both passes over all shards of a run on Dask; their outputs merge in the order of shards."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import Any

from theodolite.groups.schema import SPACES, Output
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass, SecondPass, first_pass, second_pass
from theodolite_jobs.passes.reduced import read_reduced, second_pass_of_reduced
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import ContrastSelection
from theodolite_jobs.statistics.folds import fold_directions
from theodolite_jobs.tasks import Progress, run_tasks, shared


def first_passes(
    run: Run, requested: Mapping[SampleSelection, frozenset[Output]], norms: Sequence[NormLayer], progress: Progress
) -> dict[SampleSelection, FirstPass]:
    """Return the requested outputs for each selection of samples; each selection reads each of its shards once."""
    all_norms, passes = shared(norms), {}
    for selection, outputs in requested.items():
        bounds = run.record.bounds(selection.prompt_set)
        arguments = [(run, selection, index, outputs, all_norms) for index in range(bounds.n_stored)]
        parts = run_tasks(first_pass, arguments, progress, f"statistics of {selection.prompt_set}")
        passes[selection] = stored = reduce(FirstPass.merged, parts)
        reduced = range(bounds.n_stored, bounds.n_shards if outputs - {"folds"} else 0)
        if reduced:
            more = run_tasks(
                read_reduced,
                [(run, selection, index, outputs) for index in reduced],
                progress,
                f"reduced shards of {selection.prompt_set}",
            )
            passes[selection] = replace(reduce(FirstPass.merged, more, stored), stored=stored)
    return passes


def second_passes(
    run: Run,
    label: str,
    selection: ContrastSelection,
    positive: FirstPass,
    negative: FirstPass,
    groups: Collection[str],
    progress: Progress,
) -> SecondPass | None:
    """Return the second pass over a contrast, given the first pass over both sides; None if no group needs it.

    `curves` and `directions` need sums over pairs and deviations, and `separation` the scores along the folds'
    directions.
    """
    if not {"curves", "directions", "separation"} & set(groups):
        return None
    means = {
        space: (positive.moments[space].mean, negative.moments[space].mean)
        for space in (SPACES if {"curves", "directions"} & set(groups) else ())
    }
    axes = None
    if "separation" in groups:
        assert positive.folds is not None
        assert negative.folds is not None
        axes = fold_directions(positive.folds, negative.folds)
    p, n = selection.positive, selection.negative
    means_and_axes = shared((means, axes))
    bounds = [run.record.bounds(side.prompt_set) for side in (p, n)]

    def arguments_of(shards: Sequence[range]) -> list[tuple[Any, ...]]:
        if selection.paired:
            return [(run, p, n, index, means_and_axes, True) for index in shards[0]]
        return [
            *((run, p, None, index, means_and_axes, False) for index in shards[0]),
            *((run, None, n, index, means_and_axes, False) for index in shards[1]),
        ]

    stored = arguments_of([range(one.n_stored) for one in bounds])
    parts = run_tasks(second_pass, stored, progress, f"contrast {label}")
    reduced = arguments_of([range(one.n_stored, one.n_shards) for one in bounds]) if means else []
    more = run_tasks(second_pass_of_reduced, reduced, progress, f"reduced shards of {label}") if reduced else ()
    return reduce(SecondPass.__add__, chain(parts, more))
