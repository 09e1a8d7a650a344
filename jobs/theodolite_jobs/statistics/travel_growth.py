"""Fits of exponential growth and of a power law along depth. Pure, in float64.

A stream with equal steps in a constant direction grows linearly in norm and quadratically in variance. This power law
is easily mistaken for an exponential on a logarithmic axis.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

LAWS = ("log_linear", "power_law")
"""ln y = a + b·t (growth by a constant factor in each block), and ln y = a + b·ln t."""

_PARAMETERS = 3  # intercept, slope, and the variance of the residuals
_MIN_POINTS = 4
_ROUNDING = 1e-13


@dataclass(frozen=True)
class Fit:
    """A straight line through ln y.

    Attributes:
        law: one of LAWS.
        intercept: a.
        slope: b, per block for `log_linear`, the exponent for `power_law`.
        r_squared: share of the variance of ln y that the line explains; NaN if y is constant.
        aic: n·ln(RSS/n) + 2·3, NaN if y is constant. The fit with the smaller value is better; only the difference
            between fits to the same points has a meaning.
        n: number of points fitted.
    """

    law: str
    intercept: float
    slope: float
    r_squared: float
    aic: float
    n: int


def growth_fits(t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> list[Fit]:
    """Return the fits of y along depth by least squares on ln y, one for each law; none with fewer than four points.

    Both fits use the points with t > 0 and with y positive and finite. The depth t is in blocks, 0 at the input of the
    first block.
    """
    usable = (t > 0) & np.isfinite(y) & (y > 0)
    if usable.sum() < _MIN_POINTS:
        return []
    t, logarithms = t[usable], np.log(y[usable])
    return [_line(law, axis, logarithms) for law, axis in zip(LAWS, (t, np.log(t)), strict=True)]


def _line(law: str, x: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> Fit:
    if np.ptp(y) <= _ROUNDING * max(1.0, float(np.abs(y).max())):  # y is constant
        return Fit(law, float(y.mean()), 0.0, float("nan"), float("nan"), len(x))
    slope, intercept = np.polyfit(x, y, 1)
    residual = float(((y - intercept - slope * x) ** 2).sum())
    total = float(((y - y.mean()) ** 2).sum())
    n = len(x)
    return Fit(
        law,
        float(intercept),
        float(slope),
        1 - residual / total,
        n * float(np.log(residual / n)) + 2 * _PARAMETERS if residual > 0 else float("-inf"),
        n,
    )
