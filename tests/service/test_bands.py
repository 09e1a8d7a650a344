import numpy as np
import pytest
from scipy.stats import norm, t
from support.nightly import at_night

from theodolite.bands import simultaneous_quantile


def test_one_place_has_the_quantile_of_its_own_distribution():
    terms = np.random.default_rng(0).normal(size=(50, 1))
    assert simultaneous_quantile(terms) == pytest.approx(norm.ppf(0.975), abs=0.03)  # of 10,000 draws
    assert simultaneous_quantile(terms, degrees_of_freedom=4.0) == pytest.approx(t.ppf(0.975, 4), abs=0.1)


def test_equal_places_need_no_wider_band_and_independent_ones_that_of_sidak():
    one = np.random.default_rng(0).normal(size=(50, 1))
    assert simultaneous_quantile(np.tile(one, 20)) == pytest.approx(norm.ppf(0.975), abs=0.03)
    independent = np.eye(20)
    assert simultaneous_quantile(independent) == pytest.approx(norm.ppf(0.5 + 0.95 ** (1 / 20) / 2), abs=0.03)


def test_the_scale_of_a_place_changes_nothing_and_a_place_of_nan_is_left_out():
    terms = np.random.default_rng(0).normal(size=(30, 4))
    expected = simultaneous_quantile(terms)
    assert simultaneous_quantile(terms * [1, 1e-9, 1e9, 3]) == pytest.approx(expected, rel=1e-9)
    others = np.column_stack([terms, np.full(30, np.nan)])
    assert simultaneous_quantile(others) == pytest.approx(expected, rel=1e-9)
    assert np.isnan(simultaneous_quantile(np.full((30, 2), np.nan)))


def test_a_place_without_an_estimated_error_counts_as_independent():
    """All scores of one set above the other's, at each depth."""
    assert simultaneous_quantile(np.zeros((30, 20))) == simultaneous_quantile(np.eye(20))


def test_few_rows_do_not_make_independent_places_look_dependent():
    assert simultaneous_quantile(np.random.default_rng(0).normal(size=(3, 20))) == simultaneous_quantile(np.eye(20))
    assert np.isnan(simultaneous_quantile(np.eye(20), degrees_of_freedom=0.0))


@pytest.mark.nightly
@pytest.mark.parametrize("correlation", [0.9, *at_night([0.0])])
def test_a_band_covers_all_means_at_once(correlation):
    """30 correlated means of 60 samples, 600 draws: the standard error of the coverage is 0.9 %."""
    rng, covered = np.random.default_rng(1), []
    for _ in range(600):
        common, own = rng.normal(size=(60, 1)), rng.normal(size=(60, 30))
        samples = np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own
        terms = (samples - samples.mean(axis=0)) / np.sqrt(60 * 59)
        z = samples.mean(axis=0) / np.sqrt((terms**2).sum(axis=0))
        covered.append(np.abs(z).max() <= simultaneous_quantile(terms, degrees_of_freedom=59.0))
    assert 0.92 <= np.mean(covered) <= 0.98
