"""Probes of several classes, from the Gram matrix of the samples. Pure, in float64.

A probe has a vector and an offset for each class. One against the rest, they are those of `formulas`, each class
against all others. Jointly, they give discriminants w·x − offset, of which the largest is predicted. The score of a
class is then the log of its odds, if all classes are equally frequent.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from theodolite_jobs.groups.probes.formulas import (
    Gram,
    Labels,
    Probes,
    basis_of,
    chosen_ridge,
    chosen_ridges,
    held_out,
    held_out_lda_scores,
    held_out_logistic_scores,
    lda,
    ledoit_wolf,
    log_odds_fit,
    logistic,
    mean_difference,
    odds_by_ridge,
    shrinkage,
)
from theodolite_jobs.statistics import permutations, scores
from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.held_out import held_out_scores, mean_weights
from theodolite_jobs.statistics.permutations import permutation_test

Folds = Int64[np.ndarray, " sample"]


def joint_lda(gram: Gram, members: Labels, n_features: int) -> tuple[Probes, NDArray[np.float64]]:
    """Return the discriminants of classes of normal distributions with one shrunk covariance, and the shrinkage.

    The vectors are those of the means of classes minus the mean of these. The inverse of the covariance is that of
    Woodbury, in the span of the samples. `shrinkage` explains γ and μ.

    Args:
        gram: Gram matrix of the samples.
        members: the samples of each class, (class, sample).
        n_features: number of features of a sample.
    """
    n, (means,) = len(gram), mean_weights(members)
    inside = np.eye(n) - members.T.astype(np.float64) @ means  # x minus the mean of its class
    within = inside @ gram @ inside.T
    gamma, mean = ledoit_wolf(np.diag(within), np.asarray((within**2).sum()), n_features)
    differences = means - means.mean(axis=0)
    system = (1 - gamma) * within + n * gamma * mean * np.eye(n)
    along = (1 - gamma) * np.linalg.solve(system, inside @ gram @ differences.T).T
    weights = (differences - along @ inside) / (gamma * mean)
    return Probes(weights, np.vecdot(weights @ gram, means + means.mean(axis=0)) / 2), np.full(len(members), gamma)


def multinomial(gram: Gram, members: Labels, ridge: float) -> Probes:
    """Return multinomial logistic regression with an intercept, with the discriminants of equally frequent classes.

    Arguments as for `joint_lda`; λ is the ridge times the mean eigenvalue of the Gram matrix.
    """
    basis = basis_of(gram)
    (found,) = log_odds_fit(basis, members[None].astype(np.float64), np.array([ridge]))
    weights = found @ basis.dual
    return Probes(weights, (weights @ gram).mean(axis=1) - found[:, -1] + np.log(members.sum(axis=1)))


def _multinomial_losses(
    gram: NDArray[np.float64], members: NDArray[np.bool_], own: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return the log losses of some samples by multinomial fits on all others, (ridge, 1, sample)."""
    odds = odds_by_ridge(gram, members[None], own)
    return np.asarray(-np.where(members[:, own], log_softmax(odds, axis=2), 0).sum(axis=2))


