"""Fits of exponential growth and of a power law along depth, with autocorrelated errors. Pure, in float64.

A stream with equal steps in a constant direction grows linearly in norm and quadratically in variance. This power law
is easily mistaken for an exponential on a logarithmic axis. The errors at neighbouring depths resemble each other, so
the fits assume an AR(1) process: independent errors would give intervals that are too narrow.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64
from scipy.optimize import brentq
from scipy.special import stdtr

from theodolite_jobs.groups.travel.formulas_autocorrelation import MaximumLikelihood, maximum_likelihood, weighted_fits

LAWS = ("log_linear", "power_law")
"""ln y = a + b·t (growth by a constant factor in each block), and ln y = a + b·ln(t - t₀)."""

NEAREST_ORIGIN = 0.5
"""Smallest distance of the first depth to the origin of a power law, in blocks.

The largest distance is that of the first to the last depth. A power law with an origin far before the first depth does
not differ from an exponential.
"""

_AXES: dict[str, tuple[Callable[..., Float64[np.ndarray, "..."]], ...]] = {
    "log_linear": (lambda t, distance: t + 0 * distance,),
    "power_law": (lambda t, distance: np.log(t - t[..., :1] + distance),),
}
_AXES["product"] = _AXES["log_linear"] + _AXES["power_law"]  # y = A·(t - t₀)^b·exp(c·t), which contains both laws

_PARAMETERS = {"log_linear": 4, "power_law": 5, "product": 6}
"""Number of fitted parameters: coefficients, the variance and the autocorrelation of the errors, and the origin."""

_MIN_POINTS = 4
_CONSTANT = 1e-13
_AT_LIMIT = 0.01  # of the logarithm of the distance to the origin
_TAIL = 0.025  # on each side of a 95 % interval
_INTERVAL_GRID = (49, 25)  # points of (autocorrelation, origin)
_INTERVAL_ENDS = (-3.0, 5.0)  # artanh of the autocorrelation


@dataclass(frozen=True)
class Fit:
    """A straight line through ln y, with AR(1) errors.

    Attributes:
        law: one of LAWS.
        intercept: a.
        slope: b, per block for `log_linear`, the exponent for `power_law`.
        slope_low, slope_high: the 95 % interval of b.
        origin: t₀ of the power law, in blocks; NaN for `log_linear`.
        origin_at_limit: whether the origin is at an end of its allowed range, so that the likelihood has no maximum.
        autocorrelation: correlation of errors at a distance of one block.
        r_squared: 1 − RSS/TSS of ln y; NaN if y is constant.
        aic: −2 ln L + 2·(number of parameters); NaN if y is constant. The fit with the smaller value is better; only
            the difference between fits to the same points has a meaning.
        n: number of points fitted.
    """

    law: str
    intercept: float
    slope: float
    slope_low: float
    slope_high: float
    origin: float
    origin_at_limit: bool
    autocorrelation: float
    r_squared: float
    aic: float
    n: int


def usable_points(y: Float64[np.ndarray, " depth"]) -> Bool[np.ndarray, " depth"]:
    """Return which values have a logarithm; none if they are fewer than four."""
    usable: Bool[np.ndarray, " depth"] = np.isfinite(y) & (y > 0)
    return usable if usable.sum() >= _MIN_POINTS else np.zeros_like(usable)


def is_constant(y: Float64[np.ndarray, " depth"]) -> bool:
    """Return whether the values differ by rounding alone."""
    return bool(np.ptp(y) <= _CONSTANT * max(1.0, float(np.abs(y).max())))


def growth_fits(t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> list[Fit]:
    """Return the fits of ln y along depth by maximum likelihood, one for each law; none with fewer than four points.

    Both fits use the points with y positive and finite. The depth t is in blocks, 0 at the input of the first block.
    """
    usable = usable_points(y)
    if not usable.any():
        return []
    t, logarithms = t[usable], np.log(y[usable])
    if is_constant(logarithms):
        return [_constant(law, logarithms) for law in LAWS]
    return [_fit(law, t, logarithms) for law in LAWS]


def akaike(
    law: str, t: Float64[np.ndarray, "curve depth"], y: Float64[np.ndarray, "curve depth"]
) -> Float64[np.ndarray, " curve"]:
    """Return the AIC of one law, or of the `product` of both, for each of many curves y (logarithms) at depths t."""
    best = maximum_likelihood(t, y, partial(_design, law), _log_distances(law, t))
    return best.deviance + 2 * _PARAMETERS[law]


def r_squared(law: str, t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> float:
    """Return 1 − RSS/TSS of the fit of one law to a curve y of logarithms at depths t; negative for a poor fit."""
    return _line(law, t, y).r_squared


def _constant(law: str, y: Float64[np.ndarray, " depth"]) -> Fit:
    nan = float("nan")
    return Fit(law, float(y.mean()), 0.0, nan, nan, nan, False, nan, nan, nan, len(y))


class _Line(NamedTuple):
    """The maximum of the likelihood of one law, and its curve."""

    best: MaximumLikelihood
    intercept: float
    slope: float
    r_squared: float


def _line(law: str, t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> _Line:
    best = maximum_likelihood(t[None], y[None], partial(_design, law), _log_distances(law, t[None]))
    columns = _design(law, t[None], best.log_distance[:, None])
    slope = float(weighted_fits(t[None], columns, y[None], best.rho[:, None]).slope[0, 0, 0])
    x = columns[0, 0, 1]
    # The intercept is the slope of the column of ones, once the other column is fitted.
    ones = columns[:, :, :1]
    intercept = float(weighted_fits(t[None], ones, (y - slope * x)[None], best.rho[:, None]).slope[0, 0, 0])
    residual = float(((y - intercept - slope * x) ** 2).sum())
    return _Line(best, intercept, slope, 1 - residual / float(((y - y.mean()) ** 2).sum()))


def _fit(law: str, t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> Fit:
    best, intercept, slope, explained = _line(law, t, y)
    low, high = slope_interval(law, t, y)
    to_limit = min(abs(best.log_distance[0] - end[0]) for end in _log_distances(law, t[None]))
    return Fit(
        law=law,
        intercept=intercept,
        slope=slope,
        slope_low=low,
        slope_high=high,
        origin=float(t[0] - np.exp(best.log_distance[0])) if law == "power_law" else float("nan"),
        origin_at_limit=bool(law == "power_law" and to_limit < _AT_LIMIT),
        autocorrelation=float(best.rho[0]),
        r_squared=explained,
        aic=float(best.deviance[0]) + 2 * _PARAMETERS[law],
        n=len(y),
    )


def slope_interval(law: str, t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> tuple[float, float]:
    """Return the 95 % interval of the slope: its quantiles in a mixture of Student's t distributions.

    The mixture has one distribution with n − 2 degrees of freedom for each autocorrelation and origin. The weights are
    the restricted likelihood times the prior (1 − ρ²)^(−1/2), Jeffreys's for AR(1), and a uniform one for the logarithm
    of the distance to the origin. So the interval contains the uncertainty of ρ and of the origin.
    `benchmarks/growth.py` measures its coverage.
    """
    rho = np.tanh(np.linspace(*_INTERVAL_ENDS, _INTERVAL_GRID[0]))
    low, high = _log_distances(law, t[None])
    distances = np.linspace(low, high, _INTERVAL_GRID[1] if law == "power_law" else 1, axis=1)
    columns = _design(law, t[None], distances)
    fits = weighted_fits(t[None], columns, y[None], rho[None])
    freedom = len(y) - 2
    # The weights must not depend on the unit of a column. The grid is uniform in artanh ρ; dρ = (1 − ρ²) d artanh ρ.
    logarithms = -(freedom * np.log(fits.rss) + fits.log_determinants)[0] / 2 + np.log(columns[0, :, 1].std(axis=-1))
    logarithms += np.log(1 - rho**2)[:, None] / 2
    weights = np.exp(logarithms - logarithms.max())
    weights /= weights.sum()
    slopes, errors = fits.slope[0], np.sqrt(fits.rss / freedom / fits.information)[0]

    def excess(slope: float, probability: float) -> float:
        return float((weights * stdtr(freedom, (slope - slopes) / errors)).sum()) - probability

    reach = 100 * errors.max()
    ends = (slopes.min() - reach, slopes.max() + reach)
    first, last = (brentq(excess, *ends, args=(tail,), xtol=1e-14) for tail in (_TAIL, 1 - _TAIL))
    return float(first), float(last)


def _design(
    law: str, t: Float64[np.ndarray, "curve depth"], log_distances: Float64[np.ndarray, "curve origin"]
) -> Float64[np.ndarray, "curve origin column depth"]:
    """Return a column of ones and those of the law, for each distance of the first depth to the origin."""
    depths, distances = t[:, None], np.exp(log_distances)[..., None]
    axes = [axis(depths, distances) for axis in _AXES[law]]
    return np.stack([np.ones_like(axes[0]), *axes], axis=2)


def _log_distances(
    law: str, t: Float64[np.ndarray, "curve depth"]
) -> tuple[Float64[np.ndarray, " curve"], Float64[np.ndarray, " curve"]]:
    """Return the ends of the logarithm of the distance of the first depth to the origin; equal without an origin."""
    nearest = np.full(len(t), np.log(NEAREST_ORIGIN))
    return nearest, nearest if law == "log_linear" else np.log(t[:, -1] - t[:, 0])
