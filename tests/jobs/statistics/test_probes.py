"""Probes from Gram matrices: against fits of the samples themselves, and by simulations with a planted truth."""

import numpy as np
import pytest
from scipy.stats import kstest
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from support.each import each

from theodolite_jobs.groups.probes.formulas import (
    RIDGES,
    chosen_ridges,
    held_out_lda_scores,
    held_out_logistic_scores,
    lda,
    logistic,
    mean_difference,
    shrinkage,
)
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import held_out_scores
from theodolite_jobs.statistics.permutations import auroc, permutation_test, permuted_labels


def samples(n_p=14, n_q=17, d=40, shift=0.6, seed=0):
    """Return centred samples with one large feature, their labels and their folds."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n_p + n_q, d)) * np.append(8.0, np.ones(d - 1))
    x[:n_p, 1:4] += shift
    folds = np.concatenate([np.arange(n_p), np.arange(n_q)]) % FOLDS
    return x - x.mean(axis=0), np.arange(n_p + n_q) < n_p, folds


def primal_lda(x, labels, gamma, mu):
    """Return w and the offset of linear discriminants, from the covariance matrix."""
    a, b = x[labels].mean(axis=0), x[~labels].mean(axis=0)
    inside = np.where(labels[:, None], x - a, x - b)
    covariance = (1 - gamma) * inside.T @ inside / len(x) + gamma * mu * np.eye(x.shape[1])
    w = np.linalg.solve(covariance, a - b)
    return w, w @ (a + b) / 2


def primal_logistic(x, labels, penalty):
    """Return w and the offset of scikit-learn's logistic regression, for classes of equal frequency."""
    model = LogisticRegression(C=1 / penalty, tol=1e-12, max_iter=10_000, solver="newton-cholesky").fit(x, labels)
    odds = labels.sum() / (~labels).sum()
    return model.coef_[0], np.log(odds) - model.intercept_[0]


def mean_eigenvalue(x):
    return ((x - x.mean(axis=0)) ** 2).sum() / (len(x) - 1)


@each("d", [5, 40])
def test_discriminants_are_those_of_the_shrunk_covariance_inside_the_sets(d):
    x, labels, _ = samples(d=d)
    rows = np.stack([labels, np.roll(labels, 5)])
    found, (gammas, mus) = lda(x @ x.T, rows, d), shrinkage(x @ x.T, rows, d)
    for row, gamma, mu, weights, offset in zip(rows, gammas, mus, *found, strict=True):
        inside = np.where(row[:, None], x - x[row].mean(axis=0), x - x[~row].mean(axis=0))
        assert gamma == pytest.approx(ledoit_wolf(inside, assume_centered=True)[1], rel=1e-10)
        w, of_primal = primal_lda(x, row, gamma, mu)
        np.testing.assert_allclose(weights @ x, w, rtol=1e-8, atol=1e-10)
        assert offset == pytest.approx(of_primal, abs=1e-10)


@each("d", [5, 40])
@each("ridge", [RIDGES[0], 0.1, RIDGES[-1]])
def test_logistic_regression_is_that_of_scikit_learn(d, ridge):
    x, labels, _ = samples(d=d)
    x = x + np.arange(d)  # the intercept takes up any translation
    found = logistic(x @ x.T, labels[None], np.array([ridge]))
    w, offset = primal_logistic(x, labels, ridge * mean_eigenvalue(x))
    np.testing.assert_allclose(found.weights[0] @ x, w, rtol=1e-5, atol=1e-8)
    np.testing.assert_allclose(x @ x.T @ found.weights[0] - found.offsets[0], x @ w - offset, rtol=1e-5, atol=1e-6)


def test_probes_without_a_prompt_are_those_of_the_other_prompts():
    x, labels, _ = samples()
    gram, ridge = x @ x.T, 0.1
    left_out = np.eye(len(x), dtype=bool)[[2, 20]]
    of_lda = lda(gram, labels[None], 40, left_out)
    of_logistic = logistic(gram, labels[None], np.array([ridge]), left_out)
    (gamma,), (mu,) = shrinkage(gram, labels[None], 40)
    for row, out in enumerate(left_out):
        rest, kept = x[~out], labels[~out]
        w, _ = primal_lda(rest, kept, gamma, mu * len(x) / len(rest))
        np.testing.assert_allclose(of_lda.weights[row] @ x, w, rtol=1e-8, atol=1e-10)
        w, offset = primal_logistic(rest, kept, ridge * mean_eigenvalue(x))
        np.testing.assert_allclose(of_logistic.weights[row] @ x, w, rtol=1e-5, atol=1e-8)
        assert of_logistic.offsets[row] == pytest.approx(offset, abs=1e-5)


