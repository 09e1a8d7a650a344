"""Everything that the passes over a run's activations collect, for all result groups that need them at once."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from theodolite.groups import GROUPS
from theodolite.groups.record import Gathered
from theodolite.store.commits import Commit
from theodolite.store.runs import Run
from theodolite_jobs.passes.all_shards import first_passes, second_passes
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass, SecondPass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import (
    Contrasts,
    ContrastSelection,
    SetSelection,
    contrast_selection,
    set_selections,
)
from theodolite_jobs.statistics.moments import Moments
from theodolite_jobs.tasks import Progress


@dataclass(frozen=True)
class SetPasses:
    """What the first pass collected of a prompt set, and which of all positions the set has."""

    first: FirstPass
    positions: tuple[int, ...]

    def __getitem__(self, name: str) -> Moments:
        return self.first.moments[name]


@dataclass(frozen=True)
class ContrastPasses:
    """What both passes collected of a contrast, over the positions that both of its sets have."""

    positive: FirstPass
    negative: FirstPass
    second: SecondPass | None
    paired: bool
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Collected:
    """What the passes collected: of each prompt set, and of each contrast; empty where no group needs it."""

    sets: Sequence[SetPasses]
    contrasts: Sequence[ContrastPasses]


def collect(
    run: Run,
    commits: Mapping[str, list[Commit]],
    contrasts: Contrasts,
    groups: Collection[str],
    norms: Sequence[NormLayer],
    progress: Progress,
) -> Collected:
    """Pass over the activations once, and once more where intervals or scores need the means of the first pass.

    Args:
        run: a run whose shards are all committed.
        commits: its commit records, by set.
        contrasts: `positive`, `negative` and `paired` of each contrast, by name.
        groups: the result groups that are computed from the passes.
        norms: the model's norm layers, for `sphere`.
        progress: called after each task.

    Raises:
        RunDamagedError: a shard cannot be read, or holds a number that is not finite.
    """
    sets = set_selections(run, commits)
    sides = {name: contrast_selection(run, contrast, commits) for name, contrast in contrasts.items()}
    first = first_passes(run, _wanted(sets, sides, groups), norms, progress)
    compared = [
        _compare(run, name, selection, first, groups, progress)
        for name, selection in sides.items()
        if _gathered_of_sides(groups)
    ]
    measured = [SetPasses(first[one.selection], one.positions) for one in sets.values() if _gathered_of_sets(groups)]
    return Collected(measured, compared)


def _gathered_of_sets(groups: Iterable[str]) -> frozenset[Gathered]:
    return frozenset().union(*(GROUPS[name].of_sets for name in groups))


def _gathered_of_sides(groups: Iterable[str]) -> frozenset[Gathered]:
    return frozenset().union(*(GROUPS[name].of_sides for name in groups))


def _wanted(
    sets: Mapping[str, SetSelection], contrasts: Mapping[str, ContrastSelection], groups: Collection[str]
) -> dict[SampleSelection, frozenset[Gathered]]:
    """Return what the first pass must collect of each selection, for all groups at once."""
    wanted: dict[SampleSelection, frozenset[Gathered]] = {}
    chosen = [(one.selection, _gathered_of_sets(groups)) for one in sets.values()]
    chosen += [
        (side, _gathered_of_sides(groups)) for one in contrasts.values() for side in (one.positive, one.negative)
    ]
    for selection, gathered in chosen:
        if gathered:
            wanted[selection] = wanted.get(selection, frozenset()) | gathered
    return wanted


def _compare(
    run: Run,
    name: str,
    selection: ContrastSelection,
    first: Mapping[SampleSelection, FirstPass],
    groups: Collection[str],
    progress: Progress,
) -> ContrastPasses:
    """Return both passes of a contrast; the second one only where a group needs it."""
    positive, negative = first[selection.positive], first[selection.negative]
    needs = {"intervals": "curves" in groups, "scores": "separation" in groups}
    second = None
    if any(needs.values()):
        second = second_passes(run, name, selection, positive, negative, progress, **needs)
    return ContrastPasses(positive, negative, second, selection.paired, selection.positions)
