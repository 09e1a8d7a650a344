"""The decision between exponential growth and a power law, from the curves of all sites. Pure, in float64."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64

from theodolite.groups.travel.record import AIC_MARGIN, MIN_LOG_GROWTH, MIN_R_SQUARED, PRODUCT_MARGIN, VERDICT_POINTS
from theodolite_jobs.groups.travel.formulas_growth import LAWS, akaike, is_constant, r_squared, usable_points


@dataclass(frozen=True)
class Comparison:
    """The two laws at one site.

    Attributes:
        aic_difference: AIC of the power law minus AIC of the exponential.
        aic_difference_low, aic_difference_high: extremes of the difference if one point is left out.
        aic_gain_of_product: smaller of the two AICs minus the AIC of a product of both laws. If it is large, neither
            law describes the curve.
        log_growth: ln of the last value over the first one.
        better_r_squared: R² of the law with the smaller AIC. If it is small, neither law describes the curve.
    """

    aic_difference: float
    aic_difference_low: float
    aic_difference_high: float
    aic_gain_of_product: float
    log_growth: float
    better_r_squared: float


def comparison(t: Float64[np.ndarray, " depth"], y: Float64[np.ndarray, " depth"]) -> Comparison:
    """Return the comparison of both laws on the points with y positive and finite.

    All numbers are NaN with fewer than 11 points, or if y is constant.

    Args:
        t: depths in blocks.
        y: the quantity at these depths.
    """
    usable = usable_points(y)
    t, y = t[usable], np.log(y[usable])
    if len(t) < VERDICT_POINTS or is_constant(y):
        return Comparison(*[float("nan")] * 6)
    exponential, power, product = (float(akaike(law, t[None], y[None])[0]) for law in (*LAWS, "product"))
    others = ~np.eye(len(t), dtype=bool)
    without = [np.stack([values[kept] for kept in others]) for values in (t, y)]
    differences = akaike("power_law", *without) - akaike("log_linear", *without)
    return Comparison(
        aic_difference=power - exponential,
        aic_difference_low=float(differences.min()),
        aic_difference_high=float(differences.max()),
        aic_gain_of_product=min(exponential, power) - product,
        log_growth=float(y[-1] - y[0]),
        better_r_squared=r_squared(LAWS[int(power < exponential)], t, y),
    )


def verdict(sites: Sequence[Comparison]) -> str:
    """Return `exponential`, `power law` or `undecided`.

    A law is decided if it is preferred at every site, also after any one point is left out, and describes the curve
    there, and if at no site a product of both laws is preferred to it. The sites measure one curve at different depths,
    so they must agree. An exponential must also change ln y by more than equal steps with a distant origin can.
    """
    if not sites or not all(site.aic_gain_of_product < PRODUCT_MARGIN for site in sites):
        return "undecided"
    if min(site.better_r_squared for site in sites) < MIN_R_SQUARED:
        return "undecided"
    smallest = min(min(site.aic_difference, site.aic_difference_low) for site in sites)
    largest = max(max(site.aic_difference, site.aic_difference_high) for site in sites)
    if smallest >= AIC_MARGIN and all(abs(site.log_growth) >= MIN_LOG_GROWTH for site in sites):
        return "exponential"
    if largest <= -AIC_MARGIN:
        return "power law"
    return "undecided"
