"""Probes that are fitted on some samples and score others, from the samples' Gram matrix. Pure, in float64.

A probe is a vector w = Σ weight·x of the training samples x, and an offset; the score of a sample x is w·x − offset.
Each row of labels is a fit of its own: a draw of permuted labels, or a class against the rest. A score is 0 where both
sets are equally likely if they are equally frequent.
"""

from collections.abc import Callable
from itertools import combinations
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import expit

from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import (
    ROUNDING,
    centred_gram,
    difference_norms,
    mean_weights,
    without_samples,
)
from theodolite_jobs.statistics.ratio import ratio

RIDGES = (1e-3, 1e-2, 1e-1, 1.0, 1e1, 1e2)
"""The penalties of logistic regression among which nested folds choose, as multiples of the mean eigenvalue of the
training samples' Gram matrix; with the largest, w has almost the direction of the difference of means."""

_TOLERANCE = 1e-16
"""Of the squared length of a step in the norm of the bound, for each sample: scores are exact to about 1e-6."""

_MOST_STEPS = 10_000

_LEAST_PENALTY = 1e-9  # of linear discriminants, as a multiple of the mean eigenvalue

Gram = Float64[np.ndarray, "sample sample"]
Labels = Bool[np.ndarray, "row sample"]


class Probes(NamedTuple):
    """Fitted probes: the vector of a row is Σ weight·x, and the score of a sample is its product minus the offset."""

    weights: Float64[np.ndarray, "row sample"]
    offsets: Float64[np.ndarray, " row"]


def mean_difference(gram: Gram, labels: Labels) -> Probes:
    """Return the unit vector between the two sets' means of each row, with their midpoint as offset."""
    positive, negative = mean_weights(labels, ~labels)
    weights = ratio(positive - negative, difference_norms(gram, labels)[:, None])
    return Probes(weights, np.vecdot(weights @ gram, positive + negative) / 2)


