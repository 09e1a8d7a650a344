"""Linear regression along depth with autocorrelated errors: its likelihood over grids of parameters. Pure, in float64.

The errors of a curve along depth follow an AR(1) process: errors at a distance of h blocks have correlation ρ^h. The
functions fit many curves at once. The likelihood is exact, so it includes the stationary variance of the first error
(Hamilton 1994, Time Series Analysis, section 5.2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

Design = Callable[
    [Float64[np.ndarray, "curve depth"], Float64[np.ndarray, "curve origin"]],
    Float64[np.ndarray, "curve origin column depth"],
]
"""Return the columns of a regression for depths and for logarithms of the distance of the first depth to the origin."""

_ROUNDING = 1e-12
_FIRST, _CLOSER, _ROUNDS = (21, 13), (7, 7), 3  # points of the grids, (autocorrelation, origin)
_AUTOCORRELATIONS = (-2.0, 4.0)  # artanh ρ, so ρ is between -0.96 and 0.999


@dataclass(frozen=True)
class WeightedFits:
    """Generalised least squares of each curve for each autocorrelation and origin: arrays (curve, rho, origin).

    Attributes:
        slope: coefficient of the last column.
        rss: weighted residual sum of squares; with independent errors it is the plain one.
        information: the variance of the slope is the variance of the errors over this.
        deviance: −2 ln of the likelihood at the best variance of the errors, without constants.
        log_determinants: −2 ln of the factors that the restricted likelihood has beside `rss`.
    """

    slope: Float64[np.ndarray, "curve rho origin"]
    rss: Float64[np.ndarray, "curve rho origin"]
    information: Float64[np.ndarray, "curve rho origin"]
    deviance: Float64[np.ndarray, "curve rho origin"]
    log_determinants: Float64[np.ndarray, "curve rho origin"]


@dataclass(frozen=True)
class MaximumLikelihood:
    """The maximum of the likelihood of each curve, arrays (curve,), with the deviance at this maximum."""

    deviance: Float64[np.ndarray, " curve"]
    rho: Float64[np.ndarray, " curve"]
    log_distance: Float64[np.ndarray, " curve"]


def weighted_fits(
    t: Float64[np.ndarray, "curve depth"],
    columns: Float64[np.ndarray, "curve origin column depth"],
    y: Float64[np.ndarray, "curve depth"],
    rho: Float64[np.ndarray, "curve rho"],
) -> WeightedFits:
    """Return the fits of y by linear combinations of the columns, for errors with each autocorrelation.

    Args:
        t: depths in blocks, increasing; a negative `rho` needs distances in whole blocks.
        columns: columns of the regression for each origin.
        y: values at the depths.
        rho: correlations of errors at a distance of one block, between -1 and 1.
    """
    n, n_columns = y.shape[-1], columns.shape[2]
    correlation = (rho[:, :, None] ** np.diff(t)[:, None])[:, :, None, None]
    scale = np.sqrt(1 - correlation**2)
    values = np.concatenate([columns, np.broadcast_to(y[:, None, None], (*columns.shape[:2], 1, n))], axis=2)[:, None]
    # Differences to what the previous error predicts are independent and have the same variance.
    left = np.concatenate(
        [
            np.broadcast_to(values[..., :1], (*correlation.shape[:2], *values.shape[2:4], 1)),
            (values[..., 1:] - correlation * values[..., :-1]) / scale,
        ],
        axis=-1,
    )
    information, slope = [], np.empty(0)
    for index in range(n_columns):  # project this column out of all later ones
        column, later = left[..., index, :], left[..., index + 1 :, :]
        information.append((column**2).sum(axis=-1))
        coefficients = np.einsum("...kd,...d->...k", later, column) / information[-1][..., None]
        later -= coefficients[..., None] * column[..., None, :]
        slope = coefficients[..., -1]
    smallest = n * (_ROUNDING * np.maximum(1.0, np.abs(y).max(axis=-1))) ** 2  # of a perfect fit
    rss = np.maximum((left[..., -1, :] ** 2).sum(axis=-1), smallest[:, None, None])
    log_determinant = 2 * np.log(scale).sum(axis=-1)[..., 0]
    return WeightedFits(
        slope=slope,
        rss=rss,
        information=information[-1],
        deviance=n * np.log(rss / n) + log_determinant,
        log_determinants=log_determinant + sum(np.log(each) for each in information),
    )


def maximum_likelihood(
    t: Float64[np.ndarray, "curve depth"],
    y: Float64[np.ndarray, "curve depth"],
    design: Design,
    log_distances: tuple[Float64[np.ndarray, " curve"], Float64[np.ndarray, " curve"]],
) -> MaximumLikelihood:
    """Return the maximum of the likelihood over autocorrelation and origin, by grids of decreasing width.

    Args:
        t: depths in blocks, increasing.
        y: values at the depths.
        design: columns of the regression.
        log_distances: both ends of the logarithms of the distance of the first depth to the origin. Equal ends for a
            regression without an origin.
    """
    curves = np.arange(len(y))
    sizes = (_FIRST[0], _FIRST[1] if np.any(log_distances[0] != log_distances[1]) else 1)
    ends = [tuple(np.full(len(y), end) for end in _AUTOCORRELATIONS), log_distances]
    for _ in range(_ROUNDS + 1):
        axes = [np.linspace(low, high, size, axis=1) for (low, high), size in zip(ends, sizes, strict=True)]
        deviance = weighted_fits(t, design(t, axes[1]), y, np.tanh(axes[0])).deviance
        best = np.unravel_index(deviance.reshape(len(y), -1).argmin(axis=1), deviance.shape[1:])
        ends = [
            (axis[curves, np.maximum(at - 1, 0)], axis[curves, np.minimum(at + 1, axis.shape[1] - 1)])
            for axis, at in zip(axes, best, strict=True)
        ]
        sizes = (_CLOSER[0], min(_CLOSER[1], sizes[1]))
    rho, log_distance = (axis[curves, at] for axis, at in zip(axes, best, strict=True))
    return MaximumLikelihood(deviance[(curves, *best)], np.tanh(rho), log_distance)
