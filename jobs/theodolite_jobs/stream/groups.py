"""From merged moments and sums to the arrays of each result group: arithmetic on arrays alone."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.statistics.curves import CosineCurve, Scatter, cosine_curve, direction, variance_curves
from theodolite_jobs.stream.passes import StreamMoments

Arrays = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class Subject:
    """A set, or one side of a contrast, with its moments and where its positions stand among all positions."""

    moments: StreamMoments
    places: tuple[int, ...]


@dataclass(frozen=True)
class Contrast:
    """Both sides of a contrast over the same positions, and the sums of its interval in each space."""

    positive: StreamMoments
    negative: StreamMoments
    scatter: Mapping[str, Scatter]
    paired: bool
    places: tuple[int, ...]

    def cosine(self, space: str) -> CosineCurve:
        """Return the cosine of the means in one space, with its interval."""
        positive, negative = getattr(self.positive, space), getattr(self.negative, space)
        return cosine_curve(
            positive.mean,
            negative.mean,
            positive.variance.sum(axis=-1),
            negative.variance.sum(axis=-1),
            positive.count,
            negative.count,
            self.scatter[space],
            paired=self.paired,
        )


def moments_arrays(sets: Sequence[Subject], n_positions: int) -> Arrays:
    """Return the variables of `moments`."""
    raw = [subject.moments.raw for subject in sets]
    norms = [subject.moments.norm for subject in sets]
    place = _Placer([subject.places for subject in sets], n_positions)
    return {
        "count": place([np.full(len(subject.places), subject.moments.raw.count) for subject in sets], axis=0, fill=0),
        "mean": place([part.mean for part in raw]),
        "m2": place([part.m2 for part in raw]),
        "minimum": place([part.minimum for part in raw]),
        "maximum": place([part.maximum for part in raw]),
        "norm_mean": place([part.mean for part in norms]),
        "norm_std": place([np.sqrt(part.variance) for part in norms]),
        # Vectors on the sphere have length √d_model, so this is the mean of unit vectors.
        "unit_mean_length": place(
            [
                np.linalg.norm(subject.moments.sphere.mean, axis=-1) / np.sqrt(subject.moments.sphere.mean.shape[-1])
                for subject in sets
            ]
        ),
    }


def curves_arrays(sets: Sequence[Subject], contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return the variables of `curves`, on activations as they are and on the sphere."""
    of_sets = _Placer([subject.places for subject in sets], n_positions)
    of_contrasts = _Placer([contrast.places for contrast in contrasts], n_positions)
    arrays: Arrays = {}
    for side in ("positive", "negative"):
        counts = [np.full(len(contrast.places), getattr(contrast, side).raw.count) for contrast in contrasts]
        arrays[f"n_{side}"] = of_contrasts(counts, axis=0, fill=0)
    for space, prefix in (("raw", ""), ("sphere", "on_sphere_")):
        cosines = [contrast.cosine(space) for contrast in contrasts]
        for name, field in _COSINE_FIELDS.items():
            arrays[prefix + name] = of_contrasts([getattr(cosine, field) for cosine in cosines])
        parts = [getattr(subject.moments, space) for subject in sets]
        variances = [variance_curves(part.variance) for part in parts]
        arrays[f"{prefix}variance_mean"] = of_sets([mean for mean, _, _ in variances])
        arrays[f"{prefix}variance_max"] = of_sets([largest for _, largest, _ in variances])
        arrays[f"{prefix}variance_max_feature"] = of_sets([feature for _, _, feature in variances], fill=-1)
        arrays[f"{prefix}norm_of_mean"] = of_sets([np.linalg.norm(part.mean, axis=-1) for part in parts])
    return arrays


def directions_arrays(contrasts: Sequence[Contrast], n_positions: int) -> Arrays:
    """Return the variables of `directions`."""
    place = _Placer([contrast.places for contrast in contrasts], n_positions)
    units = [direction(contrast.positive.raw.mean, contrast.negative.raw.mean) for contrast in contrasts]
    return {
        "direction": place(units),
        "direction_cosine": place([np.einsum("spld,spmd->splm", unit, unit) for unit in units]),
    }


_COSINE_FIELDS = {
    "cosine_of_means": "plain",
    "cosine_of_means_debiased": "debiased",
    "cosine_of_means_low": "low",
    "cosine_of_means_high": "high",
    "difference_norm": "difference_norm",
}


class _Placer:
    """Puts each subject's positions where they stand among all positions; the rest is filled."""

    def __init__(self, places: Sequence[tuple[int, ...]], n_positions: int) -> None:
        self.places = places
        self.n_positions = n_positions

    def __call__(self, arrays: Sequence[NDArray[Any]], axis: int = 1, fill: float = np.nan) -> NDArray[Any]:
        placed = []
        for array, places in zip(arrays, self.places, strict=True):
            shape = (*array.shape[:axis], self.n_positions, *array.shape[axis + 1 :])
            whole = np.full(shape, fill, dtype=array.dtype)
            whole[(slice(None),) * axis + (list(places),)] = array
            placed.append(whole)
        return np.stack(placed) if placed else np.empty(0)
