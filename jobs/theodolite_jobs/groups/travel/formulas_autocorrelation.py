"""Linear regression along depth with autocorrelated errors: its likelihood over grids of parameters. Pure, in float64.

The errors of a curve along depth follow an AR(1) process: errors at a distance of h blocks have correlation ρ^h. The
functions fit many curves at once. The likelihood is exact, so it includes the stationary variance of the first error
(Hamilton 1994, Time Series Analysis, section 5.2).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Design = Callable[
    [Float64[np.ndarray, "curve depth"], Float64[np.ndarray, "curve origin"]],
    Float64[np.ndarray, "curve origin column depth"],
]
"""Return the columns of a regression for depths and for logarithms of the distance of the first depth to the origin."""

Axis = Float64[np.ndarray, "curve _"]

_ROUNDING = 1e-12
_FIRST, _CLOSER, _ROUNDS = 13, 5, 6  # points of an axis of the first grid and of closer ones; rounds of closer grids
_AUTOCORRELATIONS = (-2.0, 4.0)  # artanh ρ, so ρ is between -0.96 and 0.999


@dataclass(frozen=True)
class WeightedFits:
    """Generalised least squares of each curve for each autocorrelation and origin: arrays (curve, rho, origin).

    Attributes:
        slope: coefficient of the last column.
        rss: weighted residual sum of squares; with independent errors it is the plain one.
        information: the variance of the slope is the variance of the errors over this.
        deviance: −2 ln of the likelihood at the best variance of the errors.
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
        deviance=n * (np.log(2 * np.pi * rss / n) + 1) + log_determinant,
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

    def evaluate(artanh_rho: Axis, log_distance: Axis) -> _Grid:
        deviance = weighted_fits(t, design(t, log_distance), y, np.tanh(artanh_rho)).deviance
        best = np.unravel_index(deviance.reshape(len(y), -1).argmin(axis=1), deviance.shape[1:])
        return _Grid((artanh_rho, log_distance), deviance, (best[0], best[1]))

    has_origin = bool(np.any(log_distances[0] != log_distances[1]))
    grid = evaluate(
        np.tile(np.linspace(*_AUTOCORRELATIONS, _FIRST), (len(y), 1)),
        np.linspace(*log_distances, _FIRST if has_origin else 1, axis=1),
    )
    # The best autocorrelation depends on the origin, so its grid stays wide until the origin is precise.
    for _ in range(_ROUNDS if has_origin else 0):
        grid = evaluate(grid.axes[0], grid.closer(1))
    for _ in range(_ROUNDS):
        grid = evaluate(grid.closer(0), grid.closer(1))
    rho, log_distance = (axis[grid.curves, at] for axis, at in zip(grid.axes, grid.best, strict=True))
    return MaximumLikelihood(grid.deviance[(grid.curves, *grid.best)], np.tanh(rho), log_distance)


@dataclass(frozen=True)
class _Grid:
    """The deviance of each curve on a grid of its own: axes (curve, point), and the best point on each axis."""

    axes: tuple[Axis, Axis]
    deviance: Float64[np.ndarray, "curve rho origin"]
    best: tuple[NDArray[np.intp], NDArray[np.intp]]

    @property
    def curves(self) -> NDArray[np.intp]:
        return np.arange(len(self.deviance))

    def closer(self, dim: int) -> Axis:
        """Return an axis between the neighbours of the best points."""
        axis, best = self.axes[dim], self.best[dim]
        last = axis.shape[1] - 1
        ends = axis[self.curves, np.maximum(best - 1, 0)], axis[self.curves, np.minimum(best + 1, last)]
        return np.linspace(*ends, min(_CLOSER, last + 1), axis=1)
