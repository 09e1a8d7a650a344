"""The likelihood and least squares with AR(1) errors equal dense matrices, and the search finds the maximum."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.stats import multivariate_normal
from support.each import each

from theodolite_jobs.groups.travel.formulas_autocorrelation import maximum_likelihood, weighted_fits


def line(t, log_distances):
    """The columns 1 and t, for each origin."""
    shape = (*log_distances.shape, t.shape[1])
    return np.stack([np.ones(shape), np.broadcast_to(t[:, None], shape)], axis=2)


def covariance(t, rho):
    return rho ** np.abs(np.subtract.outer(t, t))


def dense(t, columns, y, rho):
    """Slope, RSS, information and deviance of the last column, from the matrix of all correlations."""
    matrix, design = covariance(t, rho), columns.T
    inverse = np.linalg.inv(matrix)
    normal = design.T @ inverse @ design
    coefficients = np.linalg.solve(normal, design.T @ inverse @ y)
    residuals = y - design @ coefficients
    rss = residuals @ inverse @ residuals
    variance = np.linalg.inv(normal)[-1, -1]
    n = len(y)
    deviance = -2 * multivariate_normal(np.zeros(n), rss / n * matrix).logpdf(residuals)
    return coefficients[-1], rss, 1 / variance, deviance, np.linalg.slogdet(matrix)[1] + np.linalg.slogdet(normal)[1]


@given(st.integers(0, 1000), st.integers(5, 20), st.floats(-0.9, 0.98))
@settings(deadline=None)
def test_fits_equal_those_from_the_matrix_of_all_correlations(seed, n, rho):
    rng = np.random.default_rng(seed)
    t = np.cumsum(rng.integers(1, 3, size=n)) + 0.5  # captured layers may have gaps
    columns, y = rng.normal(size=(1, 2, 3, n)), rng.normal(size=(1, n))
    fits = weighted_fits(t[None], columns, y, np.array([[rho]]))
    for origin in range(2):
        found = [values[0, 0, origin] for values in vars(fits).values()]
        np.testing.assert_allclose(found, dense(t, columns[0, origin], y[0], rho), rtol=1e-7, atol=1e-8)


def test_three_points_by_hand():
    """y = (0, 1, 3) at rho = ½: prediction errors 0, 1/√¾ and 2.5/√¾; a column of ones becomes 1, ½/√¾, ½/√¾."""
    fits = weighted_fits(np.arange(3.0)[None], np.ones((1, 1, 1, 3)), np.array([[0.0, 1, 3]]), np.array([[0.5]]))
    np.testing.assert_allclose(fits.information, 1 + 2 / 3)
    np.testing.assert_allclose(fits.slope, (0.5 * 1 + 0.5 * 2.5) / 0.75 / (5 / 3))  # 1.4
    np.testing.assert_allclose(fits.rss, (1 + 2.5**2) / 0.75 - 1.4**2 * 5 / 3)
    np.testing.assert_allclose(fits.deviance, 3 * (np.log(2 * np.pi * fits.rss / 3) + 1) + 2 * np.log(0.75))


def test_independent_errors_give_ordinary_least_squares():
    rng = np.random.default_rng(0)
    t, y = np.arange(12.0), rng.normal(size=12)
    fits = weighted_fits(t[None], line(t[None], np.zeros((1, 1))), y[None], np.zeros((1, 1)))
    slope, _ = np.polyfit(t, y, 1)
    np.testing.assert_allclose(fits.slope[0, 0, 0], slope)
    np.testing.assert_allclose(fits.information[0, 0, 0], 12 * t.var())


@each("seed", range(5))
def test_the_search_finds_the_maximum_of_the_likelihood(seed):
    rng = np.random.default_rng(seed)
    t = np.arange(20.0)
    errors = rng.normal(size=20)
    for index in range(1, 20):
        errors[index] += 0.6 * errors[index - 1]
    y = 0.1 * t + errors
    best = maximum_likelihood(t[None], y[None], line, (np.zeros(1), np.zeros(1)))
    columns = line(t[None], np.zeros((1, 1)))[0, 0]
    reference = minimize_scalar(lambda rho: dense(t, columns, y, rho)[3], bounds=(-0.95, 0.995), method="bounded")
    np.testing.assert_allclose(best.deviance[0], reference.fun, atol=1e-3)
    np.testing.assert_allclose(best.rho[0], reference.x, atol=0.01)


def test_many_curves_at_once_equal_one_by_one():
    rng = np.random.default_rng(0)
    t = np.stack([np.arange(9.0), np.arange(9.0) + 0.5])
    y = rng.normal(size=(2, 9))
    both = maximum_likelihood(t, y, line, (np.zeros(2), np.zeros(2)))
    for index in range(2):
        one = maximum_likelihood(t[[index]], y[[index]], line, (np.zeros(1), np.zeros(1)))
        np.testing.assert_allclose([both.deviance[index], both.rho[index]], [one.deviance[0], one.rho[0]], rtol=1e-12)