def test_nested_folds_choose_the_ridge_without_the_fold_that_is_scored():
    x, labels, folds = samples(11, 14, d=20, shift=0.9)
    chosen = chosen_ridges(x @ x.T, np.stack([labels, np.roll(labels, 7)]), folds)
    for row, of_row in enumerate([labels, np.roll(labels, 7)]):
        for fold in range(FOLDS):
            losses = []
            for ridge in RIDGES:
                total = 0.0
                for other in set(range(FOLDS)) - {fold}:
                    rest, own = ~np.isin(folds, (fold, other)), folds == other
                    model = LogisticRegression(C=1 / (ridge * mean_eigenvalue(x[rest])), solver="newton-cholesky")
                    odds = model.fit(x[rest], of_row[rest]).decision_function(x[own])
                    total += np.logaddexp(0, np.where(of_row[own], -odds, odds)).sum()
                losses.append(total)
            assert chosen[fold, row] == RIDGES[int(np.argmin(losses))]


def scores_of(gram, labels, folds, d):
    """Return the held-out scores of each probe, each (row, sample)."""
    return {
        "mean_difference": held_out_scores(gram, labels, folds),
        "lda": held_out_lda_scores(gram, labels, folds, n_features=d),
        "logistic": held_out_logistic_scores(gram, labels, folds, ridges=chosen_ridges(gram, labels, folds)),
    }


def test_held_out_scores_do_not_change_with_rotation_and_translation():
    x, labels, folds = samples(25, 25, d=30)
    rotation = np.linalg.qr(np.random.default_rng(1).normal(size=(30, 30)))[0]
    moved = 3 * x @ rotation + 5  # of the scale, all but the difference of means are free
    one, other = (scores_of(y @ y.T, labels[None], folds, 30) for y in (x, moved))
    unit = mean_difference(x @ x.T, labels[None])
    difference = x[labels].mean(axis=0) - x[~labels].mean(axis=0)
    np.testing.assert_allclose(unit.weights[0] @ x, difference / np.linalg.norm(difference))
    np.testing.assert_allclose(3 * one["mean_difference"], other["mean_difference"], atol=1e-8)
    for probe in ("lda", "logistic"):
        np.testing.assert_allclose(one[probe], other[probe], rtol=1e-4, atol=1e-5)
        swapped = scores_of(x @ x.T, ~labels[None], folds, 30)[probe]
        np.testing.assert_allclose(swapped, -one[probe], rtol=1e-4, atol=1e-5)


def test_probes_are_unknown_if_the_means_are_equal_and_a_null_without_spread_gives_no_p():
    labels, folds = permuted_labels(*[np.arange(10) % FOLDS] * 2, paired=True)[:20], np.tile(np.arange(10) % FOLDS, 2)
    for scores in scores_of(np.zeros((20, 20)), labels, folds, 5).values():
        assert np.isnan(scores).all()
        assert np.isnan(permutation_test(auroc(scores, labels)[:, None]).p).all()
    noise = 1e-33 * np.random.default_rng(0).normal(size=(20, 20))  # rounding of equal activations
    for scores in scores_of(noise + noise.T, labels, folds, 5).values():
        assert scores.shape == labels.shape


@each("shift,least,most", [(0.0, 0.42, 0.56), (1.0, 0.7, 0.85), (2.0, 0.93, 1.0)])
def test_a_planted_difference_is_found_beside_a_large_feature_and_none_gives_chance(shift, least, most):
    areas = {}
    for seed in range(5):
        x, labels, folds = samples(40, 40, d=50, shift=shift, seed=seed)
        for probe, scores in scores_of(x @ x.T, labels[None], folds, 50).items():
            areas.setdefault(probe, []).append(auroc(scores, labels[None])[0])
    means = {probe: np.mean(values) for probe, values in areas.items()}
    assert least < means["lda"] < most
    assert least < means["logistic"] < most
    if shift:
        assert means["mean_difference"] < means["logistic"] - 0.03  # the large feature hides it


@pytest.mark.nightly
@each("paired", [True, False])
def test_p_is_uniform_without_a_difference(paired):
    folds = np.tile(np.arange(10) % FOLDS, 2)
    labels = permuted_labels(*np.split(folds, 2), paired=paired)[:20]
    found = {}
    for seed in range(40):
        random = np.random.default_rng(seed)
        x = random.normal(size=(20, 8)) + np.tile(random.normal(size=(10, 8)), (2, 1))  # pairs are alike
        for probe, scores in scores_of(x @ x.T, labels, folds, 8).items():
            found.setdefault(probe, []).append(permutation_test(auroc(scores, labels)[:, None]).p[0])
    for values in found.values():
        assert kstest(values, "uniform").pvalue > 0.01
