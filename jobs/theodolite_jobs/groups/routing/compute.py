"""The analysis `routing`: shares of the prompts whose token uses each expert, differences, and active units."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.schema import INTERVAL, NULL
from theodolite.store.activations import read_experts
from theodolite_jobs.groups.routing.formulas import absolute_differences, differences, shares, used_experts
from theodolite_jobs.groups.routing.units import Use, active_units
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.passes.point_clouds import PointCloud
from theodolite_jobs.passes.samples import SampleSelection
from theodolite_jobs.passes.selections import contrast_selection, set_selections
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.permutations import permutation_test, permuted_labels

SAMPLES = 4096
"""Maximum number of prompts of each set: their intervals are narrow, and they fit into memory with all permutations."""

Chosen = NDArray[np.int16]
"""The experts that tokens use, (sample, position, layer, choice)."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("routing", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first stored samples of each set.

    Without the model's weights, active hidden units are missing, and a note says why.

    Raises:
        RunDamagedError: a shard differs from its commit record.
    """
    run = context.run
    n_experts = max(facts.n_experts for facts in run.record.sets.values())
    coordinates = {**context.coordinates, "expert": range(n_experts)}
    arrays = missing_arrays("routing", coordinates)
    chosen = {name: _read(context, name) for name in coordinates["set"]}
    means = run.record.spec.means  # which no expert computes
    uses: list[Use] = []
    for selection, positions in set_selections(run, context.commits):
        row, usable = list(coordinates["set"]).index(selection.prompt_set), _usable(context, selection)
        for own, position in zip(selection.positions, positions, strict=True):
            if coordinates["position"][position] in means:
                continue
            arrays["n_samples"][row, position] = len(usable)
            cloud = PointCloud(selection.prompt_set, own, usable.tolist())
            experts = chosen[selection.prompt_set][usable, own]
            uses.append(Use(row, position, cloud, experts))
            arrays["expert_share"][row, position] = _of_set(experts, n_experts)
    for row, contrast in enumerate(context.contrasts.values()):
        selected = contrast_selection(run, contrast, context.commits)
        sides = [selected.positive, selected.negative]
        usable_sides = [_usable(context, side) for side in sides]
        folds = [usable % FOLDS for usable in usable_sides]
        for index, position in enumerate(selected.positions):
            if coordinates["position"][position] in means:
                continue
            arrays["n_used"][row, position] = list(map(len, usable_sides))
            of_sides = [
                chosen[side.prompt_set][usable, side.positions[index]]
                for side, usable in zip(sides, usable_sides, strict=True)
            ]
            for name, values in _of_contrast(of_sides, folds, n_experts, paired=selected.paired).items():
                arrays[name][row, position] = values
    arrays["expert_active_units"], notes = active_units(context, uses, arrays["expert_active_units"].shape)
    return Result(arrays, coordinates, {"contrasts": context.contrasts} | ({"notes": notes} if notes else {}))


def _read(context: Context, prompt_set: str) -> Chosen:
    """Return the experts of the first samples of a set whose activations are stored."""
    stop = min(SAMPLES, context.run.record.bounds(prompt_set).n_kept)
    shards = [read_experts(context.run, commit) for commit in context.commits[prompt_set] if commit.start < stop]
    return np.concatenate(shards)[:stop]


def _usable(context: Context, selection: SampleSelection) -> NDArray[np.int64]:
    stop = min(SAMPLES, context.run.record.bounds(selection.prompt_set).n_kept)
    usable = [sample for sample in range(stop) if sample not in selection.excluded]
    return np.array(usable, dtype=np.int64)


def _of_set(chosen: Chosen, n_experts: int) -> NDArray[np.float64]:
    """Return a set's `expert_share`, (layer, expert, estimate), from its samples' experts, (sample, layer, choice)."""
    found = np.full((chosen.shape[1], n_experts, len(INTERVAL)), np.nan)
    for layer in _layers_with_experts(chosen):
        found[layer] = shares(used_experts(chosen[:, layer], n_experts)).stacked()
    return found


def _of_contrast(
    sides: Sequence[Chosen], folds: Sequence[NDArray[np.int64]], n_experts: int, *, paired: bool
) -> Arrays:
    """Return the variables of a contrast, (layer, expert, …), from both sides' experts, (sample, layer, choice)."""
    if not (len(sides[0]) and len(sides[1])):
        return {}
    labels = permuted_labels(*folds, paired=paired)
    draws = np.full((len(labels), sides[0].shape[1], n_experts), np.nan)
    found = np.full((*draws.shape[1:], len(INTERVAL)), np.nan)
    for layer in _layers_with_experts(np.concatenate(sides)):
        used = [used_experts(side[:, layer], n_experts) for side in sides]
        found[layer] = differences(*used, paired=paired).stacked()
        draws[:, layer] = absolute_differences(np.concatenate(used), labels)
    return {
        "expert_difference": found,
        "expert_difference_null": permutation_test(draws).stacked()[..., : len(NULL)],
    }


def _layers_with_experts(chosen: Chosen) -> NDArray[np.int64]:
    """Return the indices of the layers in which a token uses an expert, from (sample, layer, choice)."""
    return np.flatnonzero((chosen >= 0).any(axis=(0, 2)))
