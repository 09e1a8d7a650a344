"""Permutation tests against refits on permuted labels and hand-derived cases, and their error rates under the null."""

import numpy as np
import pytest
from scipy.stats import kstest
from support.each import each
from support.shapes import unchecked

from theodolite_jobs.groups.gram.formulas import silhouette
from theodolite_jobs.statistics import folds as separation
from theodolite_jobs.statistics import scores as separated
from theodolite_jobs.statistics.held_out import difference_norms, difference_weights, held_out_scores
from theodolite_jobs.statistics.permutations import (
    DRAWS,
    LEVEL,
    accuracy,
    auroc,
    cosines_between_layers,
    cosines_of_independent_draws,
    paired_accuracy,
    permutation_test,
    permuted_labels,
    silhouettes,
)

FOLDS = separation.FOLDS


def draws_of(n_p, n_q, *, paired):
    folds = np.arange(n_p) % FOLDS, np.arange(n_q) % FOLDS
    return permuted_labels(*folds, paired=paired), np.concatenate(folds)


def centred(n, d, seed=0):
    x = np.random.default_rng(seed).normal(size=(n, d)) + 5
    return x - x.mean(axis=0)


def test_labels_of_pairs_are_exchanged_inside_pairs():
    labels, _ = draws_of(12, 12, paired=True)
    assert labels.shape == (1 + DRAWS, 24)
    np.testing.assert_array_equal(labels[0], np.arange(24) < 12)
    np.testing.assert_array_equal(labels[:, :12], ~labels[:, 12:])
    assert 0.45 < labels[1:, :12].mean() < 0.55


def test_labels_without_pairs_keep_the_numbers_of_each_fold():
    labels, folds = draws_of(13, 22, paired=False)
    for fold in range(FOLDS):
        assert set(labels[:, folds == fold].sum(axis=1)) == {np.sum(np.arange(13) % FOLDS == fold)}
    assert len(np.unique(labels, axis=0)) == 1 + DRAWS
    np.testing.assert_allclose(labels[1:].mean(axis=0), 13 / 35, atol=0.2)


@each("paired", [True, False])
def test_scores_and_statistics_equal_a_refit_on_the_permuted_labels(paired):
    n_p, n_q = (20, 20) if paired else (17, 24)
    labels, folds = draws_of(n_p, n_q, paired=paired)
    x = centred(n_p + n_q, 7)
    gram = x @ x.T
    scores = held_out_scores(gram, labels, folds)
    norms = difference_norms(gram, labels)
    for draw in (0, 1, 77, DRAWS):
        own = labels[draw]
        np.testing.assert_allclose(norms[draw], np.linalg.norm(x[own].mean(0) - x[~own].mean(0)), rtol=1e-12)
        np.testing.assert_allclose(difference_weights(labels)[draw] @ x, x[own].mean(0) - x[~own].mean(0), atol=1e-14)
        for fold in range(FOLDS):
            rest, held_out = folds != fold, folds == fold
            p, q = x[own & rest].mean(0), x[~own & rest].mean(0)
            unit = (p - q) / np.linalg.norm(p - q)
            np.testing.assert_allclose(scores[draw, held_out], (x[held_out] - (p + q) / 2) @ unit, atol=1e-12)
        positive, negative = scores[draw, own][:, None], scores[draw, ~own][:, None]
        area, share = (
            function(positive, negative, paired=False).value[0] for function in (separated.auroc, separated.accuracy)
        )
        np.testing.assert_allclose(auroc(scores, labels)[draw], area, rtol=1e-12)
        np.testing.assert_allclose(accuracy(scores, labels)[draw], share, rtol=1e-12)
        if paired:
            first, second = np.split(scores[draw], 2)
            p, q = np.where(own[:20], (first, second), (second, first))
            assert paired_accuracy(scores, labels)[draw] == np.mean(p > q)


def test_exchanging_all_labels_changes_no_statistic():
    labels, folds = draws_of(10, 10, paired=True)
    both = np.stack([labels[0], ~labels[0]])
    x = centred(20, 4)
    scores = held_out_scores(x @ x.T, both, folds)
    np.testing.assert_allclose(scores[0], -scores[1], atol=1e-12)
    for statistic in (auroc, accuracy, paired_accuracy):
        one, other = statistic(scores, both)
        np.testing.assert_allclose(one, other, rtol=1e-12)


