"""Both passes over all shards of a run on Dask; their outputs merge in the order of shards."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

from theodolite.groups.record import Output
from theodolite.store.runs import Run
from theodolite_jobs.passes.gather import STREAM_SPACES
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import Axes, FirstPass, Means, SecondPass, first_pass, second_pass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import ContrastSelection
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
        say = partial(_say, progress, f"statistics of {selection.prompt_set}", n_shards)
        passes[selection] = reduce(FirstPass.merged, run_tasks(first_pass, arguments, say))
    return passes


def second_passes(
    run: Run,
    label: str,
    selection: ContrastSelection,
    positive: FirstPass,
    negative: FirstPass,
    progress: Progress,
    *,
    intervals: bool,
    scores: bool,
) -> SecondPass:
    """Return the second pass over a contrast, given the first pass over both sides.

    Args:
        run: the run.
        label: name of the contrast.
        selection: samples of both sides.
        positive: first pass over P.
        negative: first pass over N.
        progress: called after each shard.
        intervals: whether to compute the sums for the cosine's interval.
        scores: whether to compute scores along the folds' directions.
    """
    means = {
        space: Means(positive.moments[space].mean, negative.moments[space].mean)
        for space in (STREAM_SPACES if intervals else ())
    }
    axes = None
    if scores:
        assert positive.folds is not None
        assert negative.folds is not None
        axes = Axes(*fold_directions(positive.folds, negative.folds))
    sides = selection.positive, selection.negative
    n_shards = [run.record.sets[side.prompt_set].n_shards for side in sides]
    means_and_axes = shared((means, axes))
    arguments: list[tuple[Any, ...]]
    if selection.paired:
        arguments = [(run, *sides, index, means_and_axes, True) for index in range(n_shards[0])]
    else:
        arguments = [(run, sides[0], None, index, means_and_axes, False) for index in range(n_shards[0])]
        arguments += [(run, None, sides[1], index, means_and_axes, False) for index in range(n_shards[1])]
    parts = run_tasks(second_pass, arguments, partial(_say, progress, f"contrast {label}", len(arguments)))
    return reduce(SecondPass.__add__, parts)


def _say(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, total)
