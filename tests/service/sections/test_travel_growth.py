"""Sentences, table and figure of growth along depth, from tables of this version and of an older one."""

import numpy as np
import pandas as pd
import pytest
import xarray as xr
from support.finished_runs import finished_run

from theodolite.figures.travel_growth import growth_figure
from theodolite.sections import travel
from theodolite.sections.travel_growth import growth_facts, growth_notes, growth_table

OLD = ["quantity", "set", "site", "position", "law", "intercept", "slope", "r_squared", "aic", "n"]
"""Columns of version 1."""

NAN = np.nan
MISSING = "\N{EN DASH}"
NOTHING = ((NAN,) * 3,) * 2
LAW = (
    "Law of growth of {} along depth, without the output of the last block (exponential or power law; the table "
    "below has both fits): {}."
)
MEAN_VARIANCE = LAW.replace("{}", "the mean variance", 1)
FACTOR = "factor 1.500 [1.330, 1.750] per block, R² = 0.97, n = 29 depths at resid_pre"
PRODUCT = "the AIC of a product of both laws is 9 lower than that of the better law at resid_mid, n = 29 depths"
AIC = "AIC of the power law minus that of the exponential at {}, with one depth left out {}, n = 29 depths"
POWER = "exponent 3.30 [2.90, 4.20], origin -2.5 blocks, R² = 0.97, n = 29 depths at resid_pre"
FITS = ["1.500 [1.330, 1.750]", "0.97", "3.30 [2.90, 4.20]", "-2.5", "0.97"]
"""Cells of both fits in a row of the table."""

COLUMNS = [
    *("quantity", "set", "site", "depths", "factor per block", "R²", "exponent", "origin", "R²"),
    *("AIC, power law minus exponential", "with one depth left out", "AIC gain of the product of both", "verdict"),
]


def table(verdict="undecided", differences=((16.2, 7.3, 28.4), (-50.1, -61.2, -9.6)), gains=(-2.0, 9.3), **changed):
    """The growth of one quantity: comparisons at resid_pre and resid_mid."""
    rows = []
    for site, (difference, low, high), gain in zip(("resid_pre", "resid_mid"), differences, gains, strict=True):
        compared = {"aic_difference": difference, "aic_difference_low": low, "aic_difference_high": high}
        shared = {"quantity": "variance_mean", "set": "bad", "site": site, "position": -1, "n": 29, "r_squared": 0.97}
        shared |= {**compared, "aic_gain_of_product": gain, "log_growth": 3.0, "verdict": verdict, "aic": -40.0}
        exponential = {"law": "log_linear", "slope": np.log(1.5), "slope_low": np.log(1.33), "slope_high": np.log(1.75)}
        power = {"law": "power_law", "slope": 3.3, "slope_low": 2.9, "slope_high": 4.2, "origin": -2.5}
        fits = {"intercept": 0.0, "origin": NAN, "origin_at_limit": False}
        rows += [{**shared, **fits, **law} for law in (exponential, power)]
    return pd.DataFrame(rows).assign(**changed)


def fact(growth, labels=None):
    (only,) = growth_facts(growth, labels or {"bad": "bad"}, -1)
    return only


def rows_of(growth, labels=None):
    return growth_table(growth, labels or {"bad": "bad"}, -1).rows


def test_a_law_is_undecided_if_a_product_of_both_laws_is_better_at_some_site():
    assert fact(table()) == MEAN_VARIANCE.format(f"bad undecided ({PRODUCT})")
    at_first = PRODUCT.replace("is 9", "is 12").replace("resid_mid", "resid_pre")
    assert fact(table(gains=(12.3, 9.3))) == MEAN_VARIANCE.format(f"bad undecided ({at_first})")
    least = PRODUCT.replace("is 9", "is 2")
    assert fact(table(gains=(-2.0, 2.0))) == MEAN_VARIANCE.format(f"bad undecided ({least})")


@pytest.mark.parametrize(
    ("differences", "expected"),
    [
        (((16.2, 7.3, 28.4), (9.4, 3.1, 30.0)), ("resid_mid: +9", "+3 to +30")),
        (((16.2, 3.1, 28.4), (9.4, 7.3, 30.0)), ("resid_pre: +16", "+3 to +28")),
        (((16.2, 7.3, 28.4), (-50.1, -61.2, -9.6)), ("resid_mid: -50", "-61 to -10")),
        (((-42.0, -46.0, 2.9), (-34.0, -45.0, 6.8)), ("resid_mid: -34", "-45 to +7")),
        (((-42.0, -46.0, 6.8), (-34.0, -45.0, 2.9)), ("resid_pre: -42", "-46 to +7")),
        (((-50.1, -61.2, -9.6), (16.2, 7.3, 28.4)), ("resid_mid: +16", "+7 to +28")),
    ],
)
def test_an_undecided_law_has_the_aic_at_the_site_with_the_weakest_evidence(differences, expected):
    growth = table(differences=differences, gains=(-2.0, 1.99))
    assert fact(growth) == MEAN_VARIANCE.format(f"bad undecided ({AIC.format(*expected)})")


