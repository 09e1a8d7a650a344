from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.sphere.formulas import gaussian_spread, gaussian_squared_spread
from theodolite_jobs.groups.sphere.formulas_gaussian import fitted_spreads, squared_norm_variance

SEEDS = st.integers(0, 1000)


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def by_enumeration(products):
    """Twice the mean of K_ij² over pairs, minus the mean of K_ij K_kl over four different samples, from their lists."""
    n = len(products)
    pairs = [products[i, j] ** 2 for i, j in permutations(range(n), 2)]
    disjoint = [products[i, j] * products[k, m] for i, j, k, m in permutations(range(n), 4)]
    return 2 * (np.mean(pairs) - np.mean(disjoint))


def test_the_variance_of_four_samples_is_that_by_hand():
    """Dot products of e₁, e₁, e₂, e₂: 1 for the pairs (1, 2) and (3, 4), 0 for the other four pairs."""
    samples = np.eye(2)[[0, 0, 1, 1]]
    # E K² is 2/6. Of the three ways to split four samples into two pairs, one has the product 1: 1/3.
    assert abs(squared_norm_variance(samples @ samples.T)) < 1e-15
    samples[0] *= 2  # products 2 and 1: E K² is 5/6, the split has 2·1/3
    np.testing.assert_allclose(squared_norm_variance(samples @ samples.T), 2 * (5 / 6 - 2 / 3), rtol=1e-14)


@given(SEEDS, st.integers(4, 8), st.floats(-50, 50))
@settings(deadline=None, max_examples=40)
def test_the_variance_equals_the_enumeration_and_does_not_depend_on_a_constant(seed, n, constant):
    samples = random(n, 3, seed=seed) + 0.5
    products = samples @ samples.T
    expected = by_enumeration(products)
    np.testing.assert_allclose(squared_norm_variance(products), expected, rtol=1e-9, atol=1e-9)
    assert expected > -1e-12
    np.testing.assert_allclose(squared_norm_variance(products + constant), expected, rtol=1e-7, atol=1e-6)


@unchecked()
def test_the_variance_is_unbiased_where_the_sample_covariance_is_not():
    mean, deviations, n = np.array([1.0, 2.0, *np.zeros(38)]), np.geomspace(2, 0.3, 40), 12
    whole = 2 * (deviations**4).sum() + 4 * mean**2 @ deviations**2
    rng = np.random.default_rng(0)
    found, plain = [], []
    for _ in range(3000):
        samples = rng.normal(size=(n, 40)) * deviations + mean
        found.append(squared_norm_variance(samples @ samples.T))
        covariance, average = np.cov(samples.T), samples.mean(axis=0)
        plain.append(2 * (covariance**2).sum() + 4 * average @ covariance @ average)
    assert abs(np.mean(found) / whole - 1) < 4 * np.std(found) / whole / np.sqrt(3000) < 0.05
    assert np.mean(plain) > 1.25 * whole


def spectrum(kind, d):
    numbers = np.arange(1, d + 1)
    variances = {"flat": np.ones(d), "power law": 1 / numbers, "one direction": np.where(numbers == 1, 1, 1e-6)}[kind]
    return variances / variances.sum()


@pytest.mark.nightly
@each("kind", ["flat", "power law", "one direction"])
@each("along, length", [(0, 0.0), (0, 1.0), (-1, 1.0)])
def test_fitted_spreads_are_those_of_many_draws_of_the_gaussian(kind, along, length):
    """The means over 16 fits to 128 samples, against the spread of 40,000 norms; `along` is the mean's feature."""
    d, mean = 100, np.zeros(100)
    mean[along] = length
    rng, deviations = np.random.default_rng(1), np.sqrt(spectrum(kind, d))
    squares = np.square(rng.normal(size=(40_000, d)) * deviations + mean).sum(axis=1)
    expected = [values.std() / values.mean() for values in (np.sqrt(squares), squares)]
    found = np.array([fitted_spreads(rng.normal(size=(128, d)) * deviations + mean) for _ in range(16)])
    error = np.std(found, axis=0) / np.sqrt(16) / expected
    # 1.5 %: the ratio of both spreads comes from the sample covariance, and the reference has an error of 0.5 %.
    assert (np.abs(found.mean(axis=0) / expected - 1) < 4 * error + 0.015).all()
    assert (error < 0.03).all()


def test_the_fit_to_a_standard_gaussian_gives_its_exact_spreads():
    found = np.array([fitted_spreads(random(200, 300, seed=seed)) for seed in range(8)]).mean(axis=0)
    np.testing.assert_allclose(found, [gaussian_spread(300), gaussian_squared_spread(300)], rtol=0.01)


def test_a_set_with_longer_tails_exceeds_its_fitted_gaussian():
    lengths = np.exp(0.3 * random(400, 1, seed=3))
    samples = random(400, 60, seed=4) * lengths
    norms = np.linalg.norm(samples, axis=1)
    assert norms.std() / norms.mean() > 2 * fitted_spreads(samples)[0]


@given(SEEDS, st.floats(0.01, 100))
@settings(deadline=None, max_examples=10)
def test_spreads_depend_neither_on_scale_nor_on_rotation(seed, factor):
    samples = random(20, 6, seed=seed) + 1
    turn, _ = np.linalg.qr(random(6, 6, seed=seed + 1))
    np.testing.assert_allclose(fitted_spreads(factor * samples @ turn), fitted_spreads(samples), rtol=1e-6)


def test_equal_samples_have_no_spread_and_three_samples_have_none_known():
    same = np.tile(random(9).astype(np.float32).astype(np.float64), (10, 1))
    assert fitted_spreads(same) == (0.0, 0.0)
    assert np.isnan(fitted_spreads(random(3, 9))).all()
