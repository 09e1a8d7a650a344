"""Outputs of the passes over a run's activations, collected at once for all analyses that need them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups import GROUPS
from theodolite.groups.schema import Output
from theodolite.store.records import Commit
from theodolite.store.runs import Run
from theodolite_jobs.passes.all_shards import first_passes, second_passes
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass, SecondPass
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import Contrasts, contrast_selection, measured_sets, set_selections
from theodolite_jobs.statistics.moments import Moments
from theodolite_jobs.statistics.scatter import Groups
from theodolite_jobs.tasks import Progress

Arrays = dict[str, NDArray[Any]]
"""Variables of an analysis, by name."""


@dataclass(frozen=True)
class SetPasses:
    """Output of the first pass for a prompt set; `positions` are the set's indices among all positions."""

    first: FirstPass
    positions: tuple[int, ...]

    def __getitem__(self, name: str) -> Moments:
        return self.first.moments[name]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Number of prompts used, (position,)."""
        return np.full(len(self.positions), self.first.count)


@dataclass(frozen=True)
class ContrastPasses:
    """Outputs of both passes for a contrast; `positions` are the indices of the positions that both sets have."""

    positive: FirstPass
    negative: FirstPass
    second: SecondPass | None
    paired: bool
    positions: tuple[int, ...]

    @property
    def counts(self) -> Arrays:
        """Numbers of prompts used of each side, `n_used`, (position, prompt_side)."""
        return {"n_used": np.array([[self.positive.count, self.negative.count]] * len(self.positions))}

    def groups(self, space: str) -> Groups | None:
        """Return what is known of the samples if reduced shards contain some of them; None without reduced shards."""
        if self.positive.stored is None and self.negative.stored is None:
            return None
        known = (_known(side, space) for side in (self.positive, self.negative))
        return Groups(self.positive.n_groups, self.negative.n_groups, *known)


def _known(side: FirstPass, space: str) -> NDArray[np.float64]:
    """Return Σ‖x − mean‖² over the samples whose activations are stored, around the mean of all samples."""
    stored, mean = (side.stored or side).moments[space], side.moments[space].mean
    shift = stored.mean - mean
    return np.asarray(stored.m2.sum(axis=-1) + stored.count * np.vecdot(shift, shift))


@dataclass(frozen=True)
class Collected:
    """Outputs of the passes for each prompt set and each contrast; empty if no group needs them."""

    sets: Sequence[SetPasses]
    contrasts: Sequence[ContrastPasses]
    n_positions: int

    def over_sets(self, group: str, statistics: Callable[[SetPasses], Arrays]) -> Arrays:
        """Return a group's variables over all sets and positions, from a function of one set at its own positions."""
        return self._over(group, statistics, self.sets)

    def over_contrasts(self, group: str, statistics: Callable[[ContrastPasses], Arrays]) -> Arrays:
        """Return a group's variables over all contrasts and positions, from a function of one contrast."""
        return self._over(group, statistics, self.contrasts)

    def _over(
        self, group: str, statistics: Callable[[Any], Arrays], all_passes: Sequence[SetPasses | ContrastPasses]
    ) -> Arrays:
        dims = {variable.name: variable.dims for variable in GROUPS[group].variables}
        stacked: dict[str, list[NDArray[Any]]] = {}
        for passes in all_passes:
            for name, array in statistics(passes).items():
                axis = dims[name].index("position") - 1
                shape = (*array.shape[:axis], self.n_positions, *array.shape[axis + 1 :])
                # At positions that a set lacks, statistics are NaN, indices are −1, and numbers of samples are 0.
                missing = np.nan if array.dtype.kind == "f" else -1 if "layer" in dims[name] else 0
                whole = np.full(shape, missing, dtype=array.dtype)
                whole[(slice(None),) * axis + (list(passes.positions),)] = array
                stacked.setdefault(name, []).append(whole)
        return {name: np.stack(stacked.pop(name)) for name in list(stacked)}  # frees each list


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
        groups: analyses to compute from the passes.
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
    selections = [(selection, per_set) for selection, _ in sets]
    selections += [(side, per_side) for one in sides.values() for side in (one.positive, one.negative)]
    for selection, outputs in selections:
        if outputs:
            requested[selection] = requested.get(selection, frozenset()) | outputs
    first = first_passes(run, requested, norms, progress)
    contrast_passes = []
    for label, contrast in sides.items() if per_side else ():
        positive, negative = first[contrast.positive], first[contrast.negative]
        second = second_passes(run, label, contrast, positive, negative, groups, progress)
        contrast_passes.append(ContrastPasses(positive, negative, second, contrast.paired, contrast.positions))
    set_passes = [SetPasses(first[selection], positions) for selection, positions in sets if per_set]
    return Collected(set_passes, contrast_passes, len(measured_sets(run)[1]))
