"""Sentences about growth along the residual stream: the slope of each quantity, and the verdict on its law."""

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd

from theodolite.groups.travel.record import AIC_MARGIN, MIN_LOG_GROWTH, MIN_R_SQUARED, PRODUCT_MARGIN, VERDICT_POINTS
from theodolite.sections.parts import BRACKETS, MISSING, Table, listed, number
from theodolite.sites import HALF_BLOCKS
from theodolite.spec_parts import Label

_QUANTITIES = {"norm_mean": "the norm", "variance_mean": "the mean variance", "variance_max": "the largest variance"}
_LEAST_FACTOR = np.exp(MIN_LOG_GROWTH)
_COLUMNS = [
    *("quantity", "set", "site", "depths", "factor per block", "R²", "exponent", "origin", "R²"),
    *("AIC, power law minus exponential", "with one depth left out", "AIC gain of the product of both", "verdict"),
]


def growth_facts(growth: pd.DataFrame, labels: Mapping[str, str], position: Label) -> Iterator[str]:
    """Yield one sentence: the laws of growth that are decided, and the number of those that are not."""
    decided, undecided = {}, []
    for (quantity, name), fits in _selected(growth, labels, position).groupby(["quantity", "set"], sort=False):
        law = _law(fits)
        if law:
            decided[f"{_QUANTITIES[str(quantity)]} of {labels[str(name)]}"] = law
        else:
            undecided.append(fits)
    n = len(decided) + len(undecided)
    if undecided:
        neither = sum(bool((fits["better_r_squared"] < MIN_R_SQUARED).any()) for fits in undecided)
        poor = (
            f" (in {neither} of them, neither law describes the curve: R² is below {MIN_R_SQUARED})" if neither else ""
        )
        decided["undecided for"] = f"{len(undecided)} of {n} combinations of quantity and set{poor}"
    if n:
        yield (
            "Law of growth along depth, without the output of the last block (exponential or power law; the table "
            f"below has both fits and the evidence): {listed(decided)}."
        )


def growth_table(growth: pd.DataFrame, labels: Mapping[str, str], position: Label) -> Table:
    """Return both fits and the comparison of the laws, for each quantity, set and site."""
    selected = _selected(growth, labels, position)
    rows = [
        [_QUANTITIES[str(quantity)].removeprefix("the "), labels[str(name)], str(site), *_cells(fits)]
        for (quantity, name, site), fits in selected.groupby(["quantity", "set", "site"], sort=False)
    ]
    return Table("Growth along depth: both laws, and the evidence for one of them at each site", _COLUMNS, rows)


def growth_notes() -> list[str]:
    """Return the rule of the verdicts."""
    return [
        BRACKETS,
        "both fits assume that errors of neighbouring depths are correlated (AR(1)). AIC and the intervals use this "
        "correlation. R² does not use it: R² compares a quantity's logarithm with the fitted curve. So R² can be "
        "negative, and the law with the larger R² can be another one than the law with the smaller AIC",
        f"a law is chosen if its AIC is at least {AIC_MARGIN:g} lower than that of the other law at both sites, and "
        "stays so if any single depth is left out. An exponential must also change the quantity by a factor of at "
        f"least {_LEAST_FACTOR:.0f}. Each site needs at least {VERDICT_POINTS} depths",
        f"no law is chosen if, at one of the sites, R² of the law with the smaller AIC is below {MIN_R_SQUARED}: then "
        "neither law describes the curve",
        "no law is chosen if, at one of the sites, the AIC of the product of both laws is at least "
        f"{PRODUCT_MARGIN:g} lower than that of the better law: then the product describes the curve better",
        "the origin of a power law is the depth, in blocks, at which the law is 0. An origin marked “limit” is at an "
        "end of its allowed range; then the exponent depends on this range",
    ]


def _selected(growth: pd.DataFrame, labels: Mapping[str, str], position: Label) -> pd.DataFrame:
    is_shown = growth["set"].isin(list(labels)) & growth["site"].isin(HALF_BLOCKS)
    return growth[(growth["position"] == position) & is_shown]


def _law(fits: pd.DataFrame) -> str:
    """Return the law that one quantity of one set follows, with its slope at the first site; empty if undecided."""
    verdict, first = str(fits["verdict"].iloc[0]), str(fits["site"].iloc[0])
    exponential, power = _laws(fits[fits["site"] == first])
    n = f"n = {int(exponential['n'])} depths at {first}"
    if np.isnan(exponential["r_squared"]):
        return f"constant ({n})"
    if verdict == "power law":
        return f"{verdict} (exponent {_slope(power)}, origin {_origin(power)} blocks, {_r_squared(power)}, {n})"
    if verdict == "exponential":
        return f"{verdict} (factor {_factor(exponential)} per block, {_r_squared(exponential)}, {n})"
    return ""


def _cells(fits: pd.DataFrame) -> Iterator[str]:
    """Yield the cells of one quantity, set and site behind their names."""
    exponential, power = _laws(fits)
    yield str(int(exponential["n"]))
    if np.isnan(exponential["r_squared"]):
        yield from (MISSING,) * 8
    else:
        yield from (_factor(exponential), f"{exponential['r_squared']:.2f}")
        yield from (_slope(power), _origin(power), f"{power['r_squared']:.2f}")
        if np.isnan(power["aic_difference"]):
            yield from (MISSING,) * 3
        else:
            difference, low, high = (power[f"aic_difference{end}"] for end in ("", "_low", "_high"))
            yield from (f"{difference:+.0f}", f"{low:+.0f} to {high:+.0f}", f"{power['aic_gain_of_product']:+.0f}")
    yield str(exponential["verdict"])


def _laws(fits: pd.DataFrame) -> tuple[Mapping[Hashable, Any], Mapping[Hashable, Any]]:
    """Return the fits of the exponential and of the power law at one site."""
    by_law = {fit["law"]: fit for fit in fits.to_dict("records")}
    return by_law["log_linear"], by_law["power_law"]


def _factor(fit: Mapping[Hashable, Any]) -> str:
    slope, low, high = np.exp([fit["slope"], fit["slope_low"], fit["slope_high"]])
    return f"{slope:.3f} [{low:.3f}, {high:.3f}]"


def _slope(fit: Mapping[Hashable, Any]) -> str:
    return f"{fit['slope']:.2f} [{fit['slope_low']:.2f}, {fit['slope_high']:.2f}]"


def _origin(fit: Mapping[Hashable, Any]) -> str:
    return f"{number(fit['origin'], 1)}{' (limit)' if fit['origin_at_limit'] else ''}"


def _r_squared(fit: Mapping[Hashable, Any]) -> str:
    return f"R² = {fit['r_squared']:.2f}"
