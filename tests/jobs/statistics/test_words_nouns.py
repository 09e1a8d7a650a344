"""Check the statistics of nouns by hand, against SciPy, and the error rates of both nulls in simulations."""

import numpy as np
from scipy.stats import kstest, ortho_group, rankdata, spearmanr
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.words.formulas import alignment
from theodolite_jobs.groups.words.formulas_nouns import (
    kept_share,
    noun_permutations,
    own_first,
    random_bases,
    random_relatedness,
    rank_profiles,
    relatedness,
)
from theodolite_jobs.statistics.permutations import DRAWS, permutation_test


def matrices(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.normal(size=(n, n)), random.normal(size=(n, n))


def test_relatedness_of_three_nouns_by_hand():
    # Rows over the two other nouns: (1, 2), (4, 3), (5, 6) before and (9, 10), (7, 8), (11, 12) after. So the first and
    # the third noun have the correlation 1, and the second -1. Two nouns have only one other noun in common.
    before = np.array([[0.0, 1, 2], [4, 0, 3], [5, 6, 0]])
    after = np.array([[0.0, 9, 10], [7, 0, 8], [11, 12, 0]])
    found = relatedness(rank_profiles(before), rank_profiles(after), np.array([[0, 1, 2], [1, 0, 2]]))
    np.testing.assert_allclose(found, [1 / 3, np.nan])


@each("n", [4, 9])
def test_permuted_nouns_are_compared_over_the_nouns_that_both_have(n):
    before, after = matrices(n)
    permutations = noun_permutations(n)[:20]
    found = relatedness(rank_profiles(before), rank_profiles(after), permutations)
    for value, permutation in zip(found, permutations, strict=True):
        correlations = []
        for q, other in enumerate(permutation):
            common = np.setdiff1d(np.arange(n), [q, other])
            ranks = []
            for row, own in ((before[q], q), (after[other], other)):
                rank = np.zeros(n)
                rank[np.arange(n) != own] = rankdata(np.delete(row, own))
                ranks.append(rank[common])
            correlations.append(np.corrcoef(*ranks)[0, 1])
        np.testing.assert_allclose(value, np.mean(correlations), atol=1e-12)


@each("n", [3, 4, 11])
def test_profiles_give_spearmans_correlation(n):
    before, after = matrices(n)
    before[0] = before[0].round()  # with ties
    x, y = rank_profiles(before), rank_profiles(after)
    assert (x.diagonal() == 0).all()
    for row in range(n):
        others = np.delete(np.arange(n), row)
        expected = spearmanr(before[row, others], after[row, others]).statistic
        np.testing.assert_allclose(x[row] @ y[row], expected, atol=1e-12)


def test_relatedness_is_the_mean_of_the_correlations_of_alignment():
    random = np.random.default_rng(1)
    read, left, right = random.normal(size=(9, 12)), random.normal(size=(12, 3)), random.normal(size=(12, 3))
    after = (read @ left) @ (read @ right).T
    found = relatedness(rank_profiles(read @ read.T), rank_profiles(after), noun_permutations(9))
    aligned = alignment(read, read @ left, read @ right)
    np.testing.assert_allclose(found[0], aligned["correlation"].mean(), atol=1e-12)
    np.testing.assert_allclose(own_first(after, noun_permutations(9))[0], (aligned["own_rank"] == 1).mean())
    permuted = noun_permutations(9)[5]
    own = [after[permuted[q], q] == after[permuted[q]].max() for q in range(9)]
    np.testing.assert_allclose(own_first(after, noun_permutations(9))[5], np.mean(own))


def test_a_monotone_change_of_the_scores_changes_nothing():
    before, after = matrices(8)
    found = relatedness(rank_profiles(before), rank_profiles(after), noun_permutations(8))
    changed = relatedness(rank_profiles(3 * before + 1), rank_profiles(np.exp(after)), noun_permutations(8))
    np.testing.assert_allclose(found, changed, atol=1e-12)
    reverse = relatedness(rank_profiles(before), rank_profiles(-after), noun_permutations(8))
    np.testing.assert_allclose(found, -reverse, atol=1e-12)


def test_few_nouns_and_constant_rows_have_no_relatedness():
    for n in (0, 1, 2):
        before, after = matrices(n)
        assert np.isnan(relatedness(rank_profiles(before), rank_profiles(after), noun_permutations(n))).all()
        assert np.isnan(random_relatedness(rank_profiles(before), np.zeros((5, n, 2)), np.zeros((2, n)))).all()
    before, after = matrices(5)
    after[2] = 7.0
    assert np.isnan(relatedness(rank_profiles(before), rank_profiles(after), noun_permutations(5))).all()
    assert np.isnan(own_first(np.empty((0, 0)), noun_permutations(0))).all()


def test_permutations_start_with_the_nouns_themselves():
    permutations = noun_permutations(6)
    assert permutations.shape == (1 + DRAWS, 6)
    assert permutations[0].tolist() == list(range(6))
    assert (np.sort(permutations, axis=1) == np.arange(6)).all()
    assert len(np.unique(permutations, axis=0)) > 100


def test_random_relatedness_is_that_of_the_random_matrices():
    random = np.random.default_rng(2)
    n, d_model, rank = 7, 10, 3
    read, query, key = (
        random.normal(size=(n, d_model)),
        random.normal(size=(d_model, rank)),
        random.normal(size=(d_model, rank)),
    )
    before = rank_profiles(read @ read.T)
    orthogonal = ortho_group.rvs(d_model, size=4, random_state=0)
    basis, triangle = np.linalg.qr(query)
    found = random_relatedness(before, read @ (orthogonal @ basis), triangle @ key.T @ read.T)
    identity = np.arange(n)[None]
    expected = [
        relatedness(before, rank_profiles(read @ turn @ query @ key.T @ read.T), identity)[0] for turn in orthogonal
    ]
    np.testing.assert_allclose(found, expected, atol=1e-12)


def test_random_bases_are_uniformly_distributed():
    d_model, rank, n_rows = 12, 5, 4
    rows = random_bases(d_model, rank, n_rows)
    assert rows.shape == (DRAWS, n_rows, rank)
    whole = random_bases(d_model, rank, d_model)
    np.testing.assert_allclose(whole.transpose(0, 2, 1) @ whole, np.tile(np.eye(rank), (DRAWS, 1, 1)), atol=1e-12)
    np.testing.assert_allclose(whole[:, :n_rows], rows)
    # Mean of the products of rows: rank/d_model times the identity; of all entries: 0. Four standard errors.
    np.testing.assert_allclose(
        (rows @ rows.transpose(0, 2, 1)).mean(axis=0), rank / d_model * np.eye(n_rows), atol=0.06
    )
    np.testing.assert_allclose(rows.mean(axis=0), 0, atol=4 / np.sqrt(d_model * DRAWS))


def test_kept_share_counts_ids_that_both_lists_have():
    before = np.array([[[1, 2, 3, 4], [5, 6, 7, 8]]])
    after = np.array([[[4, 3, 9, 10], [5, 6, 7, 8]]])
    np.testing.assert_allclose(kept_share(before, after), [[0.5, 1.0]])


@unchecked()
def test_keys_that_all_queries_prefer_are_not_relatedness():
    """Some keys are similar to all nouns and score high for all: a correlation, but of no noun in particular."""
    random, p, values = np.random.default_rng(3), [], []
    permutations = noun_permutations(20)
    for _ in range(150):
        hubs = 3 * random.normal(size=20)
        before, after = random.normal(size=(20, 20)) + hubs, random.normal(size=(20, 20)) + hubs
        statistic = relatedness(rank_profiles(before), rank_profiles(after), permutations)
        values.append(statistic[0])
        p.append(float(permutation_test(statistic[:, None]).p[0]))
    assert np.mean(values) > 0.7
    assert kstest(p, "uniform").pvalue > 0.01


@unchecked()
def test_family_wise_p_over_heads_is_at_most_five_percent_without_relatedness():
    random, passed = np.random.default_rng(4), 0
    permutations = noun_permutations(15)
    for _ in range(200):
        before = rank_profiles(random.normal(size=(15, 15)))
        heads = [relatedness(before, rank_profiles(random.normal(size=(15, 15))), permutations) for _ in range(10)]
        passed += bool((permutation_test(np.stack(heads, axis=1)).p_family <= 0.05).any())
    assert 2 <= passed <= 20  # 10 expected; 4 standard deviations are 12


@unchecked()
def test_only_random_matrices_account_for_groups_of_nouns():
    """With two groups of nouns and random W_QK, permuted nouns give a small p too often, random matrices do not."""
    random, permuted_p, random_p = np.random.default_rng(5), [], []
    n, d_model, rank = 20, 24, 6
    permutations, bases = noun_permutations(n), random_bases(d_model, rank, n)
    centres = 2 * random.normal(size=(2, d_model)).repeat(n // 2, axis=0)
    for _ in range(200):
        read = random.normal(size=(n, d_model)) + centres
        query, key = random.normal(size=(2, d_model, rank))
        before, keys = rank_profiles(read @ read.T), (read @ key).T
        statistic = relatedness(before, rank_profiles(read @ query @ keys), permutations)
        coordinates, triangle = np.linalg.qr(read.T, mode="r").T, np.linalg.qr(query, mode="r")
        drawn = random_relatedness(before, coordinates @ bases, triangle @ keys)
        permuted_p.append(float(permutation_test(statistic[:, None]).p[0]))
        random_p.append(float(permutation_test(np.append(statistic[0], drawn)[:, None]).p[0]))
    assert np.mean(np.array(permuted_p) <= 0.05) > 0.15
    assert kstest(random_p, "uniform").pvalue > 0.01


def test_both_tests_find_a_head_that_copies_similarity():
    random = np.random.default_rng(6)
    read = random.normal(size=(20, 24))
    basis = np.linalg.qr(random.normal(size=(24, 16)))[0]
    before, keys = rank_profiles(read @ read.T), (read @ basis).T
    statistic = relatedness(before, rank_profiles(read @ basis @ keys), noun_permutations(20))
    coordinates = np.linalg.qr(read.T, mode="r").T
    drawn = random_relatedness(before, coordinates @ random_bases(24, 16, 20), keys)
    for values in (statistic, np.append(statistic[0], drawn)):
        test = permutation_test(values[:, None])
        assert test.p[0] == 1 / (1 + DRAWS)
        assert test.z[0] > 5