def test_statistics_do_not_depend_on_rotation_or_scale():
    labels, folds = draws_of(15, 15, paired=True)
    x = centred(30, 6)
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(6, 6)))
    moved = 3 * (x @ rotation)
    scores, others = held_out_scores(x @ x.T, labels, folds), held_out_scores(moved @ moved.T, labels, folds)
    np.testing.assert_allclose(others, 3 * scores, atol=1e-9)
    np.testing.assert_array_equal(auroc(scores, labels), auroc(others, labels))


def test_equal_samples_have_no_scores():
    labels, folds = draws_of(10, 10, paired=True)
    gram = np.zeros((20, 20))
    scores = held_out_scores(gram, labels, folds)
    assert np.isnan(scores).all()
    for statistic in (auroc, accuracy, paired_accuracy):
        assert np.isnan(statistic(scores, labels)).all()
    assert (difference_norms(gram, labels) == 0).all()


def test_two_equal_sets_have_no_direction():
    labels, folds = draws_of(10, 10, paired=False)
    half = centred(10, 6)
    x = np.concatenate([half, half])
    scores = held_out_scores(x @ x.T, labels, folds)
    assert np.isnan(scores[0]).all()
    assert np.isfinite(scores[1:]).any()
    assert difference_norms(x @ x.T, labels)[0] == 0


def test_ties_count_half():
    labels = np.array([[True, True, False, False]])
    scores = np.array([[1.0, 2.0, 1.0, 0.0]])
    assert auroc(scores, labels) == [(0.5 + 1 + 1 + 1) / 4]
    assert paired_accuracy(scores, labels) == [0.75]
    assert accuracy(scores, labels) == [0.5]  # a score of 0 is on no side


def test_a_test_derived_by_hand():
    # Two places, the real labels and four draws; the null at place 0 is 0, 1, 2, 3.
    statistic = np.array([[3.0, 10.0], [0.0, 0.0], [1.0, 20.0], [2.0, 10.0], [3.0, 10.0]])
    tested = permutation_test(statistic)
    np.testing.assert_allclose(tested.null_mean, [1.5, 10])
    np.testing.assert_allclose(tested.null_sd, [np.sqrt(5 / 3), np.sqrt(200 / 3)])
    np.testing.assert_allclose(tested.z, [1.5 / np.sqrt(5 / 3), 0])
    np.testing.assert_allclose(tested.p, [2 / 5, 4 / 5])
    # The z of each draw against the other rows: -2.35 and -2.5, -0.71 and 2.5, 0.17 and 0, 1.16 and 0.
    np.testing.assert_allclose(tested.p_family, [3 / 5, 4 / 5])


def test_places_without_a_statistic_or_a_spread_are_outside_the_family():
    draws = np.random.default_rng(0).normal(size=(1 + DRAWS, 3))
    alone = permutation_test(draws[:, :1])
    draws[:, 1], draws[:, 2] = np.nan, 4
    tested = permutation_test(draws)
    np.testing.assert_array_equal(tested.p_family[0], alone.p_family[0])
    assert np.isnan([part[1] for part in tested]).all()
    assert np.isnan([tested.z[2], tested.p[2], tested.p_family[2], tested.critical[2]]).all()
    one_pair = permutation_test(np.where(np.arange(1 + DRAWS) % 2, 3.0, 3.0 + 1e-15)[:, None])
    assert one_pair.null_sd == 0
    assert np.isnan([one_pair.z, one_pair.p]).all()
    other = permutation_test(np.append(5.0, np.full(DRAWS, 3.0))[:, None])  # equal draws, and another statistic
    assert np.isnan([other.z, other.p, other.p_family]).all()
    nothing = permutation_test(np.full((1 + DRAWS, 2), np.nan))
    assert np.isnan(np.stack(nothing)).all()


def test_the_critical_value_is_passed_exactly_where_the_family_wise_p_is_small():
    random = np.random.default_rng(3)
    passed = 0
    for _ in range(50):
        draws = random.normal(size=(1 + DRAWS, 6))
        draws[0] += random.uniform(0, 4, 6)
        tested = permutation_test(draws)
        np.testing.assert_array_equal(draws[0] > tested.critical, tested.p_family <= LEVEL)
        passed += (tested.p_family <= LEVEL).sum()
    assert 50 < passed < 250


