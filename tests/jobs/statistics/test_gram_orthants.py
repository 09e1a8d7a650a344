"""Shares from counts alone, against every prompt and every pair looked at one by one."""

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from support.each import each

from theodolite_jobs.groups.gram.formulas_orthants import orthant_occupancy, orthant_overlap


@settings(max_examples=30, deadline=None)
@given(n=st.integers(2, 9), units=st.integers(1, 12), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_shares_from_counts_are_those_of_all_prompts_and_pairs(n, units, share, seed):
    signs = np.random.default_rng(seed).random((n, 2, 3, units)) < share
    counts = signs.sum(axis=0, dtype=np.int32)
    pairs = [(a == b).mean(axis=-1) for a, b in combinations(signs, 2)]
    # Sums of whole numbers, so only the divisions round.
    np.testing.assert_allclose(orthant_occupancy(counts, n), signs.mean(axis=(0, -1)), rtol=1e-13)
    np.testing.assert_allclose(orthant_overlap(counts, n), np.mean(pairs, axis=0), rtol=1e-13)


def test_overlap_is_one_for_equal_signs_and_zero_for_opposite_signs():
    signs = np.array([[True, False, True, True]])
    same, opposite = np.repeat(signs, 5, axis=0), np.concatenate([signs, ~signs])
    assert orthant_overlap(same.sum(axis=0), 5) == 1
    assert orthant_overlap(opposite.sum(axis=0), 2) == 0
    assert orthant_occupancy(same.sum(axis=0), 5) == 0.75


def test_too_few_prompts_give_nan():
    counts = np.ones((2, 3, 4), np.int32)
    assert np.isnan(orthant_overlap(counts, 1)).all()
    assert (orthant_occupancy(counts, 1) == 1).all()
    assert np.isnan(orthant_occupancy(0 * counts, 0)).all()
    assert orthant_overlap(counts, 1).shape == orthant_occupancy(counts, 0).shape == (2, 3)


@each("n", [10**5, 10**9])
def test_many_prompts_do_not_overflow(n):
    counts = np.array([n // 2, n], np.int32)
    half = 2 * (n // 2) * (n // 2 - 1) / (n * (n - 1))
    np.testing.assert_allclose(orthant_overlap(counts, n), (half + 1) / 2, rtol=1e-13)
