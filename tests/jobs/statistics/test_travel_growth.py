import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from theodolite_jobs.statistics.travel_growth import growth_fits

DEPTHS = np.arange(0, 24, 0.5)


def grown(fit, t):
    """What a fit says y is at depths t."""
    return np.exp(fit.intercept + fit.slope * (t if fit.law == "log_linear" else np.log(t)))


def by_law(t, y):
    fits = growth_fits(t, y)
    assert [fit.law for fit in fits] == ["log_linear", "power_law"]
    return {fit.law: fit for fit in fits}


def least_squares(x, y):
    """Intercept, slope, R² and AIC of a line, by hand."""
    design = np.stack([np.ones(len(x)), x], axis=1)
    solution, _, _, _ = np.linalg.lstsq(design, y, rcond=None)
    left = ((y - design @ solution) ** 2).sum()
    return *solution, 1 - left / ((y - y.mean()) ** 2).sum(), len(x) * np.log(left / len(x)) + 2 * 3


@given(st.floats(-0.5, 0.5), st.floats(-5, 5))
@settings(deadline=None)
def test_an_exponential_is_recovered_and_has_the_smaller_aic(rate, intercept):
    y = np.exp(intercept + rate * DEPTHS)
    fits = by_law(DEPTHS, y)
    found = fits["log_linear"]
    np.testing.assert_allclose([found.intercept, found.slope], [intercept, rate], atol=1e-11)
    np.testing.assert_allclose(grown(found, DEPTHS[1:]), y[1:], rtol=1e-10)
    assert found.n == len(DEPTHS) - 1  # not at depth 0
    if abs(rate) > 1e-3:
        np.testing.assert_allclose(found.r_squared, 1, rtol=1e-12)
        assert found.aic < fits["power_law"].aic - 100


@given(st.floats(-3, 3), st.floats(-5, 5))
@settings(deadline=None)
def test_a_power_law_is_recovered_and_has_the_smaller_aic(exponent, intercept):
    t = DEPTHS[1:]
    y = np.exp(intercept) * t**exponent
    fits = by_law(t, y)
    found = fits["power_law"]
    np.testing.assert_allclose([found.intercept, found.slope], [intercept, exponent], atol=1e-11)
    np.testing.assert_allclose(grown(found, t), y, rtol=1e-10)
    if abs(exponent) > 1e-3:
        np.testing.assert_allclose(found.r_squared, 1, rtol=1e-12)
        assert found.aic < fits["log_linear"].aic - 100


def test_equal_steps_in_one_direction_grow_quadratically_in_variance():
    """What is easily taken for an exponential: R² alone says .8."""
    fits = by_law(DEPTHS, 0.3 * DEPTHS**2)
    np.testing.assert_allclose(fits["power_law"].slope, 2, rtol=1e-12)
    assert 0.7 < fits["log_linear"].r_squared < 0.9
    assert fits["power_law"].aic < fits["log_linear"].aic


@given(st.integers(0, 1000), st.integers(4, 60), st.floats(0.01, 2))
@settings(deadline=None)
def test_fits_equal_least_squares_by_hand(seed, n, noise):
    rng = np.random.default_rng(seed)
    t = np.sort(rng.uniform(0.5, 40, size=n))
    y = np.exp(0.1 * t + noise * rng.normal(size=n))
    fits = by_law(t, y)
    for law, x in (("log_linear", t), ("power_law", np.log(t))):
        fit = fits[law]
        found = [fit.intercept, fit.slope, fit.r_squared, fit.aic]
        np.testing.assert_allclose(found, least_squares(x, np.log(y)), rtol=1e-7, atol=1e-9)
        assert fit.n == n


def test_noise_does_not_change_which_law_is_preferred():
    rng, t = np.random.default_rng(0), np.arange(1.0, 33)
    noise = np.exp(0.05 * rng.normal(size=32))
    exponential, power = by_law(t, np.exp(0.15 * t) * noise), by_law(t, t**2 * noise)
    assert exponential["log_linear"].aic < exponential["power_law"].aic
    assert power["power_law"].aic < power["log_linear"].aic


def test_points_without_a_logarithm_are_left_out_of_both_fits():
    t, y = np.arange(12.0), np.exp(0.2 * np.arange(12.0))
    kept = [2, 3, 5, 7, 8, 10, 11]
    y[[1, 4, 6, 9]] = [0, -1, np.nan, np.inf]  # and depth 0 has none
    fits = by_law(t, y)
    for law, x in (("log_linear", t), ("power_law", np.log(np.maximum(t, 1)))):
        assert fits[law].n == 7
        intercept, slope = np.linalg.lstsq(np.stack([np.ones(7), x[kept]], axis=1), np.log(y[kept]), rcond=None)[0]
        np.testing.assert_allclose([fits[law].intercept, fits[law].slope], [intercept, slope], atol=1e-11)


def test_fewer_than_four_points_are_not_fitted():
    t = np.arange(4.0)
    assert growth_fits(t, np.exp(t)) == []  # depth 0 does not count
    assert len(growth_fits(t + 1, np.exp(t))) == 2
    assert growth_fits(t + 1, np.full(4, np.nan)) == []


@pytest.mark.parametrize("n", [4, 7, 24, 63])
@pytest.mark.parametrize("value", [1.0, 3.0, 0.1, 7.3, 1e5])
def test_a_constant_has_slope_0_and_nan_r_squared(n, value):
    for fit in by_law(np.arange(1.0, n + 1), np.full(n, value)).values():
        np.testing.assert_allclose([fit.intercept, fit.slope], [np.log(value), 0], atol=1e-12)
        assert np.isnan(fit.r_squared)  # 0/0


@given(st.integers(0, 1000), st.floats(0.001, 1000))
@settings(deadline=None)
def test_the_unit_of_y_moves_the_intercept_alone(seed, unit):
    t = np.arange(1.0, 12)
    y = np.exp(np.random.default_rng(seed).normal(size=11))
    plain, scaled = by_law(t, y), by_law(t, unit * y)
    for law, fit in plain.items():
        other = scaled[law]
        np.testing.assert_allclose(other.intercept - fit.intercept, np.log(unit), atol=1e-10)
        np.testing.assert_allclose([other.slope, other.aic], [fit.slope, fit.aic], rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(other.r_squared, fit.r_squared, atol=1e-10)