@each("paired", [True, False])
@unchecked()
def test_p_is_uniform_and_the_family_wise_error_rate_is_kept_without_a_difference(paired):
    """Ten correlated places of two sets with one distribution; pairs share a component."""
    random, n = np.random.default_rng(11), 20
    labels, folds = draws_of(n, n, paired=paired)
    ps, family = [], []
    for _ in range(300):
        pairs = random.normal(size=(n, 8)) if paired else np.zeros((n, 8))
        base = np.concatenate([pairs, pairs]) + random.normal(size=(2 * n, 8))
        places = []
        for _ in range(10):
            x = base + 0.5 * random.normal(size=(2 * n, 8))
            x -= x.mean(axis=0)
            places.append(difference_norms(x @ x.T, labels))
        tested = permutation_test(np.stack(places, axis=1))
        ps.append(tested.p[0])
        family.append(tested.p_family.min() <= LEVEL)
    assert kstest(ps, "uniform").pvalue > 0.01
    assert 0.02 < np.mean(family) < 0.09  # 0.05 ± 3 standard errors
    assert folds.shape == (2 * n,)


def test_the_family_wise_error_rate_is_kept_over_many_places():
    random, n = np.random.default_rng(2), 1_000
    tested = (permutation_test(random.normal(size=(1 + DRAWS, 270))) for _ in range(n))
    assert 0.035 < np.mean([one.p_family.min() <= LEVEL for one in tested]) < 0.068  # 0.05 ± 2.5 standard errors


def test_cosines_of_two_contrasts_leave_out_draws_with_the_same_permutation():
    rng = np.random.default_rng(3)
    first, second = rng.normal(size=(2, 6, 4))
    first[1:] += second[1:]  # as if both contrasts had the same permutations of the same prompts

    def cosine(one, other):
        return one @ other / np.linalg.norm(one) / np.linalg.norm(other)

    drawn = [cosine(first[k], second[m]) for k in range(1, 6) for m in range(1, 6) if k != m]
    mean, sd, z = cosines_of_independent_draws(first, second)
    assert mean == pytest.approx(np.mean(drawn))
    assert sd == pytest.approx(np.std(drawn, ddof=1))
    assert z == pytest.approx((cosine(first[0], second[0]) - np.mean(drawn)) / np.std(drawn, ddof=1))
    assert np.isnan(cosines_of_independent_draws(first, np.tile(second[:1], (6, 1)) * 0)[2])


def test_cosines_between_layers_of_the_draws():
    differences = np.random.default_rng(5).normal(size=(9, 4, 6)).astype(np.float32)
    mean, sd = cosines_between_layers(differences)
    one, other = differences[:, 1].astype(float), differences[:, 3].astype(float)
    cosines = (one * other).sum(1) / np.linalg.norm(one, axis=1) / np.linalg.norm(other, axis=1)
    np.testing.assert_allclose([mean[1, 3], sd[1, 3]], [cosines.mean(), cosines.std(ddof=1)], rtol=1e-12)
    np.testing.assert_allclose(np.diag(mean), 1)


@each("paired", [True, False])
def test_silhouettes_are_those_of_the_sets_of_each_draw(paired):
    labels, _ = draws_of(12, 12 if paired else 9, paired=paired)
    x = centred(labels.shape[1], 6)
    found = silhouettes(x @ x.T, labels)
    for draw in (0, 1, 50, DRAWS):
        own = labels[draw]
        p, q = x[own], x[~own]
        np.testing.assert_allclose(found[draw], silhouette(p @ p.T, q @ q.T, p @ q.T), rtol=1e-9)


def test_silhouettes_of_equal_samples_are_zero_and_of_a_single_one_unknown():
    labels, _ = draws_of(5, 5, paired=True)
    assert (silhouettes(np.zeros((10, 10)), labels) == 0).all()
    x = centred(4, 3)
    assert np.isnan(silhouettes(x @ x.T, np.array([[True, False, False, False]]))).all()
