"""The decision between exponential growth and a power law, from the curves of all sites. Pure, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.travel_growth import akaike, usable_points

MARGIN = 6.0
"""A law is preferred if its AIC is lower by at least this.

`benchmarks/growth.py` measures the verdicts on simulated curves: with this margin fewer than 5 % are wrong.
"""

MIN_POINTS = 8
"""A verdict needs this number of depths at each site; the simulations have no shorter curves."""


@dataclass(frozen=True)
class Comparison:
    """The two laws at one site.

    Attributes:
        difference: AIC of the power law minus AIC of the exponential.
        difference_low, difference_high: extremes of the difference if one point is left out.
        product_gain: smaller of the two AICs minus the AIC of a product of both laws. If it is large, neither law
            describes the curve.
    """

    difference: float
    difference_low: float
    difference_high: float
    product_gain: float


def comparison(t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> Comparison:
    """Return the comparison of both laws on the points with y positive and finite; NaN with too few points.

    Args:
        t: depths in blocks.
        y: the quantity at these depths.
    """
    usable = usable_points(y)
    t, y = t[usable], np.log(y[usable])
    if len(t) < MIN_POINTS or np.ptp(y) == 0:
        return Comparison(*[float("nan")] * 4)
    exponential, power, product = (float(akaike(law, t[None], y[None])[0]) for law in ("log_linear", "power_law", "product"))
    others = ~np.eye(len(t), dtype=bool)
    without = [np.stack([values[kept] for kept in others]) for values in (t, y)]
    differences = akaike("power_law", *without) - akaike("log_linear", *without)
    return Comparison(
        power - exponential, float(differences.min()), float(differences.max()), min(exponential, power) - product
    )


def verdict(sites: Sequence[Comparison]) -> str:
    """Return `exponential`, `power law` or `undecided`.

    A law is decided if it is preferred at every site, also after any one point is left out, and if at no site a product
    of both laws is preferred to it. The sites measure one curve at different depths, so they must agree.
    """
    if not sites or not all(site.product_gain < MARGIN for site in sites):
        return "undecided"
    if all(min(site.difference, site.difference_low) >= MARGIN for site in sites):
        return "exponential"
    if all(max(site.difference, site.difference_high) <= -MARGIN for site in sites):
        return "power law"
    return "undecided"