def test_too_few_depths_at_one_site_are_named():
    growth = table(differences=(NOTHING[0], (-40.2, -49.6, -31.3)), gains=(NAN, -2.0))
    growth.loc[growth["site"] == "resid_pre", "n"] = 10
    assert "bad undecided (a verdict needs 11 depths at each site; n = 10 at resid_pre)" in fact(growth)


def test_a_constant_at_one_site_is_named():
    growth = table(differences=(NOTHING[0], (-40.2, -49.6, -31.3)), gains=(NAN, -2.0))
    assert "bad undecided (the quantity is constant at one of the sites)" in fact(growth)


def test_an_exponential_that_grows_too_little_is_named():
    growth = table(differences=((16.2, 7.3, 28.4), (9.1, 6.2, 19.6)), gains=(-2.0, 1.3), log_growth=1.3)
    assert "bad undecided (the exponential fits better, but changes the quantity by less than a factor of 4)" in fact(
        growth
    )


def test_an_exponential_has_its_factor():
    assert fact(table("exponential")) == MEAN_VARIANCE.format(f"bad exponential ({FACTOR})")


def test_a_power_law_has_its_exponent_and_origin():
    assert fact(table("power law")) == MEAN_VARIANCE.format(f"bad power law ({POWER})")
    growth = table("power law")
    growth["origin_at_limit"] = growth["law"] == "power_law"
    limit = POWER.replace("-2.5", "-2.5 (limit)")
    assert fact(growth) == MEAN_VARIANCE.format(f"bad power law ({limit})")


@pytest.mark.parametrize(
    ("low", "high", "interval"),
    [
        (0.1, 0.3, "1.221 [1.105, 1.350]"),
        (-0.3, -0.1, "0.819 [0.741, 0.905]"),
        (-0.1, 0.1, "1.000 [0.905, 1.105]"),
    ],
)
def test_a_falling_quantity_has_a_factor_below_1(low, high, interval):
    growth = table("exponential", slope=(low + high) / 2, slope_low=low, slope_high=high)
    assert fact(growth) == MEAN_VARIANCE.format(f"bad exponential ({FACTOR.replace(FITS[0], interval)})")
    assert [row[4] for row in rows_of(growth)] == [interval] * 2


def test_too_few_depths_are_named():
    growth = table(differences=NOTHING, gains=(NAN, NAN), n=10)
    assert fact(growth) == MEAN_VARIANCE.format(
        "bad undecided (a verdict needs 11 depths at each site; n = 10 at resid_pre)"
    )


def test_a_constant_has_no_slope():
    growth = table(differences=NOTHING, gains=(NAN, NAN), r_squared=NAN)
    assert fact(growth) == MEAN_VARIANCE.format("bad constant (n = 29 depths at resid_pre)")


def test_the_slope_is_that_of_the_first_site_and_n_that_of_the_named_site():
    product = PRODUCT.replace("29", "28")
    for verdict, expected in (("exponential", FACTOR), ("power law", POWER), ("undecided", product)):
        growth = table(verdict)
        growth.loc[growth["site"] == "resid_mid", ["slope", "r_squared", "n"]] = 0.5, 0.2, 28
        assert fact(growth) == MEAN_VARIANCE.format(f"bad {verdict} ({expected})")


def test_one_sentence_lists_all_sets_of_a_quantity():
    other = table("power law", set="a set")
    norms, largest = table("exponential", quantity="norm_mean"), table(quantity="variance_max")
    hidden = [table(set="hidden"), table(position=-2), table(site="attn_out")]
    growth = pd.concat([table(), other, norms, largest, *hidden], ignore_index=True)
    labels = {"bad": "bad", "a set": "a set (marked)"}
    assert list(growth_facts(growth, labels, -1)) == [
        MEAN_VARIANCE.format(f"bad undecided ({PRODUCT}); a set (marked) power law ({POWER})"),
        LAW.format("the norm", f"bad exponential ({FACTOR})"),
        LAW.format("the largest variance", f"bad undecided ({PRODUCT})"),
    ]
    assert [row[:3] for row in rows_of(growth, labels)] == [
        [quantity, label, site]
        for quantity, label in (
            ("mean variance", "bad"),
            ("mean variance", "a set (marked)"),
            ("norm", "bad"),
            ("largest variance", "bad"),
        )
        for site in ("resid_pre", "resid_mid")
    ]


def test_a_set_whose_fits_start_at_another_site_names_it():
    """Fewer than four values may have a logarithm at one site: the first input can be equal in all prompts."""
    other = table("power law", set="other")
    growth = pd.concat([table(), other[other["site"] == "resid_mid"]], ignore_index=True)
    power = POWER.replace("resid_pre", "resid_mid")
    assert fact(growth, {"bad": "bad", "other": "other"}) == MEAN_VARIANCE.format(
        f"bad undecided ({PRODUCT}); other power law ({power})"
    )


