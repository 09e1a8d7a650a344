"""Simultaneous bands: intervals that hold at all depths at once. Pure, in float64.

The smallest or largest of many estimates is chosen for its error too, so its own 95 % interval covers the truth less
often than in 95 % of draws. A simultaneous band covers the whole curve, and so also its extreme.
"""

import numpy as np
from numpy.typing import NDArray

_DRAWS = 10_000  # which leave a standard error of 0.2 % of the band's level

_SEED = 0

_LEAST_ROWS = 10

_RIDGE = 1e-9  # makes the correlations of equal places factorisable, and the factor insensitive to rounding


def simultaneous_quantile(terms: NDArray[np.float64], level: float = 0.95, degrees_of_freedom: float = np.inf) -> float:
    """Return q so that value ± q·(standard error) holds at all places at once with the probability `level`.

    q is the quantile of the largest |z| of a normal vector, or of a Student vector, with the correlations of the
    estimates at the places (Hothorn, Bretz and Westfall 2008), from seeded draws. A place whose estimated error is 0
    counts as independent of the others, and so do all places if there are fewer than ten rows. Places whose error is
    NaN are left out; without others, or without degrees of freedom, q is NaN.

    Args:
        terms: independent terms of the errors, (row, …). The products of two columns sum to their covariance.
        level: the probability that the band covers all places.
        degrees_of_freedom: those of the estimated errors.
    """
    lengths = np.sqrt((terms**2).sum(axis=0))
    defined = ~np.isnan(lengths)
    if not defined.any() or not degrees_of_freedom > 0:
        return float("nan")
    scaled = terms[:, defined] / np.where(lengths[defined] > 0, lengths[defined], 1)
    correlation = scaled.T @ scaled
    if len(terms) < _LEAST_ROWS:  # they would make independent places look dependent
        correlation[:] = 0
    np.fill_diagonal(correlation, 1 + _RIDGE)
    root = np.linalg.cholesky(correlation)
    random = np.random.default_rng(_SEED)
    largest = np.abs(random.standard_normal((_DRAWS, len(root))) @ root.T).max(axis=1)
    if np.isfinite(degrees_of_freedom):
        largest /= np.sqrt(random.chisquare(degrees_of_freedom, _DRAWS) / degrees_of_freedom)
    return float(np.quantile(largest, level))


def half_of_difference(
    own: NDArray[np.float64], other: NDArray[np.float64], correlation: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return how far the interval of v − v′ reaches below v − v′ (Zou and Donner 2008); above it, likewise.

    Args:
        own: how far the interval of v reaches below v.
        other: how far that of v′ reaches above v′.
        correlation: of the errors of v and v′.
    """
    return np.asarray(np.sqrt(np.maximum(own**2 + other**2 - 2 * correlation * own * other, 0)))
