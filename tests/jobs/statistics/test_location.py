"""The set of depths that may be the best one, by hand and in simulations; benchmarks/location.py has a grid."""

import numpy as np
import pytest
from scipy.stats import norm
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.scores import auroc, auroc_terms

DEPTHS, N = 8, 128


def draws(number, areas, correlation, seed, *, paired):
    """Yield the set of depths of several draws with these true AUROCs, and an autoregressive noise over depths."""
    rng = np.random.default_rng(seed)
    distances = np.sqrt(2) * norm.ppf(areas)
    root = np.linalg.cholesky(correlation ** np.abs(np.subtract.outer(range(DEPTHS), range(DEPTHS))))
    for _ in range(number):
        q, p = (rng.normal(size=(N, DEPTHS)) @ root.T for _ in range(2))
        if paired:
            p = 0.6 * p + 0.8 * q
        sides = p + distances, q
        estimates, terms = auroc(*sides, paired=paired).value, auroc_terms(*sides, paired=paired)
        yield location(estimates, terms, N - 1.0)


@pytest.mark.nightly
@each("paired", [False, True])
@each("correlation", [0.5, 0.95])
@each("area", [0.8, 0.95])
@unchecked()
def test_of_equally_good_depths_each_is_in_the_set_in_95_percent_of_draws(area, correlation, paired):
    """The least favourable truth. The mean over depths of 150 draws has a standard error of at most 1.4 %."""
    sets = np.stack(list(draws(150, np.full(DEPTHS, area), correlation, seed=5, paired=paired)))
    assert 0.92 <= sets.mean() <= 0.985


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
@unchecked()
def test_near_an_auroc_of_1_the_set_contains_the_best_depth_at_least_as_often(paired):
    sets = np.stack(list(draws(150, np.full(DEPTHS, 0.99), 0.95, seed=6, paired=paired)))
    assert sets.mean() >= 0.925


@pytest.mark.parametrize("paired", [False, True], ids=["unpaired", "paired"])
@unchecked()
def test_a_depth_that_is_a_little_better_is_in_the_set_and_a_clearly_better_one_is_alone(paired):
    areas = np.full(DEPTHS, 0.9)
    areas[4] = 0.905
    sets = np.stack(list(draws(200, areas, 0.9, seed=7, paired=paired)))
    assert sets[:, 4].mean() >= 0.95
    assert sets.mean() > 0.8
    areas[4] = 0.98
    sets = np.stack(list(draws(100, areas, 0.9, seed=8, paired=paired)))
    assert sets[:, 4].mean() >= 0.95
    assert sets.sum(axis=1).mean() < 2.5


def test_a_difference_without_an_error_decides_by_its_sign():
    """All scores of P above those of N at two depths, and the same scores at two others."""
    terms = np.zeros((20, 4))
    terms[:, 2:] = np.random.default_rng(0).normal(size=(20, 1)) * 1e-3
    np.testing.assert_array_equal(location(np.array([1.0, 1.0, 0.5, 0.5]), terms), [1, 1, 0, 0])
    np.testing.assert_array_equal(location(np.array([0.9, 0.9, 0.91, 0.9]), terms * 100), [1, 1, 1, 0])


def test_what_is_unknown_stays_unknown():
    terms = np.random.default_rng(0).normal(size=(20, 3))
    estimates = np.array([0.5, np.nan, 0.5])
    np.testing.assert_array_equal(location(estimates, terms), [1, np.nan, 1])
    assert np.isnan(location(estimates, terms, 8.0)).all()
    assert np.isnan(location(np.full((2, 2), np.nan), np.empty((0, 2, 2)))).all()
    np.testing.assert_array_equal(location(np.array([0.5]), terms[:, :1]), [1])
