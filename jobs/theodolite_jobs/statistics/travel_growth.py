"""Does a quantity grow exponentially along the stream, or as a power of depth? Two fits, compared. Pure, in float64.

A stream that moves equal steps in a constant direction grows linearly in norm and quadratically in variance: a power
law, which on a logarithmic axis is easily taken for an exponential.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

LAWS = ("log_linear", "power_law")
"""ln y = a + b·t, growth by a constant factor in each block; and ln y = a + b·ln t."""

_PARAMETERS = 3  # intercept, slope, and the variance of what is left
_LEAST_POINTS = 4
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Fit:
    """A straight line through ln y.

    Attributes:
        law: one of LAWS.
        intercept: a.
        slope: b: per block (log-linear), or the exponent (power law).
        r_squared: share of the variance of ln y that the line explains; NaN where y does not change.
        aic: n·ln(RSS/n) + 2·3; less is better, and only differences on the same points mean anything. NaN likewise.
        n: points fitted.
    """

    law: str
    intercept: float
    slope: float
    r_squared: float
    aic: float
    n: int


def growth_fits(t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> list[Fit]:
    """Return both fits of y along depth by least squares on ln y, over the same points: t > 0, y > 0 and finite.

    Args:
        t: depth in blocks, 0 where the first begins.
        y: what grows.

    Returns:
        One fit for each law; none where fewer than four points can be used.
    """
    usable = (t > 0) & np.isfinite(y) & (y > 0)
    if usable.sum() < _LEAST_POINTS:
        return []
    t, logarithms = t[usable], np.log(y[usable])
    return [_line(law, axis, logarithms) for law, axis in zip(LAWS, (t, np.log(t)), strict=True)]


def _line(law: str, x: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> Fit:
    if np.ptp(y) <= _ROUNDING * max(1.0, float(np.abs(y).max())):  # nothing grows, and any line explains it
        return Fit(law, float(y.mean()), 0.0, float("nan"), float("nan"), len(x))
    slope, intercept = np.polyfit(x, y, 1)
    left = float(((y - intercept - slope * x) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    n = len(x)
    return Fit(
        law,
        float(intercept),
        float(slope),
        1 - left / total,
        n * float(np.log(left / n)) + 2 * _PARAMETERS if left > 0 else float("-inf"),
        n,
    )
