"""The depths that cannot be told from the depth of the largest value. Pure, in float64.

The largest of many estimates is at the wrong depth in many draws, since its own error helped to make it the largest.
Estimates at two depths come from the same prompts, so the error of their difference is often far smaller than theirs.
"""

import numpy as np
from jaxtyping import Float64
from scipy.stats import norm, t

_LEVEL = 0.95

_DRAWS = 5_000  # which leave a standard error of 0.3 % of the level

_SEED = 0

_LEAST_FREEDOM = 9.0  # with fewer than ten prompts or pairs, the errors of differences are not known well enough

_ROUNDING = 1e-12  # of a squared error, relative to the squared errors of the two estimates that are compared


def location(
    estimates: Float64[np.ndarray, "*places"],
    terms: Float64[np.ndarray, "row *places"],
    degrees_of_freedom: float = np.inf,
) -> Float64[np.ndarray, "*places"]:
    """Return 1 at each place whose true value may be the largest, and 0 at all others; NaN where it is unknown.

    With a probability of about 95 %, the place of the largest true value has a 1 (multiple comparisons with the best,
    Hsu 1984). Place l has a 1 if the maximum over k of (estimate_k − estimate_l)/(standard error of this difference) is
    at most the 95 % quantile of this maximum for equal true values. The quantile is that of normal or Student vectors
    with the covariances of the differences, from seeded draws. A difference without an error decides by its sign. All
    places are unknown with fewer than nine degrees of freedom.

    Args:
        estimates: a statistic at each place; NaN where it is unknown. The smallest is found among negated estimates.
        terms: independent terms of their errors; Σ over rows of the products of two columns is their covariance.
        degrees_of_freedom: those of the estimated errors.
    """
    values, rows = estimates.ravel(), terms.reshape(len(terms), estimates.size)
    known = np.isfinite(values) & np.isfinite(rows).all(axis=0)
    result = np.full(values.shape, np.nan)
    if known.any() and degrees_of_freedom >= _LEAST_FREEDOM:
        result[known] = _may_be_largest(values[known], rows[:, known], degrees_of_freedom)
    return result.reshape(estimates.shape)


def _may_be_largest(
    values: Float64[np.ndarray, " place"], terms: Float64[np.ndarray, "row place"], free: float
) -> Float64[np.ndarray, " place"]:
    covariance = terms.T @ terms
    squares = np.diag(covariance)
    both = squares[:, None] + squares
    differences = values - values[:, None]  # of a place, and of each other
    errors = both - 2 * covariance
    errors = np.sqrt(np.where(errors > _ROUNDING * both, errors, 0))
    inverse = np.divide(1, errors, out=np.zeros_like(errors), where=errors > 0)
    excess = np.where(errors > 0, differences * inverse, np.where(differences > 0, np.inf, 0)).max(axis=1)
    # One comparison has a smaller quantile than the maximum of all, and Bonferroni's is larger.
    single, bonferroni = (_quantile(1 - (1 - _LEVEL) / many, free) for many in (1, max(len(values) - 1, 1)))
    result = np.asarray(excess <= single, dtype=np.float64)
    undecided = np.flatnonzero((excess > single) & (excess <= bonferroni))
    if len(undecided):
        noise = _noise(covariance, free)
        for place in undecided:
            largest = ((noise - noise[:, [place]]) * inverse[place]).max(axis=1)
            result[place] = excess[place] <= np.quantile(largest, _LEVEL)
    return result


def _quantile(level: float, free: float) -> float:
    return float(t.ppf(level, free) if np.isfinite(free) else norm.ppf(level))


def _noise(covariance: Float64[np.ndarray, "place place"], free: float) -> Float64[np.ndarray, "draw place"]:
    """Return normal or Student vectors with these covariances."""
    variances, basis = np.linalg.eigh(covariance)
    random = np.random.default_rng(_SEED)
    noise = random.standard_normal((_DRAWS, len(variances))) @ (basis * np.sqrt(np.maximum(variances, 0))).T
    if np.isfinite(free):
        noise /= np.sqrt(random.chisquare(free, (_DRAWS, 1)) / free)
    return np.asarray(noise)
