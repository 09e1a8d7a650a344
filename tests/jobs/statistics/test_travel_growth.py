import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize
from scipy.stats import multivariate_normal
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.travel.formulas_growth import akaike, growth_fits, slope_interval

DEPTHS = np.arange(0, 24, 0.5)[::2]


def grown(fit, t):
    """What a fit says y is at depths t."""
    axis = t if fit.law == "log_linear" else np.log(t - fit.origin)
    return np.exp(fit.intercept + fit.slope * axis)


def by_law(t, y):
    fits = growth_fits(t, y)
    assert [fit.law for fit in fits] == ["log_linear", "power_law"]
    return {fit.law: fit for fit in fits}


def autocorrelated(rng, n, rho, sd):
    values = rng.normal(size=n)
    for index in range(1, n):
        values[index] = rho * values[index - 1] + np.sqrt(1 - rho**2) * values[index]
    return sd * values


def deviance(t, y, columns, rho):
    """−2 ln of the likelihood with AR(1) errors, from the matrix of all correlations."""
    matrix = rho ** np.abs(np.subtract.outer(t, t))
    inverse = np.linalg.inv(matrix)
    design = np.stack([np.ones(len(t)), *columns], axis=1)
    residuals = y - design @ np.linalg.solve(design.T @ inverse @ design, design.T @ inverse @ y)
    covariance = residuals @ inverse @ residuals / len(t) * matrix
    return float(-2 * multivariate_normal(np.zeros(len(t)), covariance, allow_singular=True).logpdf(residuals))


@given(st.floats(-0.5, 0.5), st.floats(-5, 5))
@settings(deadline=None, max_examples=30)
def test_an_exponential_is_recovered_and_has_the_smaller_aic(rate, intercept):
    y = np.exp(intercept + rate * DEPTHS)
    fits = by_law(DEPTHS, y)
    found = fits["log_linear"]
    np.testing.assert_allclose([found.intercept, found.slope], [intercept, rate], atol=1e-11)
    np.testing.assert_allclose(grown(found, DEPTHS), y, rtol=1e-10)
    assert found.n == len(DEPTHS)
    assert np.isnan(found.origin)
    if abs(rate) > 1e-3:
        np.testing.assert_allclose(found.r_squared, 1, rtol=1e-12)
        assert found.aic < fits["power_law"].aic - 100


@given(st.floats(0.5, 3), st.floats(-5, 5), st.floats(0.5, 20))
@settings(deadline=None, max_examples=30)
def test_a_power_law_is_recovered_with_its_origin(exponent, intercept, distance):
    y = np.exp(intercept) * (DEPTHS + distance) ** exponent
    fits = by_law(DEPTHS, y)
    found = fits["power_law"]
    np.testing.assert_allclose(found.origin, -distance, rtol=0.02)
    np.testing.assert_allclose(found.slope, exponent, rtol=0.02)
    np.testing.assert_allclose(grown(found, DEPTHS), y, rtol=0.01)
    assert found.aic < fits["log_linear"].aic - 50


def test_equal_steps_in_one_direction_grow_quadratically_in_variance():
    """A constant direction from the origin −2: the exponential explains two thirds of ln y."""
    fits = by_law(DEPTHS, 0.3 * (DEPTHS + 2) ** 2)
    np.testing.assert_allclose([fits["power_law"].slope, fits["power_law"].origin], [2, -2], rtol=0.01)
    assert fits["log_linear"].r_squared > 0.65
    assert fits["power_law"].aic < fits["log_linear"].aic - 50


