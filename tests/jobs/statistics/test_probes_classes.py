"""Probes of several classes: against fits of the samples themselves, and by simulations with a planted truth."""

import numpy as np
import pytest
from scipy.special import logsumexp
from sklearn.covariance import ledoit_wolf
from sklearn.linear_model import LogisticRegression
from support.each import each

from theodolite_jobs.groups.probes.formulas import RIDGES, lda
from theodolite_jobs.groups.probes.formulas_classes import fit_classes, joint_lda
from theodolite_jobs.statistics import permutations
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import held_out_scores


def samples(sizes=(14, 17, 12), d=30, shift=1.5, seed=0):
    """Return samples of classes whose means differ in one feature each, their classes and their folds."""
    rng, labels = np.random.default_rng(seed), np.repeat(np.arange(len(sizes)), sizes)
    x = rng.normal(size=(len(labels), d)) * np.append(5.0, np.ones(d - 1)) + 3
    x[np.arange(len(labels)), 1 + labels] += shift
    return x, labels, np.concatenate([np.arange(n) for n in sizes]) % FOLDS


def primal_lda(x, labels, _folds):
    """Return vectors and offsets of the discriminants with one shrunk covariance."""
    means = np.stack([x[labels == label].mean(axis=0) for label in np.unique(labels)])
    covariance, _ = ledoit_wolf(x - means[labels], assume_centered=True)
    vectors = np.linalg.solve(covariance, means.T).T
    return vectors, np.vecdot(vectors, means) / 2


def mean_eigenvalue(x):
    return ((x - x.mean(axis=0)) ** 2).sum() / (len(x) - 1)


def primal_logistic(x, labels, folds):
    """Return vectors and offsets of multinomial regression by scikit-learn, with the ridge that the folds choose."""
    losses = []
    for ridge in RIDGES:
        total = 0.0
        for fold in np.unique(folds):
            rest, own = folds != fold, folds == fold
            model = _model(x[rest], labels[rest], ridge)
            total -= model.predict_log_proba(x[own])[np.arange(own.sum()), labels[own]].sum()
        losses.append(total)
    model = _model(x, labels, RIDGES[int(np.argmin(losses))])
    return model.coef_, np.log(np.bincount(labels)) - model.intercept_


def _model(x, labels, ridge):
    penalty = ridge * mean_eigenvalue(x)
    return LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=1000, solver="newton-cg").fit(x, labels)


@each("kind,primal,rtol", [("lda", primal_lda, 1e-8), ("logistic", primal_logistic, 2e-3)])
def test_joint_probes_are_those_of_the_samples(kind, primal, rtol):
    x, labels, folds = samples()
    found = fit_classes(x, labels, folds, kind=kind, joint=True)
    expected = np.empty((3, len(x)))
    for fold in range(FOLDS):
        rest = folds != fold
        vectors, offsets = primal(x[rest], labels[rest], folds[rest])
        discriminants = vectors @ x[~rest].T - offsets[:, None]
        for row in range(3):
            expected[row, ~rest] = discriminants[row] - logsumexp(np.delete(discriminants, row, axis=0), axis=0)
    np.testing.assert_allclose(found.scores, expected, rtol=rtol, atol=rtol)
    assert found.predicted.tolist() == expected.argmax(axis=0).tolist()
    assert found.accuracy[0] == np.mean(found.predicted == labels)
    assert found.accuracy[1] < found.accuracy[0] < found.accuracy[2]
    for label in range(3):
        of, others = found.scores[label][labels == label], found.scores[label][labels != label]
        assert found.auroc[label, 0] == pytest.approx((of[:, None] > others).mean())
    vectors, offsets = primal(x, labels, folds)
    centre = vectors.mean(axis=0), offsets.mean()
    np.testing.assert_allclose(found.vectors - found.vectors.mean(axis=0), vectors - centre[0], rtol=rtol, atol=rtol)
    np.testing.assert_allclose(found.offsets - found.offsets.mean(), offsets - centre[1], rtol=rtol, atol=rtol)


def test_joint_discriminants_of_two_classes_are_those_of_two_sets():
    x, labels, _ = samples((15, 19))
    x = x - x.mean(axis=0)
    joint, _ = joint_lda(x @ x.T, np.stack([labels == 0, labels == 1]), 30)
    alone = lda(x @ x.T, (labels == 1)[None], 30)
    np.testing.assert_allclose((joint.weights[1] - joint.weights[0]) @ x, alone.weights[0] @ x, rtol=1e-8)
    assert joint.offsets[1] - joint.offsets[0] == pytest.approx(alone.offsets[0])


def test_one_against_the_rest_is_the_probe_of_two_sets():
    x, labels, folds = samples()
    found = fit_classes(x, labels, folds, kind="mean_difference")
    moved = x - x.mean(axis=0)
    for label in range(3):
        own = labels == label
        expected = held_out_scores(moved @ moved.T, own[None], folds)[0]
        np.testing.assert_allclose(found.scores[label], expected)
        difference = x[own].mean(axis=0) - x[~own].mean(axis=0)
        np.testing.assert_allclose(found.vectors[label], difference / np.linalg.norm(difference))
        middle = (x[own].mean(axis=0) + x[~own].mean(axis=0)) / 2
        assert found.offsets[label] == pytest.approx(found.vectors[label] @ middle)


@each(
    "kind,joint,draws",
    [("mean_difference", False, 19), ("lda", True, 19), ("logistic", False, 0), ("logistic", True, 0)],
)
def test_planted_classes_are_found_and_classes_without_a_difference_are_not(kind, joint, draws):
    x, labels, folds = samples((15, 15, 15), d=8, shift=0, seed=1)
    none = fit_classes(x, labels, folds, kind=kind, joint=joint, draws=draws)
    assert none.accuracy[1] < 1 / 3 < none.accuracy[2]
    x, labels, folds = samples((15, 15, 15), d=8, shift=6 if kind == "mean_difference" else 4)
    strong = fit_classes(x, labels, folds, kind=kind, joint=joint, draws=draws)
    assert strong.accuracy[0] > 0.7
    if draws:
        assert none.null[:, 3].min() > 0.05
        assert strong.null[:, 3].tolist() == [0.05] * 4
    else:
        assert np.isnan(strong.null).all()


def test_the_labels_of_pairs_are_exchanged_and_their_intervals_are_paired():
    rng = np.random.default_rng(0)
    topics, labels = rng.normal(size=(20, 8)) * 4, np.repeat([0, 1], 20)
    x, folds = np.tile(topics, (2, 1)) + rng.normal(size=(40, 8)) + labels[:, None], np.tile(np.arange(20) % FOLDS, 2)
    paired, alone = (fit_classes(x, labels, folds, kind="lda", paired=one, draws=40) for one in (True, False))
    np.testing.assert_array_equal(paired.scores, alone.scores)
    np.testing.assert_allclose(paired.scores[0], -paired.scores[1])
    assert paired.null[0, 1] != alone.null[0, 1]
    assert np.ptp(paired.auroc[1, 1:]) != np.ptp(alone.auroc[1, 1:])
    mirrored = permutations.auroc(paired.scores[1:], (labels == 1)[None])
    np.testing.assert_allclose(paired.auroc[:, 0], mirrored[0])
