"""Measures of an intervention equal small cases that are derived by hand."""

import numpy as np
import pytest
from support.each import each

from theodolite_jobs.groups.effects.formulas import projection, restored_of_pair
from theodolite_jobs.statistics.next_token import kl_divergence, log_odds


def test_kl_of_two_coins():
    # ½ ln(½ / ¼) + ½ ln(½ / ¾) = ½ ln 2 + ½ ln ⅔ = ½ ln 4/3
    fair, biased = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert kl_divergence(fair, biased) == pytest.approx(0.5 * np.log(4 / 3), rel=1e-14)
    # ¼ ln ½ + ¾ ln 3⁄2: the divergence is not symmetric
    assert kl_divergence(biased, fair) == pytest.approx(0.25 * np.log(0.5) + 0.75 * np.log(1.5), rel=1e-14)


def test_kl_does_not_change_when_a_constant_is_added_to_all_logits():
    fair, biased = np.log([0.5, 0.5]), np.log([0.25, 0.75])
    assert kl_divergence(fair + 700, biased - 900) == pytest.approx(kl_divergence(fair, biased), rel=1e-12)


def test_kl_of_equal_logits_is_exactly_zero_and_never_negative():
    logits = np.random.default_rng(0).normal(size=(50, 1000)).astype(np.float32) * 20
    assert (kl_divergence(logits, logits) == 0).all()
    assert (kl_divergence(logits, np.nextafter(logits, np.float32(np.inf))) >= 0).all()


def test_small_divergences_are_precise():
    # Moves of ±ε under p = ½, ½ give ln cosh ε = ε²/2 − ε⁴/12 + …
    epsilon = 1e-7
    found = kl_divergence(np.array([5.0, 5.0]), np.array([5.0 + epsilon, 5.0 - epsilon]))
    assert found == pytest.approx(epsilon**2 / 2, rel=1e-7)


def test_divergences_of_random_logits_equal_the_definition():
    first, second = np.random.default_rng(0).normal(size=(2, 30, 100)) * 5
    p, q = (np.exp(one) / np.exp(one).sum(axis=-1, keepdims=True) for one in (first, second))
    np.testing.assert_allclose(kl_divergence(first, second), (p * np.log(p / q)).sum(axis=-1), rtol=1e-12)


def test_kl_ignores_tokens_that_are_impossible_in_the_intact_distribution():
    intact, changed = np.array([0.0, 0.0, -np.inf]), np.log([0.25, 0.25, 0.5])
    assert kl_divergence(intact, changed) == pytest.approx(np.log(2), rel=1e-14)
    assert kl_divergence(changed, intact) == np.inf


def test_kl_keeps_the_dimensions_before_the_tokens_and_passes_on_nan():
    intact, changed = np.zeros((3, 1, 5)), np.ones((3, 4, 5))
    changed[1, 2, 3] = np.nan
    found = kl_divergence(intact, changed)
    assert found.shape == (3, 4)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 2]]


def test_log_odds_of_groups_are_those_of_their_summed_probabilities():
    logits = np.log([0.1, 0.2, 0.3, 0.4]) + 3  # unnormalised
    assert log_odds(logits, [0, 1], [3]) == pytest.approx(np.log(0.3 / 0.4), rel=1e-14)
    assert log_odds(logits, [3], [1, 0]) == pytest.approx(np.log(0.4 / 0.3), rel=1e-14)
    assert log_odds(logits, [0, 0, 1], [3]) == pytest.approx(np.log(0.3 / 0.4), rel=1e-14)  # a token counts once


def test_log_odds_do_not_overflow():
    assert log_odds(np.array([[1000.0, 0.0], [0.0, 1000.0]]), [0], [1]).tolist() == [1000.0, -1000.0]


@each("first, second, problem", [([], [1], "empty"), ([1, 2], [2, 3], "token 2 is in both")])
def test_groups_of_tokens_are_separate_and_not_empty(first, second, problem):
    with pytest.raises(ValueError, match=problem):
        log_odds(np.zeros(5), first, second)


def test_a_projection_is_the_component_along_a_direction_of_any_length():
    found = projection(np.array([[3.0, 4.0], [-1.0, 0.0]]), np.array([[5.0, 0.0], [6.0, 8.0], [0.0, 0.0]]))
    np.testing.assert_allclose(found[:, :2], [[3.0, 5.0], [-1.0, -0.6]], rtol=1e-15)
    assert np.isnan(found[:, 2]).all()


def test_the_restored_share_is_one_at_the_other_prompt_in_both_directions():
    shares = restored_of_pair(np.array([2.0, 5.0, 5.0, 1.0]), np.array([2.0, 2.0, 8.0, 3.0]), np.array([8.0, 8, 2, 3]))
    assert shares[:3].tolist() == [0.0, 0.5, 0.5]
    assert np.isnan(shares[3])
