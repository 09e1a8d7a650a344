"""Control directions for interventions: what a direction changes only because it is a direction. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.norms import unit

_STEEPEST, _HALVINGS = 64.0, 60


def random_directions(count: int, d_model: int, seed: int) -> Float64[np.ndarray, "draw d_model"]:
    """Return unit vectors of uniformly random directions."""
    return unit(np.random.default_rng(seed).standard_normal((count, d_model)))


def variance_along(
    samples: Float64[np.ndarray, "sample d_model"], directions: Float64[np.ndarray, "direction d_model"]
) -> Float64[np.ndarray, " direction"]:
    """Return the variance (n−1) of centred samples along each direction of any length."""
    return np.asarray((samples @ unit(directions).T).var(axis=0, ddof=1))


def matched_directions(
    samples: Float64[np.ndarray, "sample d_model"],
    direction: Float64[np.ndarray, " d_model"],
    count: int,
    seed: int,
) -> Float64[np.ndarray, "draw d_model"]:
    """Return random unit vectors at right angles to a direction, along which the samples vary as much as along it.

    A random direction holds much less variance than a contrast's, so its removal would change less for that reason
    alone. With the principal directions e of the samples at right angles to the direction, their variances λ and normal
    random numbers g, a vector is the unit vector of Σ g λ^(a/2) e. Its variance grows with a (0 for a random direction
    among those along which the samples vary), so a bisection finds the a for which it is that of the direction. If no
    direction at right angles holds as much, the vector holds nearly the largest variance that one can hold.

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
    squares = np.random.default_rng(seed).standard_normal((count, len(variances)))
    vectors = [_of_variance(one, relative, target / variances[0]) for one in squares]
    return unit(np.stack(vectors) @ axes)


def _of_variance(
    numbers: NDArray[np.float64], log_variances: NDArray[np.float64], target: float
) -> NDArray[np.float64]:
    """Return components along the principal directions with the target variance, as nearly as possible."""

    def components(steepness: float) -> NDArray[np.float64]:
        return np.asarray(numbers * np.exp(steepness * log_variances / 2))

    def variance(steepness: float) -> float:
        squares = components(steepness) ** 2
        return float(np.exp(log_variances) @ squares / squares.sum())

    low, high = -_STEEPEST, _STEEPEST
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if variance(middle) < target else (low, middle)
    return components((low + high) / 2)