def test_the_table_has_both_fits_and_the_evidence_of_both_sites():
    found = growth_table(table(), {"bad": "bad (marked)"}, -1)
    assert found.caption == "Growth along depth: both laws, and the evidence for one of them at each site"
    assert found.columns == COLUMNS
    assert found.rows == [
        ["mean variance", "bad (marked)", "resid_pre", "29", *FITS, "+16", "+7 to +28", "-2", "undecided"],
        ["mean variance", "bad (marked)", "resid_mid", "29", *FITS, "-50", "-61 to -10", "+9", "undecided"],
    ]


def test_a_difference_can_change_its_sign_without_one_depth():
    growth = table(differences=((-42.0, -46.0, 2.9), (-34.0, -45.0, 6.8)), gains=(0, 0))
    assert [row[9:12] for row in rows_of(growth)] == [["-42", "-46 to +3", "+0"], ["-34", "-45 to +7", "+0"]]


def test_an_origin_at_an_end_of_its_range_is_marked():
    growth = table()
    growth["origin_at_limit"] = (growth["law"] == "power_law") & (growth["site"] == "resid_mid")
    assert [row[7] for row in rows_of(growth)] == ["-2.5", "-2.5 (limit)"]
    assert [row[7] for row in rows_of(growth.drop(columns="origin_at_limit"))] == ["-2.5", "-2.5"]
    note = "An origin marked “limit” is at an end of its allowed range; then the exponent depends on this range"
    assert growth_notes(growth)[-1].endswith(note)


def test_an_origin_that_rounds_to_0_has_no_sign():
    growth = table("power law", origin=-1e-9)
    assert "origin 0.0 blocks" in fact(growth)
    assert [row[7] for row in rows_of(growth)] == ["0.0", "0.0"]


def test_rows_with_too_few_depths_have_fits_and_no_evidence():
    growth = table(differences=(NOTHING[0], (-50.1, -61.2, -9.6)), gains=(NAN, 9.3))
    assert [row[4:] for row in rows_of(growth)] == [
        [*FITS, *[MISSING] * 3, "undecided"],
        [*FITS, "-50", "-61 to -10", "+9", "undecided"],
    ]


def test_rows_of_a_constant_have_only_their_depths():
    growth = table(differences=NOTHING, gains=(NAN, NAN), r_squared=NAN)
    start = [["mean variance", "bad", site, "29"] for site in ("resid_pre", "resid_mid")]
    assert rows_of(growth) == [[*of_site, *[MISSING] * 8, "undecided"] for of_site in start]
    assert all(len(row) == len(COLUMNS) for row in rows_of(growth))


def test_the_notes_state_the_rule_for_a_product_of_both_laws():
    assert (
        "no law is chosen if, at one of the sites, the AIC of the product of both laws is at least 2 lower than "
        "that of the better law: then the product describes the curve better"
    ) in growth_notes(table())


def test_a_table_of_an_older_version_has_no_slopes_and_verdicts():
    growth = table()[OLD]
    assert fact(growth).startswith("An older version fitted the growth along depth")
    assert growth_notes(growth) == []


@pytest.mark.parametrize("columns", [OLD, None])
def test_the_section_has_the_table_unless_an_older_version_fitted_the_growth(tmp_path, monkeypatch, columns):
    growth = table(set="harmful") if columns is None else table(set="harmful")[columns]
    monkeypatch.setattr(travel, "read_finished_table", lambda *_: growth)
    (section,) = travel.sections(finished_run(tmp_path, {"curves": {}, "moments": {}, "travel": {}}))
    assert [found.columns for found in section.tables] == ([COLUMNS] if columns is None else [])
    assert [row[1] for found in section.tables for row in found.rows] == (["harmful"] * 2 if columns is None else [])
    assert any("marked “limit”" in note for note in section.notes) == (columns is None)


@pytest.mark.parametrize("columns", [OLD, None])
def test_the_figure_has_points_and_both_fits_at_both_sites(columns):
    growth = table() if columns is None else table()[columns]
    values = np.exp(np.arange(10.0)).reshape(1, 2, 1, 5)
    labels = {"set": ["bad"], "site": ["resid_pre", "resid_mid"], "position": [-1], "layer": range(5)}
    figure = growth_figure(growth, {"variance_mean": xr.DataArray(values, labels, list(labels))}, "bad", -1, "#d9622b")
    names = [f"{line}, {site}" for site in ("pre", "mid") for line in ("measured", "exponential", "power law")]
    assert [trace.name for trace in figure.data] == names
    origin = "-2.5" if columns is None else "0.0"
    assert f"origin pre {origin}, mid {origin}" in figure.layout.yaxis.title.text
    power = figure.data[2]
    first = 1 if columns is not None else 0  # a power law of an older version has no value at its origin
    depth = power.x[first] / 2
    np.testing.assert_allclose(power.y[first], (depth + (0 if columns is not None else 2.5)) ** 3.3, rtol=1e-12)
