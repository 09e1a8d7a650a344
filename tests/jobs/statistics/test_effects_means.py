"""Means of effects, their intervals, and their tests against control directions."""

import numpy as np
import pytest
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.effects.formulas_means import (
    against_controls,
    half_dose,
    mean_over_prompts,
    restored_of_means,
)

RNG = np.random.default_rng(0)


@pytest.fixture(autouse=True)
def seeded():
    """Begin each test with the same draws, whichever run before it."""
    RNG.bit_generator.state = np.random.default_rng(0).bit_generator.state


def test_the_mean_and_its_interval_keep_the_places():
    values = RNG.normal(size=(30, 2, 3)) + np.arange(3)
    found = mean_over_prompts(values)
    np.testing.assert_allclose(found.value, values.mean(axis=0))
    assert (found.low < found.value).all()
    assert (found.value < found.high).all()
    error = values.std(axis=0, ddof=1) / np.sqrt(30)
    np.testing.assert_allclose(found.high - found.low, 2 * 2.05 * error, rtol=0.1)  # t of 29 degrees of freedom


@each("n", [12, 32])
@each(
    "draw, mean, least",
    [
        (RNG.standard_normal, 0.0, 0.93),
        (RNG.standard_exponential, 1.0, 0.89),
        (lambda size: RNG.lognormal(size=size), np.exp(0.5), 0.83),
    ],
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
        found = restored_of_means(sign * values, sign * wholes)
        np.testing.assert_allclose(found.value, [1, 0.5, 0], atol=1e-12)
        np.testing.assert_allclose(found.low, found.value, atol=1e-12)
        np.testing.assert_allclose(found.high, found.value, atol=1e-12)


def test_a_share_is_known_with_both_ends_or_not_at_all():
    for seed in range(60):
        wholes = np.random.default_rng(seed).normal(size=32) + 0.45
        found = restored_of_means(wholes[:, None], wholes)
        assert np.isfinite(found.value).all() == np.isfinite(found.low + found.high).all()


def test_a_whole_that_may_be_0_has_no_shares():
    found = restored_of_means(np.ones((40, 2)), RNG.normal(size=40))
    assert np.isnan([found.value, found.low, found.high]).all()
    assert np.isnan(restored_of_means(np.ones((0, 2)), np.ones(0)).value).all()


def test_an_effect_above_all_controls_has_the_smallest_p_and_one_among_them_has_not():
    controls = np.exp(RNG.normal(size=(20, 2, 3)))
    effect = np.full((2, 3), np.exp(0.0))
    effect[1, 2] = np.exp(9.0)
    found = against_controls(effect, controls, are_sizes=True)
    np.testing.assert_allclose(found.null_mean, controls.mean(axis=0))
    np.testing.assert_allclose(found.null_sd, controls.std(axis=0, ddof=1))
    assert found.p[1, 2] == found.p_family[1, 2] == 1 / 21
    assert found.z[1, 2] == found.z.max() > 5
    others = np.delete(found.p_family.ravel(), 5)
    assert (others > 0.05).all()
    np.testing.assert_allclose(found.p[0, 0], (1 + (controls[:, 0, 0] >= 1).sum()) / 21)


@unchecked()
def test_the_family_wise_error_rate_of_exchangeable_directions_is_at_most_the_level():
    rejected = 0
    for _ in range(400):
        sizes = np.exp(RNG.normal(size=(21, 10)) + RNG.normal(size=(21, 1)))  # places share a part
        found = against_controls(sizes[0], sizes[1:], are_sizes=True)
        rejected += bool((found.p_family <= 0.05).any())
    assert rejected / 400 < 0.08


def test_no_effect_has_no_test():
    found = against_controls(np.zeros(2), np.zeros((20, 2)), are_sizes=True)
    assert np.isnan([found.z, found.p, found.p_family]).all()
    np.testing.assert_array_equal(found.null_mean, 0)


@each("are_sizes", [True, False])
def test_controls_without_a_spread_give_no_z_and_no_p(are_sizes):
    controls = np.tile([0.2, 0.3], (20, 1)) * (1 + 1e-14 * RNG.normal(size=(20, 2)))
    found = against_controls(np.array([0.2, 0.9]), controls, are_sizes=are_sizes)
    assert np.isnan([found.z, found.p, found.p_family]).all()


def test_a_signed_effect_in_the_wrong_direction_does_not_pass():
    controls = RNG.normal(size=(20, 3))
    found = against_controls(np.array([-9.0, 9.0, np.nan]), controls, are_sizes=False)
    assert found.p[0] == 1
    assert found.p_family[1] == 1 / 21
    assert np.isnan([found.z[2], found.p[2], found.p_family[2]]).all()


DOSES = np.array([0.5, 1.0, 2.0])


def test_half_is_reached_between_two_doses_of_a_straight_line():
    wholes = np.full(20, 3.0)
    changes = np.stack([slope * np.tile(DOSES, (20, 1)) for slope in (2.0, 1.0, 0.1, -1.0)], axis=1)
    found = half_dose(changes, DOSES, wholes)
    np.testing.assert_allclose(found.value, [0.75, 1.5, np.nan, np.nan])
    np.testing.assert_allclose(found.low, found.value)
    np.testing.assert_allclose(found.high, found.value)


def test_a_half_that_many_draws_do_not_reach_has_no_upper_end():
    changes = (0.75 + 0.8 * RNG.normal(size=(12, 1, 1))) * DOSES
    found = half_dose(changes, DOSES, np.full(12, 2 * float(changes[:, 0, -1].mean()) - 0.1))
    assert found.low[0] < found.value[0] < 2
    assert np.isnan(found.high[0])


def test_the_interval_of_the_half_dose_covers_that_of_all_prompts():
    slopes, covered = 1 + 0.5 * RNG.normal(size=(300, 24)), 0
    for of_draw in slopes:
        found = half_dose(of_draw[:, None] * DOSES, DOSES, 2 + 0.4 * RNG.normal(size=24))
        covered += bool(found.low <= 1.0 <= found.high)
    assert 0.92 < covered / len(slopes) < 0.98
