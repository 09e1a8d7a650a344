"""Control directions for interventions: what a direction changes only because it is a direction. Pure, in float64."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import ROUNDING, difference_weights
from theodolite_jobs.statistics.norms import unit
from theodolite_jobs.statistics.ratio import ratio

_HALVINGS = 60

_SEED = 0


class Directions(NamedTuple):
    """The directions of interventions at one place; all are 0 where the means are equal, which changes nothing.

    Attributes:
        difference: difference of the means, positive minus negative, (d_model,).
        means: means of the positive and of the negative set, (2, d_model).
        matched: controls from `matched_directions`, (draw, d_model). Each is as many standard deviations long as the
            difference, in units of the standard deviation of the samples along it within the sets.
        permuted: differences with permuted labels at right angles to the difference, with its length, (draw, d_model).
        control_variance: mean variance along `matched` and along `permuted`, over that along the difference, (2,).
        effective_controls: `effective_number` of both, (2,).
    """

    difference: NDArray[np.float64]
    means: NDArray[np.float64]
    matched: NDArray[np.float64]
    permuted: NDArray[np.float64]
    control_variance: NDArray[np.float64]
    effective_controls: NDArray[np.float64]


class ControlFacts(NamedTuple):
    """What is known of the controls of all places, each (place, control); see `Directions`."""

    control_variance: NDArray[np.float64]
    effective_controls: NDArray[np.float64]


def facts_of(directions: Sequence[Directions]) -> ControlFacts:
    """Return what is known of the controls of places."""
    return ControlFacts(
        np.stack([one.control_variance for one in directions]), np.stack([one.effective_controls for one in directions])
    )


def directions_at(
    captured: Float64[np.ndarray, "sample d_model"], labels: Bool[np.ndarray, "draw sample"]
) -> Directions:
    """Return the directions at one place.

    Args:
        captured: samples of both sets.
        labels: which samples count as positive: with the real labels, then in a draw for each control.
    """
    positive, samples = labels[0], centred(captured)
    difference, *draws = difference_weights(labels) @ samples
    if difference @ difference <= ROUNDING * (samples**2).sum(axis=1).mean():
        difference = np.zeros_like(difference)
    permuted = unit(_at_right_angles(np.array(draws), difference))
    matched = matched_directions(samples, difference, len(draws), _SEED)
    means = np.stack([captured[positive].mean(axis=0), captured[~positive].mean(axis=0)])
    within = captured - np.where(positive[:, None], *means)
    own, *others = np.sqrt(variance_along(within, np.concatenate([difference[None], matched])))
    length = np.linalg.norm(difference)
    variances = [variance_along(samples, directions).mean() for directions in (matched, permuted, difference[None])]
    return Directions(
        difference,
        means,
        np.nan_to_num(length * matched * ratio(others, own)[:, None]),
        np.nan_to_num(length * permuted),
        ratio(variances[:2], variances[2]),
        np.array([effective_number(matched), effective_number(permuted)]),
    )


def _at_right_angles(vectors: NDArray[np.float64], direction: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return vectors without their components along a direction; a direction of length 0 takes nothing away.

    A parallel vector, such as that of exchanged labels, gives 0, and no rounding error.
    """
    along = np.nan_to_num(unit(direction))
    rest = vectors - np.outer(vectors @ along, along)
    is_parallel = (rest**2).sum(axis=1) <= ROUNDING * (vectors**2).sum(axis=1)
    return np.where(is_parallel[:, None], 0.0, rest)


def variance_along(
    samples: Float64[np.ndarray, "sample d_model"], directions: Float64[np.ndarray, "direction d_model"]
) -> Float64[np.ndarray, " direction"]:
    """Return the variance (n−1) of centred samples along each direction of any length."""
    return np.asarray((samples @ unit(directions).T).var(axis=0, ddof=1))


def effective_number(directions: Float64[np.ndarray, "draw d_model"]) -> float:
    """Return the participation ratio (Σλ)²/Σλ² of the Gram matrix of the directions' unit vectors.

    It is the number of draws if they are at right angles to each other, and 1 if all are parallel. Directions of length
    0 or NaN do not count; without others, it is NaN.
    """
    units = unit(directions)
    units = units[np.isfinite(units).all(axis=1)]
    squares = np.asarray(((units @ units.T) ** 2).sum())
    return float(ratio(np.float64(len(units) ** 2), squares))


def matched_directions(
    samples: Float64[np.ndarray, "sample d_model"],
    direction: Float64[np.ndarray, " d_model"],
    count: int,
    seed: int,
) -> Float64[np.ndarray, "draw d_model"]:
    """Return random unit vectors at right angles to a direction, along which the samples vary as much, if they can.

    A random direction holds much less variance than a contrast's, so its removal would change less for that reason
    alone. With the principal directions e of the samples at right angles to the direction, their variances λ and normal
    random numbers g, a vector is the unit vector of Σ g λ^(a/2) e. A bisection finds the a between 0 (a random
    direction among those along which the samples vary) and 1 (a draw from the samples' covariance) with the variance of
    the direction. A larger a would make all vectors nearly parallel, so a vector with a = 1 can hold less variance.

    Args:
        samples: samples of both sets, minus their mean.
        direction: the contrast's direction, of any length; a direction of length 0 gives NaN.
        count: number of vectors.
        seed: seed of the random numbers.
    """
    along = unit(direction)
    if not np.isfinite(along).all():
        return np.full((count, len(direction)), np.nan)
    target = variance_along(samples, direction[None])[0]
    rest = samples - np.outer(samples @ along, along)
    _, singular, axes = np.linalg.svd(rest, full_matrices=False)
    kept = singular > singular[0] * 1e-6 if len(singular) else singular > 0
    variances, axes = singular[kept] ** 2 / (len(samples) - 1), axes[kept]
    if not len(variances):
        return np.full((count, len(direction)), np.nan)
    relative = np.log(variances / variances[0])
    numbers = np.random.default_rng(seed).standard_normal((count, len(variances)))
    return unit(np.stack([_of_variance(one, relative, target / variances[0]) for one in numbers]) @ axes)


def _of_variance(
    numbers: NDArray[np.float64], log_variances: NDArray[np.float64], target: float
) -> NDArray[np.float64]:
    """Return components along the principal directions with the target variance, as nearly as possible."""

    def components(steepness: float) -> NDArray[np.float64]:
        return np.asarray(numbers * np.exp(steepness * log_variances / 2))

    def variance(steepness: float) -> float:
        squares = components(steepness) ** 2
        return float(np.exp(log_variances) @ squares / squares.sum())

    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) < target else (low, middle)
    return components((low + high) / 2)
