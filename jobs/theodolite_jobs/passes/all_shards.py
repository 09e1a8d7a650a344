"""Both passes over all shards of a run on Dask; their outputs merge in the order of shards."""

from collections.abc import Collection, Mapping, Sequence
from functools import reduce
from typing import Any

from theodolite.groups.record import Output
from theodolite.store.runs import Run
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass, SecondPass, first_pass, second_pass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import ContrastSelection
from theodolite_jobs.passes.stream_arrays import STREAM_SPACES
from theodolite_jobs.statistics.separation import fold_directions
from theodolite_jobs.tasks import Progress, run_tasks, shared


def first_passes(
    run: Run, requested: Mapping[SampleSelection, frozenset[Output]], norms: Sequence[NormLayer], progress: Progress
) -> dict[SampleSelection, FirstPass]:
    """Return the requested outputs for each selection of samples; each selection reads each of its shards once."""
    all_norms, passes = shared(norms), {}
    for selection, outputs in requested.items():
        n_shards = run.record.sets[selection.prompt_set].n_shards
        arguments = [(run, selection, index, outputs, all_norms) for index in range(n_shards)]
        parts = run_tasks(first_pass, arguments, progress, f"statistics of {selection.prompt_set}")
        passes[selection] = reduce(FirstPass.merged, parts)
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

    `curves` needs the sums for the cosine's interval, and `separation` the scores along the folds' directions.
    """
    if not {"curves", "separation"} & set(groups):
        return None
    means = {
        space: (positive.moments[space].mean, negative.moments[space].mean)
        for space in (STREAM_SPACES if "curves" in groups else ())
    }
    axes = None
    if "separation" in groups:
        assert positive.folds is not None
        assert negative.folds is not None
        axes = fold_directions(positive.folds, negative.folds)
    p, n = selection.positive, selection.negative
    means_and_axes = shared((means, axes))
    shards = [range(run.record.sets[side.prompt_set].n_shards) for side in (p, n)]
    arguments: list[tuple[Any, ...]]
    if selection.paired:
        arguments = [(run, p, n, index, means_and_axes, True) for index in shards[0]]
    else:
        arguments = [(run, p, None, index, means_and_axes, False) for index in shards[0]]
        arguments += [(run, None, n, index, means_and_axes, False) for index in shards[1]]
    return reduce(SecondPass.__add__, run_tasks(second_pass, arguments, progress, f"contrast {label}"))
