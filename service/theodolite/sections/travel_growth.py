"""Sentences about growth along the residual stream: the slope of each quantity, and the verdict on its law."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from theodolite.groups.travel import AIC_MARGIN, MIN_LOG_GROWTH, PRODUCT_MARGIN, VERDICT_POINTS
from theodolite.sections.parts import BRACKETS
from theodolite.sites import HALF_BLOCKS

_QUANTITIES = {"norm_mean": "Norm", "variance_mean": "Mean variance", "variance_max": "Largest variance"}


def growth_facts(growth: pd.DataFrame, labels: Mapping[str, str], position: int) -> Iterator[str]:
    """Yield a sentence about each quantity and set, or one sentence if an older version fitted the laws."""
    if "verdict" not in growth:
        yield (
            "An older version fitted the growth along depth, without the autocorrelation of neighbouring depths. A new "
            "survey computes the slopes with intervals, and which law the quantities follow."
        )
        return
    is_shown = growth["set"].isin(list(labels)) & growth["site"].isin(HALF_BLOCKS)
    selected = growth[(growth["position"] == position) & is_shown]
    for (quantity, name), fits in selected.groupby(["quantity", "set"], sort=False):
        subject = f"{_QUANTITIES[str(quantity)]} of {labels[str(name)]}"
        yield f"{subject} {_slope(fits)}. Exponential or power law: {fits['verdict'].iloc[0]}. {_evidence(fits)}."


def growth_notes(growth: pd.DataFrame) -> list[str]:
    """Return the rule of the verdicts."""
    if "verdict" not in growth:
        return []
    return [
        BRACKETS,
        "R² is the share of the variance of a quantity's logarithm that the fit explains",
        f"a law is decided if its AIC is at least {AIC_MARGIN:g} lower than that of the other law, at resid_pre and at "
        "resid_mid, both with all depths and if any one depth is left out; an exponential must also change the "
        f"quantity by a factor of {np.exp(MIN_LOG_GROWTH):.0f}",
        f"no law is decided if, at one of the sites, a product of both laws has an AIC at least {PRODUCT_MARGIN:g} "
        "lower than the better law: then neither law alone describes the curve",
    ]


def _slope(fits: pd.DataFrame) -> str:
    """Return the slope of the law that was decided, of the exponential if none was, at the first site."""
    law = "power_law" if fits["verdict"].iloc[0] == "power law" else "log_linear"
    fit = fits[fits["law"] == law].iloc[0]
    where = f"at {fit['site']}, n = {int(fit['n'])} depths"
    if np.isnan(fit["r_squared"]):
        return f"is constant ({where})"
    where += f", R² = {fit['r_squared']:.2f}"
    slope, low, high = (fit[name] for name in ("slope", "slope_low", "slope_high"))
    verb = "grows" if low > 0 else "falls" if high < 0 else "changes"
    if law == "power_law":
        text = f"{verb} with the exponent {slope:.2f} [{low:.2f}, {high:.2f}] of depth (power law"
        return f"{text} with the origin {fit['origin']:.1f} blocks, {where})"
    factor, low, high = np.exp([slope, low, high])
    fitted = f"[{low:.3f}, {high:.3f}] per block"
    if fits["verdict"].iloc[0] == "exponential":
        return f"{verb} by a factor of {factor:.3f} {fitted} (exponential, {where})"
    return f"{verb} by a factor of {factor:.3f} {fitted} if an exponential is fitted ({where})"


def _evidence(fits: pd.DataFrame) -> str:
    """Return the differences of AIC at each site."""
    sites = fits.drop_duplicates("site").to_dict("records")
    if any(np.isnan(site["aic_difference"]) for site in sites):
        return f"A verdict needs {VERDICT_POINTS} depths, and values that are not constant"
    text = "; ".join(f"at {site['site']} {_at_site(site)}" for site in sites)
    return text[0].upper() + text[1:]


def _at_site(site: Mapping[Hashable, Any]) -> str:
    """Return which law has the lower AIC at one site, by how much, and by how much if one depth is left out."""
    law, sign = ("exponential", 1) if site["aic_difference"] > 0 else ("power law", -1)
    value, *ends = (sign * site[f"aic_difference{end}"] for end in ("", "_low", "_high"))
    low, high = min(ends), max(ends)
    without = f"{low:.0f} to {high:.0f} lower" if low >= 0 else f"between {-low:.0f} higher and {high:.0f} lower"
    text = f"the AIC of the {law} is {value:.0f} lower (if one depth is left out: {without})"
    if site["aic_gain_of_product"] >= PRODUCT_MARGIN:
        text += f", and that of a product of both laws is another {site['aic_gain_of_product']:.0f} lower"
    return text