@each("seed", range(4))
def test_aic_equals_an_independent_maximisation(seed):
    rng = np.random.default_rng(seed)
    t = np.arange(16.0) + 0.5
    y = 1.5 * np.log(t + 2) + autocorrelated(rng, 16, 0.6, 0.1)
    fits = by_law(t, np.exp(y))
    exponential = minimize(lambda p: deviance(t, y, [t], np.tanh(p[0])), [0.5], method="Nelder-Mead")
    np.testing.assert_allclose(fits["log_linear"].aic, exponential.fun + 2 * 4, atol=0.01)
    starts = [(0.3, -0.5), (0.3, 1.0), (0.8, 2.5)]
    bounds = [(-2, 4), (np.log(0.5), np.log(15))]
    power = min(
        minimize(
            lambda p: deviance(t, y, [np.log(t - t[0] + np.exp(p[1]))], np.tanh(p[0])),
            start,
            method="Nelder-Mead",
            bounds=bounds,
        ).fun
        for start in starts
    )
    np.testing.assert_allclose(fits["power_law"].aic, power + 2 * 5, atol=0.1)  # the margin of a verdict is 6
    assert akaike("product", t[None], y[None])[0] <= min(fit.aic for fit in fits.values()) + 2 * 2 + 0.1


def test_the_interval_is_wider_if_neighbouring_errors_resemble_each_other():
    rng = np.random.default_rng(0)
    t = np.arange(30.0)
    widths = []
    for rho in (0.0, 0.8):
        low, high = slope_interval("log_linear", t, 0.1 * t + autocorrelated(rng, 30, rho, 0.2))
        widths.append(high - low)
    assert widths[1] > 2 * widths[0]


@each("n, rho", [(12, 0.0), (12, 0.8), (30, 0.8)])
@unchecked()
def test_the_interval_of_the_slope_covers_the_true_one(n, rho):
    """A small version of benchmarks/growth.py. Ordinary least squares cover 50 % at n = 30 and rho = .8."""
    rng, t = np.random.default_rng(1), np.arange(float(n))
    intervals = [slope_interval("log_linear", t, 0.1 * t + autocorrelated(rng, n, rho, 0.2)) for _ in range(150)]
    assert 0.90 <= np.mean([low <= 0.1 <= high for low, high in intervals]) <= 1


def test_points_without_a_logarithm_are_left_out_of_both_fits():
    t, y = np.arange(12.0), np.exp(0.2 * np.arange(12.0))
    y[[1, 4, 6, 9]] = [0, -1, np.nan, np.inf]
    for fit in by_law(t, y).values():
        assert fit.n == 8
    np.testing.assert_allclose(by_law(t, y)["log_linear"].slope, 0.2, rtol=1e-10)


def test_fewer_than_four_points_are_not_fitted():
    t = np.arange(3.0)
    assert growth_fits(t, np.exp(t)) == []
    assert growth_fits(np.arange(4.0), np.full(4, np.nan)) == []
    assert len(growth_fits(np.arange(4.0), np.exp([0.0, 0.3, 0.5, 1.1]))) == 2


@each("n", [4, 7, 24, 63])
@each("value", [1.0, 3.0, 0.1, 7.3, 1e5])
def test_a_constant_has_slope_0_and_nan_r_squared(n, value):
    for fit in by_law(np.arange(1.0, n + 1), np.full(n, value)).values():
        np.testing.assert_allclose([fit.intercept, fit.slope], [np.log(value), 0], atol=1e-12)
        assert np.isnan(fit.r_squared)  # 0/0


@given(st.integers(0, 1000), st.floats(0.01, 100))
@settings(deadline=None, max_examples=30)
def test_the_unit_of_y_moves_the_intercept_alone(seed, unit):
    t = np.arange(1.0, 12)
    y = np.exp(np.random.default_rng(seed).normal(size=11))
    plain, scaled = by_law(t, y), by_law(t, unit * y)
    for law, fit in plain.items():
        other = scaled[law]
        np.testing.assert_allclose(other.intercept - fit.intercept, np.log(unit), atol=1e-6)
        for name in ("slope", "slope_low", "slope_high", "aic", "autocorrelation", "r_squared"):
            np.testing.assert_allclose(getattr(other, name), getattr(fit, name), rtol=1e-6, atol=1e-6)