def _odds(discriminants: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the log of the odds of each class against all others, from discriminants, both (class, sample)."""
    others = [np.delete(discriminants, row, axis=0) for row in range(len(discriminants))]
    return np.asarray(discriminants - np.stack([logsumexp(one, axis=0) for one in others]))


class ClassProbes(NamedTuple):
    """Probes of several classes.

    Attributes:
        scores: the held-out score of each sample for each class, (class, sample).
        predicted: the class with the largest held-out discriminant, (sample,).
        auroc: of the scores of a class, of its samples against all others, with the interval, (class, 3).
        accuracy: the share of samples whose class is predicted, with the interval, (3,).
        null: mean, sd, z and p with permuted labels of the AUROC of each class, and then of the accuracy, (class + 1,
            4); NaN without draws.
        vectors: vectors of the probes that are fitted on all samples, (class, d_model).
        offsets: their offsets, (class,).
        chosen: the shrinkage or the ridge, (class,); NaN for the difference of means.
    """

    scores: Float64[np.ndarray, "class sample"]
    predicted: Int64[np.ndarray, " sample"]
    auroc: Float64[np.ndarray, "class 3"]
    accuracy: Float64[np.ndarray, " 3"]
    null: Float64[np.ndarray, "tested 4"]
    vectors: Float64[np.ndarray, "class d_model"]
    offsets: Float64[np.ndarray, " class"]
    chosen: Float64[np.ndarray, " class"]


def fit_classes(
    samples: Float64[np.ndarray, "sample d_model"],
    labels: Int64[np.ndarray, " sample"],
    folds: Int64[np.ndarray, " sample"],
    *,
    kind: str,
    joint: bool = False,
    paired: bool = False,
    draws: int = 0,
) -> ClassProbes:
    """Return probes of several classes, with held-out scores and their intervals.

    Args:
        samples: the activations.
        labels: the class of each sample, from 0.
        folds: its fold; each fold has samples of all classes.
        kind: mean_difference, lda or logistic.
        joint: whether one probe has all classes, for lda and logistic; else each class is against the rest.
        paired: whether sample i of class 0 belongs to sample i of class 1, the only other one.
        draws: number of permutations of the labels, inside folds or inside pairs.
    """
    moved = centred(samples)
    gram, n_classes = moved @ moved.T, int(labels.max()) + 1
    members = _members(labels, n_classes)
    held_out_of, fit = _joint(kind, samples.shape[1]) if joint else _one_against_rest(kind, samples.shape[1])

    def scored(members: NDArray[np.bool_]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        found = held_out_of(gram, members, folds)
        return (_odds(found) if joint else found), found.argmax(axis=0)

    own, predicted = scored(members)
    sides = [(own[row, one][:, None], own[row, ~one][:, None]) for row, one in enumerate(members)]
    area = [np.ravel(scores.auroc(*side, paired=paired)) for side in sides]
    correct = np.where(predicted == labels, 1.0, -1.0)[:, None]
    share = np.ravel(scores.accuracy(correct[labels == 0], -correct[labels != 0], paired=paired))

    def tested(labels: NDArray[np.int64]) -> NDArray[np.float64]:
        members = _members(labels, n_classes)
        own, predicted = scored(members)
        return np.append(permutations.auroc(own, members), (predicted == labels).mean())

    null = np.full((n_classes + 1, 4), np.nan)
    if draws:
        permuted = _permuted(labels, folds, draws, paired=paired)
        null = permutation_test(np.stack([tested(one) for one in permuted])).stacked()[:, :4]
    probes, chosen = fit(gram, members, folds)
    vectors = probes.weights @ moved
    offsets = probes.offsets + vectors @ (samples - moved)[0]
    return ClassProbes(own, predicted, np.stack(area), share, null, vectors, offsets, chosen)


def _members(labels: NDArray[np.int64], n_classes: int) -> NDArray[np.bool_]:
    return np.asarray(labels == np.arange(n_classes)[:, None])


def _permuted(labels: NDArray[np.int64], folds: NDArray[np.int64], draws: int, *, paired: bool) -> NDArray[np.int64]:
    """Return the labels, and then permutations of them, (draw, sample)."""
    random, found = np.random.default_rng(0), np.tile(labels, (1 + draws, 1))
    if paired:
        exchanged = random.random((draws, int((labels == 0).sum()))) < 0.5
        for label in (0, 1):
            found[1:, labels == label] = np.where(exchanged, 1 - label, label)
        return found
    for fold in np.unique(folds):
        found[1:, folds == fold] = random.permuted(found[1:, folds == fold], axis=1)
    return found


Scores = Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]], NDArray[np.float64]]
Fit = Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.int64]], tuple[Probes, NDArray[np.float64]]]
"""Held-out discriminants, (class, sample), and the probes of all samples with what was chosen, (class,), both from the
Gram matrix, the members of classes, (class, sample), and the folds."""


def _one_against_rest(kind: str, n_features: int) -> tuple[Scores, Fit]:
    def of_logistic(
        gram: NDArray[np.float64], members: NDArray[np.bool_], folds: NDArray[np.int64]
    ) -> tuple[Probes, NDArray[np.float64]]:
        ridges = chosen_ridge(gram, members, folds)
        return logistic(gram, members, ridges), ridges

    kinds: dict[str, tuple[Scores, Fit]] = {
        "mean_difference": (
            held_out_scores,
            lambda gram, members, _: (mean_difference(gram, members), np.full(len(members), np.nan)),
        ),
        "lda": (
            partial(held_out_lda_scores, n_features=n_features),
            lambda gram, members, _: (lda(gram, members, n_features), shrinkage(gram, members, n_features)[0]),
        ),
        "logistic": (
            lambda gram, members, folds: held_out_logistic_scores(
                gram, members, folds, ridges=chosen_ridges(gram, members, folds)
            ),
            of_logistic,
        ),
    }
    return kinds[kind]


def _joint(kind: str, n_features: int) -> tuple[Scores, Fit]:
    def of_logistic(
        gram: NDArray[np.float64], members: NDArray[np.bool_], folds: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        ridges = chosen_ridges(gram, members, folds, _multinomial_losses)[:, 0]
        return held_out(
            gram, folds, None, lambda inner, rest, _, fold: multinomial(inner, members[:, rest], ridges[fold])
        )

    def fit_logistic(
        gram: NDArray[np.float64], members: NDArray[np.bool_], folds: NDArray[np.int64]
    ) -> tuple[Probes, NDArray[np.float64]]:
        (ridge,) = chosen_ridge(gram, members, folds, _multinomial_losses)
        return multinomial(gram, members, ridge), np.full(len(members), ridge)

    kinds: dict[str, tuple[Scores, Fit]] = {
        "lda": (
            lambda gram, members, folds: held_out(
                gram, folds, None, lambda inner, rest, *_: joint_lda(inner, members[:, rest], n_features)[0]
            ),
            lambda gram, members, _: joint_lda(gram, members, n_features),
        ),
        "logistic": (of_logistic, fit_logistic),
    }
    return kinds[kind]