def shrinkage(gram: Gram, labels: Labels, n_features: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return how much the covariance inside the sets is shrunk, from 0 to 1, and its mean eigenvalue, each (row,).

    The covariance S (with n in the denominator) is that of the samples minus the mean of their set. The shrinkage γ of
    (1 − γ)S + γμI has the least expected squared error (Ledoit and Wolf 2004, eq. 14 and lemmas 3.2 to 3.5), where μ
    is the mean eigenvalue. All that it needs follows from the Gram matrix.

    Args:
        gram: Gram matrix of the samples.
        labels: which samples are positive.
        n_features: number of features of a sample.
    """
    n = len(gram)
    counts = np.stack([labels.sum(axis=1), (~labels).sum(axis=1)]).astype(np.float64)  # (set, row)
    means = np.stack(mean_weights(labels, ~labels))  # (set, row, sample)
    products = means @ gram
    between = np.einsum("srn,trn->str", products, means)
    to_own = np.where(labels, 2 * products[0] - between[0, 0][:, None], 2 * products[1] - between[1, 1][:, None])
    norms = np.diag(gram) - to_own  # squared, of the samples minus the mean of their set
    # The Gram matrix of these is QGQ; with the projection P = I − Q on the means, ‖QGQ‖² = tr GG − 2 tr PGG + tr PGPG.
    squares = (gram**2).sum() - 2 * (counts * (products**2).sum(axis=2)).sum(axis=0)
    squares = squares + np.einsum("sr,tr,str->r", counts, counts, between**2)
    mean = norms.sum(axis=1) / (n * n_features)
    distance = squares / (n**2 * n_features) - mean**2
    error = ((norms**2).sum(axis=1) / n - squares / n**2) / (n * n_features)
    return np.clip(ratio(error, distance), 0, 1), mean


def lda(gram: Gram, labels: Labels, n_features: int, left_out: Bool[np.ndarray, "draw sample"] | None = None) -> Probes:
    """Return linear discriminants: w = ((1 − γ)S + γμI)⁻¹(a − b), with the means a and b, and γ and μ from `shrinkage`.

    The score is the log of the odds of two normal distributions with this covariance. With the scatter T of all samples
    about their mean in place of nS, w has the same direction, and that needs one decomposition for all labels.

    Args:
        gram: Gram matrix of the samples.
        labels: which samples are positive; one row serves all rows of `left_out`.
        n_features: number of features of a sample.
        left_out: samples without which a row is fitted; γ and nμ stay those of all samples.
    """
    values, vectors = eigh(centred_gram(gram))
    gamma, mean = (one[:, None] for one in shrinkage(gram, labels, n_features))
    penalty = np.maximum(len(gram) * gamma * mean, _LEAST_PENALTY * values.mean())
    shrunk = (1 - gamma) * np.maximum(values, 0) + penalty
    weights = ((labels - labels.mean(axis=1, keepdims=True)) @ vectors / shrunk) @ vectors.T
    used = np.ones_like(labels)
    if left_out is not None:
        weights, used = np.repeat(weights, len(left_out), axis=0), ~left_out
        without_samples(weights, (vectors / shrunk) @ vectors.T - 1 / (penalty * len(gram)), left_out)
    positive, negative = mean_weights(labels & used, ~labels & used)
    # Σ weight x = c ((1 − γ)T + nγμI)⁻¹(a − b), where c = n_P·n_N/n; Sherman and Morrison give the length of w.
    n_p, n_q = ((one > 0).sum(axis=1, keepdims=True) for one in (positive, negative))
    along = np.vecdot(weights @ gram, positive - negative)[:, None]
    weights = _where_means_differ(
        weights * ratio((n_p + n_q) ** 2, n_p * n_q * (1 - (1 - gamma) * along)), gram, labels
    )
    return Probes(weights, np.vecdot(weights @ gram, positive + negative) / 2)


def _where_means_differ(
    weights: NDArray[np.float64], gram: NDArray[np.float64], labels: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """Return weights, or NaN in the rows whose sets have equal means, or no sample."""
    return np.where((difference_norms(gram, labels) > 0)[:, None], weights, np.nan)


class _Basis(NamedTuple):
    """Samples in the basis of their principal axes, with a feature that is 1 for the intercept.

    Attributes:
        features: (sample, feature).
        squares: the sum of squares of each feature.
        unit: penalty of each feature for a ridge of 1: the mean eigenvalue of the Gram matrix, and 0 for the intercept.
        dual: what turns coefficients of features into weights of samples, (feature, sample).
    """

    features: NDArray[np.float64]
    squares: NDArray[np.float64]
    unit: NDArray[np.float64]
    dual: NDArray[np.float64]


def _basis(gram: NDArray[np.float64]) -> _Basis:
    values, vectors = eigh(centred_gram(gram))
    kept = values > ROUNDING * values.sum()
    vectors, values = vectors[:, kept], values[kept]
    n = len(gram)
    return _Basis(
        np.hstack([vectors * np.sqrt(values), np.ones((n, 1))]),
        np.append(values, n),
        np.append(np.full(len(values), values.sum() / (n - 1)), 0.0),
        np.vstack([(vectors / np.sqrt(values)).T, np.zeros((1, n))]),
    )


def _logistic(
    basis: _Basis,
    targets: NDArray[np.float64],
    ridges: NDArray[np.float64],
    used: NDArray[np.bool_] | None = None,
    start: NDArray[np.float64] | None = None,
) -> NDArray[np.float64]:
    """Return the coefficients of logistic regression, (row, feature), for targets of 0 and 1, (row, sample).

    They minimise the sum of the log losses of the used samples plus λ‖w‖²/2. Each step minimises a quadratic bound
    (Böhning and Lindsay 1988), accelerated (Nesterov 1983) with restarts (O'Donoghue and Candès 2015).
    """
    found = np.zeros((len(targets), len(basis.squares))) if start is None else start.copy()
    rows, last, ahead = np.arange(len(found)), found.copy(), found.copy()
    penalty, factor = ridges[:, None] * basis.unit, np.ones((len(found), 1))
    bound = basis.squares / 4 + penalty
    for _ in range(_MOST_STEPS):
        errors = expit(ahead @ basis.features.T) - targets
        if used is not None:
            errors *= used
        gradient = errors @ basis.features + penalty * ahead
        step = gradient / bound
        new = ahead - step
        going = (gradient * step).sum(axis=1) > _TOLERANCE
        found[rows] = new
        if not going.any():
            break
        back = (gradient * (new - last)).sum(axis=1, keepdims=True) > 0
        longer = (1 + np.sqrt(1 + 4 * factor**2)) / 2
        momentum = np.where(back, 0, (factor - 1) / longer)
        ahead, factor = new + momentum * (new - last), np.where(back, 1, longer)
        rows, last, ahead, factor, targets, penalty, bound = (
            one[going] for one in (rows, new, ahead, factor, targets, penalty, bound)
        )
        used = used if used is None else used[going]
    return found


def logistic(
    gram: Gram,
    labels: Labels,
    ridges: Float64[np.ndarray, " row"],
    left_out: Bool[np.ndarray, "draw sample"] | None = None,
) -> Probes:
    """Return logistic regressions with an intercept: w minimises the sum of log losses plus λ‖w‖²/2.

    λ is a ridge times the mean eigenvalue of the Gram matrix. The score is the log of the odds, minus that of the
    numbers of training samples in both sets.

    Args:
        gram: Gram matrix of the samples.
        labels: which samples are positive; one row, with one ridge, serves all rows of `left_out`.
        ridges: the ridge of each row, from `chosen_ridges`.
        left_out: samples without which a row is fitted; λ stays that of all samples.
    """
    basis = _basis(gram)
    coefficients, used = _logistic(basis, labels.astype(np.float64), ridges), np.ones_like(labels)
    if left_out is not None:
        n, used = len(left_out), ~left_out
        targets = np.repeat(labels.astype(np.float64), n, axis=0)
        coefficients = _logistic(basis, targets, np.repeat(ridges, n), used, np.repeat(coefficients, n, axis=0))
    weights = _where_means_differ(coefficients @ basis.dual, gram, labels)
    odds = ratio((labels & used).sum(axis=1), (~labels & used).sum(axis=1))
    return Probes(weights, (weights @ gram).mean(axis=1) - coefficients[:, -1] + np.log(odds))


def chosen_ridges(gram: Gram, labels: Labels, folds: Int64[np.ndarray, " sample"]) -> Float64[np.ndarray, "fold row"]:
    """Return the ridge of RIDGES with the least log loss of held-out samples, for each fold that is left out.

    The fits without two folds serve both: each chooses for the one by the losses of the other.
    """
    losses = np.zeros((FOLDS, len(RIDGES), len(labels)))
    ridges = np.repeat(RIDGES, len(labels))
    for pair in combinations(range(FOLDS), 2):
        rest = ~np.isin(folds, pair)
        basis = _basis(gram[np.ix_(rest, rest)])
        coefficients = _logistic(basis, np.tile(labels[:, rest].astype(np.float64), (len(RIDGES), 1)), ridges)
        weights = coefficients @ basis.dual
        centre = (weights @ gram[np.ix_(rest, rest)]).mean(axis=1) - coefficients[:, -1]
        for fold, other in (pair, pair[::-1]):
            own = folds == other
            odds = weights @ gram[np.ix_(rest, own)] - centre[:, None]
            wrong = np.where(np.tile(labels[:, own], (len(RIDGES), 1)), -odds, odds)
            losses[fold] += np.logaddexp(0, wrong).sum(axis=1).reshape(len(RIDGES), -1)
    return np.asarray(np.array(RIDGES)[losses.argmin(axis=1)])


def held_out(
    gram: Gram, folds: Int64[np.ndarray, " sample"], fit: Callable[[Gram, NDArray[np.bool_], int], Probes]
) -> Float64[np.ndarray, "row sample"]:
    """Return the score of each sample by the probes that are fitted on all other folds.

    Args:
        gram: Gram matrix of the samples.
        folds: fold of each sample.
        fit: returns the probes, given the Gram matrix of the samples of the other folds, which samples these are, and
            the fold.
    """
    parts = {}
    for fold in range(FOLDS):
        rest, own = folds != fold, folds == fold
        probes = fit(gram[np.ix_(rest, rest)], rest, fold)
        parts[fold] = probes.weights @ gram[np.ix_(rest, own)] - probes.offsets[:, None]
    scores = np.empty((len(parts[0]), len(gram)))
    for fold, part in parts.items():
        scores[:, folds == fold] = part
    return scores
