"""Means of effects, their intervals, and their tests against control directions."""

import numpy as np
import pytest

from theodolite_jobs.statistics.effects_means import against_controls, mean_over_prompts, share_of_means

RNG = np.random.default_rng(0)


def test_the_mean_and_its_interval_keep_the_places():
    values = RNG.normal(size=(30, 2, 3)) + np.arange(3)
    found = mean_over_prompts(values)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    error = values.std(axis=0, ddof=1) / np.sqrt(30)
    np.testing.assert_allclose(found.high - found.low, 2 * 2.05 * error, rtol=0.1)  # t of 29 degrees of freedom


@pytest.mark.parametrize("n", [12, 32])
@pytest.mark.parametrize(
    ("draw", "mean", "least"),
    [
        (RNG.standard_normal, 0.0, 0.93),
        (RNG.standard_exponential, 1.0, 0.89),
        (lambda size: RNG.lognormal(size=size), np.exp(0.5), 0.83),
    ],
    ids=["normal", "exponential", "log-normal"],
)
def test_the_interval_covers_the_mean_of_other_prompts(draw, mean, least, n):
    """A bootstrap of few prompts covers less than 95 % for skewed numbers."""
    found = mean_over_prompts(draw((n, 2_000)))
    covered = ((found.low <= mean) & (mean <= found.high)).mean()
    assert least < covered < 0.965


def test_one_prompt_has_an_interval_of_no_width():
    found = mean_over_prompts(np.ones((1, 2)))
    np.testing.assert_array_equal([found.low, found.high], [found.value, found.value])


def test_a_share_is_the_ratio_of_the_means_whatever_the_sign_of_the_whole():
    wholes = RNG.normal(size=40) * 0.2 + 1.0
    values = np.stack([wholes, 0.5 * wholes, 0 * wholes], axis=1)
    for sign in (1, -1):
        found = share_of_means(sign * values, sign * wholes)
        np.testing.assert_allclose(found.value, [1, 0.5, 0], atol=1e-12)
        np.testing.assert_allclose(found.low, found.value, atol=1e-12)
        np.testing.assert_allclose(found.high, found.value, atol=1e-12)


def test_a_share_is_known_with_both_ends_or_not_at_all():
    for seed in range(60):
        wholes = np.random.default_rng(seed).normal(size=32) + 0.45
        found = share_of_means(wholes[:, None], wholes)
        assert np.isfinite(found.value).all() == np.isfinite(found.low + found.high).all()


def test_a_whole_that_may_be_0_has_no_shares():
    found = share_of_means(np.ones((40, 2)), RNG.normal(size=40))
    assert np.isnan([found.value, found.low, found.high]).all()
    assert np.isnan(share_of_means(np.ones((0, 2)), np.ones(0)).value).all()


def test_an_effect_above_all_controls_has_the_smallest_p_and_one_among_them_has_not():
    controls = np.exp(RNG.normal(size=(20, 2, 3)))
    effect = np.full((2, 3), np.exp(0.0))
    effect[1, 2] = np.exp(9.0)
    found = against_controls(effect, controls)
    np.testing.assert_allclose(found.control, controls.mean(axis=0))
    assert found.p[1, 2] == found.p_family[1, 2] == 1 / 21
    assert found.z[1, 2] == found.z.max() > 5
    others = np.delete(found.p_family.ravel(), 5)
    assert (others > 0.05).all()
    np.testing.assert_allclose(found.p[0, 0], (1 + (controls[:, 0, 0] >= 1).sum()) / 21)


def test_the_family_wise_error_rate_of_exchangeable_directions_is_at_most_the_level():
    rejected = 0
    for _ in range(400):
        sizes = np.exp(RNG.normal(size=(21, 10)) + RNG.normal(size=(21, 1)))  # places share a part
        rejected += bool((against_controls(sizes[0], sizes[1:]).p_family <= 0.05).any())
    assert rejected / 400 < 0.08


def test_no_effect_has_no_test():
    found = against_controls(np.zeros(2), np.zeros((20, 2)))
    assert np.isnan(found.z).all()
    assert np.isnan(found.p_family).all()
    np.testing.assert_array_equal(found.control, 0)
