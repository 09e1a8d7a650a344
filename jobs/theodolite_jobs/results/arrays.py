"""From merged passes to the arrays of each result group: arithmetic on arrays alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.passes.one_shard import FirstPass, SecondPass
from theodolite_jobs.statistics.curves import CosineCurve, cosine_curve, direction, variance_curves
from theodolite_jobs.statistics.moments import Moments
from theodolite_jobs.statistics.separation import Estimate, accuracy, auroc, fisher_ratio
from theodolite_jobs.statistics.travel import PATH, STEPS

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Subject:
    """A set, or one side of a contrast: what the first pass knows, and where its positions stand among all."""

    known: FirstPass
    places: tuple[int, ...]

    def __getitem__(self, name: str) -> Moments:
        return self.known.moments[name]


@dataclass(frozen=True)
class Contrast:
    """Both sides of a contrast over the same positions, and what the second pass knows of it."""

    positive: FirstPass
    negative: FirstPass
    second: SecondPass | None
    paired: bool
    places: tuple[int, ...]

    def cosine(self, space: str) -> CosineCurve:
        """Return the cosine of the means in one space, with its interval."""
        positive, negative = self.positive.moments[space], self.negative.moments[space]
        assert self.second is not None
        return cosine_curve(
            positive.mean,
            negative.mean,
            positive.variance.sum(axis=-1),
            negative.variance.sum(axis=-1),
            positive.count,
            negative.count,
            self.second.scatter[space],
            paired=self.paired,
        )

    def separation(self) -> dict[str, Estimate]:
        """Return the variables of `separation`, each (site, position, layer)."""
        assert self.second is not None
        positive, negative = (np.concatenate(scores) for scores in (self.second.positive, self.second.negative))
        assert self.positive.folds is not None
        assert self.negative.folds is not None
        return {
            "auroc": auroc(positive, negative),
            "accuracy": accuracy(positive, negative),
            "fisher_ratio": fisher_ratio(self.positive.folds, self.negative.folds),
        }


def moments_arrays(sets: Sequence[Subject], n_positions: int) -> Arrays:
    """Return the variables of `moments`."""
    place = Placer([subject.places for subject in sets], n_positions)
    raw, ends = [subject["raw"] for subject in sets], [subject.known.extremes["raw"] for subject in sets]
    spheres = [subject["sphere"].mean for subject in sets]
    return {
        "count": counts(sets, n_positions),
        "mean": place([part.mean for part in raw]),
        "m2": place([part.m2 for part in raw]),
        "minimum": place([part.minimum for part in ends]),
        "maximum": place([part.maximum for part in ends]),
        "norm_mean": place([subject["norm"].mean for subject in sets]),
        "norm_std": place([np.sqrt(subject["norm"].variance) for subject in sets]),
        # Vectors on the sphere have length √d_model, so this is the mean of unit vectors.
        "unit_mean_length": place([np.linalg.norm(mean, axis=-1) / np.sqrt(mean.shape[-1]) for mean in spheres]),
    }


def curves_arrays(sets: Sequence[Subject], contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return the variables of `curves`, on activations as they are and on the sphere."""
    of_sets = Placer([subject.places for subject in sets], n_positions)
    of_contrasts = Placer([contrast.places for contrast in contrasts], n_positions)
    arrays = contrast_counts(contrasts, n_positions)
    for space, prefix in (("raw", ""), ("sphere", "on_sphere_")):
        cosines = [contrast.cosine(space) for contrast in contrasts]
        for name, field in _COSINE_FIELDS.items():
            arrays[prefix + name] = of_contrasts([getattr(cosine, field) for cosine in cosines])
        parts = [subject[space] for subject in sets]
        variances = [variance_curves(part.variance) for part in parts]
        arrays[f"{prefix}variance_mean"] = of_sets([mean for mean, _, _ in variances])
        arrays[f"{prefix}variance_max"] = of_sets([largest for _, largest, _ in variances])
        arrays[f"{prefix}variance_max_feature"] = of_sets([feature for _, _, feature in variances], fill=-1)
        arrays[f"{prefix}norm_of_mean"] = of_sets([np.linalg.norm(part.mean, axis=-1) for part in parts])
    return arrays


def directions_arrays(contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return the variables of `directions`."""
    place = Placer([contrast.places for contrast in contrasts], n_positions)
    sides = [(contrast.positive.moments["raw"].mean, contrast.negative.moments["raw"].mean) for contrast in contrasts]
    units = [direction(positive, negative) for positive, negative in sides]
    return {
        "direction": place(units),
        "direction_cosine": place([np.einsum("spld,spmd->splm", unit, unit) for unit in units]),
    }


def separation_arrays(contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return the variables of `separation`."""
    place = Placer([contrast.places for contrast in contrasts], n_positions)
    arrays = contrast_counts(contrasts, n_positions)
    found = [contrast.separation() for contrast in contrasts]
    for name in ("auroc", "accuracy", "fisher_ratio"):
        for suffix, field in (("", "value"), ("_low", "low"), ("_high", "high")):
            arrays[name + suffix] = place([getattr(of_contrast[name], field) for of_contrast in found])
    return arrays


def travel_arrays(sets: Sequence[Subject], n_positions: int) -> Arrays:
    """Return the variables of `travel`."""
    place = Placer([subject.places for subject in sets], n_positions)
    arrays: Arrays = {"n_samples": counts(sets, n_positions)}
    for kind, names in (("steps", STEPS), ("path", PATH)):
        for column, name in enumerate(names):
            arrays[name] = place([subject[kind].mean[..., column] for subject in sets], axis=0)
            arrays[f"{name}_std"] = place([np.sqrt(subject[kind].variance[..., column]) for subject in sets], axis=0)
    return arrays


def counts(sets: Sequence[Subject], n_positions: int) -> NDArray[np.int64]:
    """Return how many prompts of each set take part, (set, position)."""
    place = Placer([subject.places for subject in sets], n_positions)
    return place([np.full(len(subject.places), subject.known.count) for subject in sets], axis=0, fill=0)


def contrast_counts(contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return how many prompts of each side take part, (contrast, position)."""
    place = Placer([contrast.places for contrast in contrasts], n_positions)
    return {
        f"n_{side}": place([np.full(len(one.places), getattr(one, side).count) for one in contrasts], axis=0, fill=0)
        for side in ("positive", "negative")
    }


_COSINE_FIELDS: Mapping[str, str] = {
    "cosine_of_means": "plain",
    "cosine_of_means_debiased": "debiased",
    "cosine_of_means_low": "low",
    "cosine_of_means_high": "high",
    "difference_norm": "difference_norm",
}


class Placer:
    """Puts each subject's positions where they stand among all positions; the rest is filled."""

    def __init__(self, places: Sequence[tuple[int, ...]], n_positions: int) -> None:
        self.places = places
        self.n_positions = n_positions

    def __call__(self, arrays: Sequence[NDArray[Any]], axis: int = 1, fill: float = np.nan) -> NDArray[Any]:
        """Return all subjects' arrays, (subject, …), each with its own positions along `axis`."""
        placed = []
        for array, places in zip(arrays, self.places, strict=True):
            shape = (*array.shape[:axis], self.n_positions, *array.shape[axis + 1 :])
            whole = np.full(shape, fill, dtype=array.dtype)
            whole[(slice(None),) * axis + (list(places),)] = array
            placed.append(whole)
        return np.stack(placed) if placed else np.empty(0)
