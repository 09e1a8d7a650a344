"""Running the two passes over all shards of a run on Dask, and merging what they return in the shards' order."""

from collections.abc import Mapping, Sequence
from functools import partial, reduce
from typing import Any

from theodolite.groups.record import Gathered
from theodolite.store.runs import Run
from theodolite_jobs.passes.gather import STREAM_SPACES
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import Axes, FirstPass, Means, SecondPass, first_pass, second_pass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import ContrastSelection
from theodolite_jobs.statistics.separation import fold_directions
from theodolite_jobs.tasks import Progress, run_tasks, shared


def first_passes(
    run: Run, wanted: Mapping[SampleSelection, frozenset[Gathered]], norms: Sequence[NormLayer], progress: Progress
) -> dict[SampleSelection, FirstPass]:
    """Return what is wanted of each selection; every shard is read once for each selection it is part of."""
    all_norms, found = shared(norms), {}
    for selection, kinds in wanted.items():
        n_shards = run.record.sets[selection.prompt_set].n_shards
        arguments = [(run, selection, index, kinds, all_norms) for index in range(n_shards)]
        say = partial(_say, progress, f"statistics of {selection.prompt_set}", n_shards)
        parts = run_tasks(first_pass, arguments, say)
        found[selection] = reduce(FirstPass.merged, parts)
    return found


def second_passes(
    run: Run,
    label: str,
    chosen: ContrastSelection,
    positive: FirstPass,
    negative: FirstPass,
    progress: Progress,
    *,
    intervals: bool,
    scores: bool,
) -> SecondPass:
    """Return what the second pass knows of a contrast, given the first of both sides.

    Args:
        run: the run.
        label: the contrast's name.
        chosen: which samples take part.
        positive: first pass of P.
        negative: first pass of N.
        progress: called after each shard.
        intervals: whether the sums of the cosine's interval are wanted.
        scores: whether scores along the folds' directions are wanted.
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
    sides = chosen.positive, chosen.negative
    n_shards = [run.record.sets[side.prompt_set].n_shards for side in sides]
    against = shared((means, axes))
    arguments: list[tuple[Any, ...]]
    if chosen.paired:
        arguments = [(run, *sides, index, against, True) for index in range(n_shards[0])]
    else:
        arguments = [(run, chosen.positive, None, index, against, False) for index in range(n_shards[0])]
        arguments += [(run, None, chosen.negative, index, against, False) for index in range(n_shards[1])]
    parts = run_tasks(second_pass, arguments, partial(_say, progress, f"contrast {label}", len(arguments)))
    return reduce(SecondPass.__add__, parts)


def _say(progress: Progress, what: str, total: int, done: int) -> None:
    progress(what, done, total)
