"""Verdicts on simulated curves; `benchmarks/growth.py` measures them on many more."""

import numpy as np
import pytest
from support.each import each

from theodolite_jobs.groups.travel.formulas_growth import growth_fits
from theodolite_jobs.groups.travel.formulas_verdict import Comparison, comparison, verdict

HALF_BLOCKS = np.arange(60) / 2


def verdict_of(log_y):
    """The verdict on a curve of ln y at half-blocks, with its even points at one site and its odd ones at the other."""
    return verdict([comparison(HALF_BLOCKS[site::2], np.exp(log_y[site::2])) for site in (0, 1)])


def errors(rng, rho, sd, n=60):
    values = rng.normal(size=n)
    for index in range(1, n):
        values[index] = np.sqrt(rho) * values[index - 1] + np.sqrt(1 - rho) * values[index]
    return sd * values


def site(difference=10.0, low=8.0, high=12.0, gain=0.0, growth=3.0, r_squared=0.9):
    return Comparison(difference, low, high, gain, growth, r_squared)


@each(
    "sites, expected",
    [
        ([site(), site()], "exponential"),
        ([site(-10.0, -12.0, -8.0), site(-10.0, -12.0, -8.0)], "power law"),
        ([site()], "exponential"),  # parallel blocks have one site
        ([site(), site(-10.0, -12.0, -8.0)], "undecided"),  # the sites disagree
        ([site(), site(5.9, 5.9, 7.0)], "undecided"),  # the margin is not reached at one site
        ([site(), site(low=5.0)], "undecided"),  # without one point the margin is not reached
        ([site(-10.0, -12.0, -8.0), site(-10.0, -12.0, 3.0)], "undecided"),
        ([site(), site(gain=2.0)], "undecided"),  # a product of both laws describes the curve better
        ([site(), site(growth=1.3)], "undecided"),  # a power law with a distant origin grows as much
        ([site(), site(r_squared=0.49)], "undecided"),  # the preferred law does not describe the curve
        ([site(-10.0, -12.0, -8.0, r_squared=-0.41)], "undecided"),
        ([site(), site(*[float("nan")] * 6)], "undecided"),
        ([], "undecided"),
    ],
)
def test_the_rule_of_the_verdict(sites, expected):
    assert verdict(sites) == expected


def test_an_exponential_and_a_power_law_without_errors_are_decided():
    small = 1e-3 * np.random.default_rng(0).normal(size=60)
    assert verdict_of(0.3 * HALF_BLOCKS + small) == "exponential"
    assert verdict_of(2 * np.log(HALF_BLOCKS + 1) + small) == "power law"


def test_a_product_of_both_laws_is_undecided():
    small = 0.02 * np.random.default_rng(0).normal(size=60)
    assert verdict_of(0.2 * HALF_BLOCKS + 1.5 * np.log(HALF_BLOCKS + 0.5) + small) == "undecided"


def test_one_low_first_point_of_an_exponential_is_no_power_law():
    """With all points, the AIC of the power law is more than 20 lower at both sites."""
    curve = 0.1 * HALF_BLOCKS - 3 * (HALF_BLOCKS < 1) + 0.05 * np.random.default_rng(0).normal(size=60)
    for start in (0, 1):
        found = comparison(HALF_BLOCKS[start::2], np.exp(curve[start::2]))
        assert found.aic_difference < -20
        assert found.aic_difference_high > 0
    assert verdict_of(curve) == "undecided"


def test_a_comparison_has_the_r_squared_of_the_law_with_the_smaller_aic():
    t = np.arange(30.0)
    for y in (np.exp(0.3 * t), (t + 1) ** 2.0, np.exp(errors(np.random.default_rng(1), 0.9, 1.0, 30))):
        found, fits = comparison(t, y), growth_fits(t, y)
        assert found.better_r_squared == pytest.approx(min(fits, key=lambda fit: fit.aic).r_squared, rel=1e-9)


def test_comparison_without_a_point_equals_a_comparison_of_the_others():
    rng = np.random.default_rng(0)
    t = np.arange(12.0)
    y = np.exp(0.2 * t + errors(rng, 0.5, 0.2, 12))
    whole = comparison(t, y)
    others = [comparison(np.delete(t, index), np.delete(y, index)).aic_difference for index in range(12)]
    np.testing.assert_allclose([whole.aic_difference_low, whole.aic_difference_high], [min(others), max(others)])


@each("y", [np.full(20, 3.0), np.exp(np.arange(10.0)), np.full(20, np.nan)])
def test_a_constant_or_a_few_points_have_no_comparison(y):
    found = comparison(np.arange(float(len(y))), y)
    assert np.isnan(list(vars(found).values())).all()
    assert verdict([found]) == "undecided"


@pytest.mark.nightly
@each("law", ["exponential", "power law"])
def test_few_verdicts_on_laws_with_autocorrelated_errors_are_wrong(law):
    """A small version of benchmarks/growth.py, with the largest observed errors."""
    rng = np.random.default_rng(2)
    truth = 0.1 * HALF_BLOCKS if law == "exponential" else 2 * np.log(HALF_BLOCKS + 1)
    found = [verdict_of(truth + errors(rng, 0.85, 0.3)) for _ in range(8)]
    assert all(each in (law, "undecided") for each in found)


def test_random_walks_are_undecided():
    rng = np.random.default_rng(3)
    found = [verdict_of(np.cumsum(0.2 * rng.normal(size=60))) for _ in range(8)]
    assert found.count("undecided") >= 7
