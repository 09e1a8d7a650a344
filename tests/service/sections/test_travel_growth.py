"""Sentences, table and figure of growth along depth."""

import numpy as np
import pandas as pd
import xarray as xr
from support.each import each
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.travel import sections as travel
from theodolite.groups.travel.figures_growth import growth_figure
from theodolite.groups.travel.sections_growth import growth_facts, growth_notes, growth_table

NAN = np.nan
MISSING = "\N{EN DASH}"
NOTHING = ((NAN,) * 3,) * 2
BAD = "mean variance of bad"
FACTOR = "factor 1.500 [1.330, 1.750] per block … 0.97, n = 29 … resid_pre"
POWER = "exponent 3.30 [2.90, 4.20], origin -2.5 … 0.97, n = 29 … resid_pre"
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
        shared |= {**compared, "aic_gain_of_product": gain, "log_growth": 3.0, "better_r_squared": 0.97}
        shared |= {"verdict": verdict, "aic": -40.0}
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


def test_undecided_laws_are_counted_in_one_sentence():
    many = [
        table(quantity=quantity, set=name) for quantity in ("norm_mean", "variance_max") for name in ("bad", "good")
    ]
    growth = pd.concat([*many, table("power law", set="good")], ignore_index=True)
    expected = f"mean variance of good power law ({POWER} … undecided for 4 of 5"
    assert_says(fact(growth, {"bad": "bad", "good": "good"}), expected)


def test_neither_law_describes_a_curve_if_the_better_one_has_a_small_r_squared():
    growth = pd.concat([table(), table(set="good", better_r_squared=-0.41)], ignore_index=True)
    text = fact(growth, {"bad": "bad", "good": "good"})
    assert_says(text, "undecided for 2 of 2 … in 1 of them, neither law … below 0.5")


def test_an_exponential_has_its_factor():
    assert_says(fact(table("exponential")), f"{BAD} exponential ({FACTOR}")


def test_a_power_law_has_its_exponent_and_origin():
    assert_says(fact(table("power law")), f"{BAD} power law ({POWER}")
    growth = table("power law")
    growth["origin_at_limit"] = growth["law"] == "power_law"
    limit = POWER.replace("-2.5", "-2.5 (limit)")
    assert_says(fact(growth), f"{BAD} power law ({limit}")


@each(
    "low, high, interval",
    [
        (0.1, 0.3, "1.221 [1.105, 1.350]"),
        (-0.3, -0.1, "0.819 [0.741, 0.905]"),
        (-0.1, 0.1, "1.000 [0.905, 1.105]"),
    ],
)
def test_a_falling_quantity_has_a_factor_below_1(low, high, interval):
    growth = table("exponential", slope=(low + high) / 2, slope_low=low, slope_high=high)
    assert_says(fact(growth), f"{BAD} exponential ({FACTOR.replace(FITS[0], interval)}")
    assert [row[4] for row in rows_of(growth)] == [interval] * 2


def test_too_few_depths_are_undecided():
    growth = table(differences=NOTHING, gains=(NAN, NAN), n=10, better_r_squared=NAN)
    assert_says(fact(growth), "undecided for 1 of 1")
    assert "neither" not in fact(growth)


def test_a_constant_has_no_slope():
    growth = table(differences=NOTHING, gains=(NAN, NAN), r_squared=NAN)
    assert_says(fact(growth), f"{BAD} constant (n = 29 … resid_pre")


def test_the_slope_is_that_of_the_first_site():
    for verdict, expected in (("exponential", FACTOR), ("power law", POWER)):
        growth = table(verdict)
        growth.loc[growth["site"] == "resid_mid", ["slope", "r_squared", "n"]] = 0.5, 0.2, 28
        assert_says(fact(growth), f"{BAD} {verdict} ({expected}")


def test_one_sentence_lists_the_quantities_and_sets():
    other = table("power law", set="a set")
    norms, largest = table("exponential", quantity="norm_mean"), table(quantity="variance_max")
    hidden = [table(set="hidden"), table(position=-2), table(site="attn_out")]
    growth = pd.concat([table(), other, norms, largest, *hidden], ignore_index=True)
    labels = {"bad": "bad", "a set": "a set (marked)"}
    expected = f"a set (marked) power law ({POWER} … norm of bad exponential ({FACTOR} … undecided for 2 of 4"
    assert_says(fact(growth, labels), f"mean variance of {expected}")
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
    assert_says(fact(growth, {"bad": "bad", "other": "other"}), f"mean variance of other power law ({power}")


def test_the_table_has_both_fits_and_the_evidence_of_both_sites():
    found = growth_table(table(), {"bad": "bad (marked)"}, -1)
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
    assert_says(growth_notes()[-1], "marked “limit” … end of its allowed range")


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
    assert_says(growth_notes(), "no law … product of both laws … at least 2 lower")


def test_the_section_has_the_table(tmp_path, monkeypatch):
    monkeypatch.setattr(travel, "read_finished_table", lambda *_: table(set="harmful"))
    (section,) = travel.sections(cached_run(tmp_path, {"curves": {}, "moments": {}, "travel": {}}))
    assert [found.columns for found in section.tables] == [COLUMNS]
    assert [row[1] for found in section.tables for row in found.rows] == ["harmful"] * 2
    assert any("marked “limit”" in note for note in section.notes)


def test_the_figure_has_points_and_both_fits_at_both_sites():
    values = np.exp(np.arange(10.0)).reshape(1, 2, 1, 5)
    labels = {"set": ["bad"], "site": ["resid_pre", "resid_mid"], "position": [-1], "layer": range(5)}
    curves = {"variance_mean": xr.DataArray(values, labels, list(labels))}
    figure = growth_figure(table(), curves, "bad", -1, "#d9622b")
    names = [f"{line}, {site}" for site in ("pre", "mid") for line in ("measured", "exponential", "power law")]
    assert [trace.name for trace in figure.data] == names
    assert "origin pre -2.5, mid -2.5" in figure.layout.yaxis.title.text
    power = figure.data[2]
    np.testing.assert_allclose(power.y[0], (power.x[0] / 2 + 2.5) ** 3.3, rtol=1e-12)
