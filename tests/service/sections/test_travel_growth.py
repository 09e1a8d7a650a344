"""Sentences and figure of growth along depth, from tables of this version and of an older one."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr

from theodolite.figures.travel_growth import growth_figure
from theodolite.sections.travel_growth import growth_facts, growth_notes

OLD = ["quantity", "set", "site", "position", "law", "intercept", "slope", "r_squared", "aic", "n"]
"""Columns of version 1."""


def table(verdict="undecided", differences=((16.2, 7.3, 28.4), (-50.1, -61.2, -9.6)), gains=(-2.0, 9.3)):
    """The growth of one quantity: comparisons at resid_pre and resid_mid."""
    rows = []
    for site, (difference, low, high), gain in zip(("resid_pre", "resid_mid"), differences, gains, strict=True):
        compared = {"aic_difference": difference, "aic_difference_low": low, "aic_difference_high": high}
        shared = {"quantity": "variance_mean", "set": "bad", "site": site, "position": -1, "n": 29, "r_squared": 0.97}
        shared |= {**compared, "aic_gain_of_product": gain, "log_growth": 3.0, "verdict": verdict, "aic": -40.0}
        exponential = {"law": "log_linear", "slope": np.log(1.5), "slope_low": np.log(1.33), "slope_high": np.log(1.75)}
        power = {"law": "power_law", "slope": 3.3, "slope_low": 2.9, "slope_high": 4.2, "origin": -2.5}
        rows += [{**shared, "intercept": 0.0, "origin": np.nan, **law} for law in (exponential, power)]
    return pd.DataFrame(rows)


def fact(growth):
    (only,) = growth_facts(growth, {"bad": "bad"}, -1)
    return only


def test_an_undecided_law_has_its_slope_and_the_evidence_of_both_sites():
    assert fact(table()) == (
        "Mean variance of bad grows by a factor of 1.500 [1.330, 1.750] per block if an exponential is fitted (at "
        "resid_pre, n = 29 depths, R² = 0.97). Exponential or power law: undecided. At resid_pre the AIC of the "
        "exponential is 16 lower (if one depth is left out: 7 to 28 lower); at resid_mid the AIC of the power law is "
        "50 lower (if one depth is left out: 10 to 61 lower), and that of a product of both laws is another 9 lower."
    )


def test_a_difference_that_changes_its_sign_without_one_depth_is_called_higher():
    growth = table(differences=((-42.0, -46.0, 2.9), (-34.0, -45.0, 6.8)), gains=(0, 0))
    assert "the AIC of the power law is 42 lower (if one depth is left out: between 3 higher and 46 lower)" in fact(
        growth
    )


def test_a_power_law_has_its_exponent_and_origin():
    expected = (
        "grows with the exponent 3.30 [2.90, 4.20] of depth (power law with the origin -2.5 blocks, at resid_pre, "
    )
    assert expected + "n = 29 depths, R² = 0.97). Exponential or power law: power law. At" in fact(table("power law"))


@pytest.mark.parametrize(("low", "high", "verb"), [(0.1, 0.3, "grows"), (-0.3, -0.1, "falls"), (-0.1, 0.1, "changes")])
def test_the_verb_follows_the_interval(low, high, verb):
    growth = table().assign(slope=(low + high) / 2, slope_low=low, slope_high=high)
    assert fact(growth).startswith(f"Mean variance of bad {verb} by a factor of")


def test_too_few_depths_are_named():
    nothing = [(np.nan,) * 3] * 2
    assert "undecided. A verdict needs 11 depths, and values that are not constant." in fact(table(differences=nothing))


def test_a_constant_has_no_slope():
    growth = table(differences=[(np.nan,) * 3] * 2).assign(r_squared=np.nan)
    assert fact(growth).startswith("Mean variance of bad is constant (at resid_pre, n = 29 depths).")


def test_a_table_of_an_older_version_has_no_slopes_and_verdicts():
    growth = table()[OLD]
    assert fact(growth).startswith("An older version fitted the growth along depth")
    assert growth_notes(growth) == []


@pytest.mark.parametrize("columns", [OLD, None])
def test_the_figure_has_points_and_both_fits_at_both_sites(columns):
    growth = table() if columns is None else table()[columns]
    values = np.exp(np.arange(10.0)).reshape(1, 2, 1, 5)
    labels = {"set": ["bad"], "site": ["resid_pre", "resid_mid"], "position": [-1], "layer": range(5)}
    figure = growth_figure(growth, {"variance_mean": xr.DataArray(values, labels, list(labels))}, "bad", -1)
    names = [f"{line}, {site}" for site in ("pre", "mid") for line in ("measured", "exponential", "power law")]
    assert [trace.name for trace in figure.data] == names
    origin = "-2.5" if columns is None else "0.0"
    assert f"origin pre {origin}, mid {origin}" in figure.layout.yaxis.title.text
    power = figure.data[2]
    first = 1 if columns is not None else 0  # a power law of an older version has no value at its origin
    depth = power.x[first] / 2
    np.testing.assert_allclose(power.y[first], (depth + (0 if columns is not None else 2.5)) ** 3.3, rtol=1e-12)
