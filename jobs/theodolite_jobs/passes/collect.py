"""Outputs of the passes over a run's activations, collected at once for all result groups that need them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from theodolite.groups import GROUPS
from theodolite.groups.record import Output
from theodolite.store.commits import Commit
from theodolite.store.runs import Run
from theodolite_jobs.passes.all_shards import first_passes, second_passes
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass, SecondPass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import Contrasts, ContrastSelection, contrast_selection, set_selections
from theodolite_jobs.statistics.moments import Moments
from theodolite_jobs.tasks import Progress


@dataclass(frozen=True)
class SetPasses:
    """Output of the first pass for a prompt set; `positions` are the set's indices among all positions."""

    first: FirstPass
    positions: tuple[int, ...]

    def __getitem__(self, name: str) -> Moments:
        return self.first.moments[name]


@dataclass(frozen=True)
class ContrastPasses:
    """Outputs of both passes for a contrast; `positions` are the indices of the positions that both sets have."""

    positive: FirstPass
    negative: FirstPass
    second: SecondPass | None
    paired: bool
    positions: tuple[int, ...]


@dataclass(frozen=True)
class Collected:
    """Outputs of the passes for each prompt set and each contrast; empty if no group needs them."""

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
    """Return the outputs of the first pass, and of the second pass if a group needs intervals or scores.

    Args:
        run: a run with all shards committed.
        commits: commit records of each set.
        contrasts: `positive`, `negative` and `paired` of each contrast, by name.
        groups: result groups to compute from the passes.
        norms: the model's norm layers, for `sphere`.
        progress: called after each task.

    Raises:
        RunDamagedError: a shard cannot be read, or contains a number that is not finite.
    """
    sets = set_selections(run, commits)
    sides = {name: contrast_selection(run, contrast, commits) for name, contrast in contrasts.items()}
    per_set = frozenset[Output]().union(*(GROUPS[name].per_set for name in groups))
    per_side = frozenset[Output]().union(*(GROUPS[name].per_side for name in groups))
    requested: dict[SampleSelection, frozenset[Output]] = {}
    selections = [(one.selection, per_set) for one in sets.values()]
    selections += [(side, per_side) for one in sides.values() for side in (one.positive, one.negative)]
    for selection, outputs in selections:
        if outputs:
            requested[selection] = requested.get(selection, frozenset()) | outputs
    first = first_passes(run, requested, norms, progress)
    contrast_passes = [
        _contrast_passes(run, name, selection, first, groups, progress) for name, selection in sides.items() if per_side
    ]
    set_passes = [SetPasses(first[one.selection], one.positions) for one in sets.values() if per_set]
    return Collected(set_passes, contrast_passes)


def _contrast_passes(
    run: Run,
    name: str,
    selection: ContrastSelection,
    first: Mapping[SampleSelection, FirstPass],
    groups: Collection[str],
    progress: Progress,
) -> ContrastPasses:
    """Return both passes of a contrast, the second one only if a group needs it."""
    positive, negative = first[selection.positive], first[selection.negative]
    needs = {"intervals": "curves" in groups, "scores": "separation" in groups}
    second = None
    if any(needs.values()):
        second = second_passes(run, name, selection, positive, negative, progress, **needs)
    return ContrastPasses(positive, negative, second, selection.paired, selection.positions)
