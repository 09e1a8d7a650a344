"""Probes that are fitted on some samples and score others, from the samples' Gram matrix. Pure, in float64.

A probe is a vector w = Σ weight·x of the training samples x, and an offset; the score of a sample x is w·x − offset.
Each row of labels is a fit of its own: a draw of permuted labels, or a class against the rest. A score is 0 where both
sets are equally likely if they are equally frequent.
"""

from collections.abc import Callable
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray
from scipy.linalg import eigh
from scipy.special import expit, softmax

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

_TOLERANCE = 1e-16  # of the decrease that the bound promises for a step, in nats; scores are exact to about 1e-6

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
    counts = np.stack([labels.sum(axis=1), (~labels).sum(axis=1)]).astype(np.float64)  # (set, row)
    means = np.stack(mean_weights(labels, ~labels))  # (set, row, sample)
    products = means @ gram
    between = np.einsum("srn,trn->str", products, means)
    to_own = np.where(labels, 2 * products[0] - between[0, 0][:, None], 2 * products[1] - between[1, 1][:, None])
    norms = np.diag(gram) - to_own
    # The Gram matrix of these is QGQ; with the projection P = I − Q on the means, ‖QGQ‖² = tr GG − 2 tr PGG + tr PGPG.
    squares = (gram**2).sum() - 2 * (counts * (products**2).sum(axis=2)).sum(axis=0)
    squares = squares + np.einsum("sr,tr,str->r", counts, counts, between**2)
    return ledoit_wolf(norms, squares, n_features)


def ledoit_wolf(
    norms: Float64[np.ndarray, "*row sample"], squares: Float64[np.ndarray, "*row"], n_features: int
) -> tuple[Float64[np.ndarray, "*row"], Float64[np.ndarray, "*row"]]:
    """Return γ and μ of `shrinkage`, from the squared norms of samples, and the sum of squares of their Gram matrix."""
    n = norms.shape[-1]
    mean = np.asarray(norms.sum(axis=-1) / (n * n_features))
    distance = squares / (n**2 * n_features) - mean**2
    error = ((norms**2).sum(axis=-1) / n - squares / n**2) / (n * n_features)
    return np.asarray(np.clip(ratio(error, distance), 0, 1)), mean


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
    weights = ratio((labels - labels.mean(axis=1, keepdims=True)) @ vectors, shrunk) @ vectors.T
    used = np.ones_like(labels)
    if left_out is not None:
        weights, used = np.repeat(weights, len(left_out), axis=0), ~left_out
        without_samples(weights, ratio(vectors, shrunk) @ vectors.T - ratio(np.array(1 / len(gram)), penalty), left_out)
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


class Basis(NamedTuple):
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


def basis_of(gram: Gram) -> Basis:
    """Return samples in the basis of their principal axes, from their Gram matrix."""
    values, vectors = eigh(centred_gram(gram))
    kept = values > ROUNDING * np.abs(values).sum()
    vectors, values = vectors[:, kept], values[kept]
    n = len(gram)
    return Basis(
        np.hstack([vectors * np.sqrt(values), np.ones((n, 1))]),
        np.append(values, n),
        np.append(np.full(len(values), values.sum() / (n - 1)), 0.0),
        np.vstack([(vectors / np.sqrt(values)).T, np.zeros((1, n))]),
    )


def log_odds_fit(
    basis: Basis,
    targets: Float64[np.ndarray, "row class sample"],
    ridges: Float64[np.ndarray, " row"],
    used: Bool[np.ndarray, "row sample"] | None = None,
    start: Float64[np.ndarray, "row class feature"] | None = None,
) -> Float64[np.ndarray, "row class feature"]:
    """Return the coefficients of logistic regression; with several classes, of multinomial regression.

    They minimise the sum of the log losses of the used samples plus λ‖w‖²/2, summed over classes. Each step minimises a
    quadratic bound (Böhning and Lindsay 1988; Böhning 1992), accelerated (Nesterov 1983) with restarts (O'Donoghue and
    Candès 2015).

    Args:
        basis: the samples.
        targets: 1 for samples of the class, else 0.
        ridges: λ of each row, over the mean eigenvalue of the Gram matrix.
        used: the samples that count; None for all.
        start: where to start.
    """
    found = np.zeros((*targets.shape[:2], len(basis.squares))) if start is None else start.copy()
    rows, last, ahead = np.arange(len(found)), found.copy(), found.copy()
    penalty, factor = ridges[:, None, None] * basis.unit, np.ones((len(found), 1, 1))
    is_binary = targets.shape[1] == 1
    bound = basis.squares / (4 if is_binary else 2) + penalty
    for _ in range(_MOST_STEPS):
        odds = ahead @ basis.features.T
        errors = (expit(odds) if is_binary else softmax(odds, axis=1)) - targets
        if used is not None:
            errors *= used[:, None]
        gradient = errors @ basis.features + penalty * ahead
        step = gradient / bound
        new = ahead - step
        found[rows] = new
        going = (gradient * step).sum(axis=(1, 2)) > _TOLERANCE
        if not going.any():
            break
        back = (gradient * (new - last)).sum(axis=(1, 2), keepdims=True) > 0
        longer = (1 + np.sqrt(1 + 4 * factor**2)) / 2
        ahead = new + np.where(back, 0, (factor - 1) / longer) * (new - last)
        factor = np.where(back, 1, longer)
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
    basis = basis_of(gram)
    targets, used = labels[:, None].astype(np.float64), np.ones_like(labels)
    found = log_odds_fit(basis, targets, ridges)
    if left_out is not None:
        used = ~left_out
        targets, ridges, start = (np.repeat(one, len(left_out), axis=0) for one in (targets, ridges, found))
        found = log_odds_fit(basis, targets, ridges, used, start)
    coefficients = found[:, 0]
    weights = _where_means_differ(coefficients @ basis.dual, gram, labels)
    odds = ratio((labels & used).sum(axis=1), (~labels & used).sum(axis=1))
    return Probes(weights, (weights @ gram).mean(axis=1) - coefficients[:, -1] + np.log(odds))


def log_losses(gram: Gram, labels: Labels, own: Bool[np.ndarray, " sample"]) -> Float64[np.ndarray, "ridge row own"]:
    """Return the log losses of some samples by fits on all others, with each of RIDGES."""
    odds = odds_by_ridge(gram, labels[:, None], own)[:, :, 0]
    return np.asarray(np.logaddexp(0, np.where(labels[:, own], -odds, odds)))


def odds_by_ridge(
    gram: Gram, targets: Bool[np.ndarray, "row class sample"], own: Bool[np.ndarray, " sample"]
) -> Float64[np.ndarray, "ridge row class own"]:
    """Return the log odds of some samples by fits on all others, with each of RIDGES; as they are, not balanced."""
    inner, n = gram[np.ix_(~own, ~own)], len(RIDGES)
    basis = basis_of(inner)
    repeated = np.tile(targets[..., ~own].astype(np.float64), (n, 1, 1))
    coefficients = log_odds_fit(basis, repeated, np.repeat(RIDGES, len(targets)))
    weights = coefficients @ basis.dual
    offsets = coefficients[..., -1] - (weights @ inner).mean(axis=-1)
    return np.asarray((weights @ gram[np.ix_(~own, own)] + offsets[..., None]).reshape(n, *targets.shape[:2], -1))


Losses = Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_]], NDArray[np.float64]]


def chosen_ridges(
    gram: Gram, labels: Labels, folds: Int64[np.ndarray, " sample"], losses: Losses = log_losses
) -> Float64[np.ndarray, "fold chosen"]:
    """Return the ridge of RIDGES with the least loss of held-out samples, for each fold that is left out.

    The fits without two folds serve both: each chooses for the one by the losses of the other.
    """
    found: dict[int, Any] = dict.fromkeys(range(FOLDS), 0.0)
    for one, other in combinations(range(FOLDS), 2):
        own = np.isin(folds, (one, other))
        of_samples = losses(gram, labels, own)
        found[one] = found[one] + of_samples[..., folds[own] == other].sum(axis=-1)
        found[other] = found[other] + of_samples[..., folds[own] == one].sum(axis=-1)
    return np.asarray(np.array(RIDGES)[np.argmin([*found.values()], axis=1)])


def chosen_ridge(
    gram: Gram, labels: Labels, folds: Int64[np.ndarray, " sample"], losses: Losses = log_losses
) -> Float64[np.ndarray, " chosen"]:
    """Return the ridge of RIDGES with the least loss of held-out samples, for a fit on all samples."""
    found = sum(losses(gram, labels, folds == fold).sum(axis=-1) for fold in range(FOLDS))
    return np.asarray(np.array(RIDGES)[np.argmin(found, axis=0)])


def held_out_lda_scores(
    gram: Gram,
    labels: Labels,
    folds: Int64[np.ndarray, " sample"],
    left_out: Bool[np.ndarray, "draw sample"] | None = None,
    *,
    n_features: int,
) -> Float64[np.ndarray, "draw sample"]:
    """Return each sample's score by `lda` on all other folds; arguments as for `held_out.held_out_scores`."""
    return held_out(gram, folds, left_out, lambda inner, rest, out, _: lda(inner, labels[:, rest], n_features, out))


def held_out_logistic_scores(
    gram: Gram,
    labels: Labels,
    folds: Int64[np.ndarray, " sample"],
    left_out: Bool[np.ndarray, "draw sample"] | None = None,
    *,
    ridges: Float64[np.ndarray, "fold chosen"],
) -> Float64[np.ndarray, "draw sample"]:
    """Return each sample's score by `logistic` on all other folds; arguments as for `held_out.held_out_scores`.

    `ridges` are those of `chosen_ridges`, for these rows of labels or more.
    """
    n = len(labels)
    return held_out(
        gram, folds, left_out, lambda inner, rest, out, fold: logistic(inner, labels[:, rest], ridges[fold, :n], out)
    )


def held_out(
    gram: Gram,
    folds: Int64[np.ndarray, " sample"],
    left_out: Bool[np.ndarray, "draw sample"] | None,
    fit: Callable[[NDArray[np.float64], NDArray[np.bool_], NDArray[np.bool_] | None, int], Probes],
) -> Float64[np.ndarray, "row sample"]:
    """Return the score of each sample by the probes that are fitted on all other folds.

    Args:
        gram: Gram matrix of the samples.
        folds: fold of each sample.
        left_out: samples without which a row is fitted.
        fit: returns the probes, given the Gram matrix of the samples of the other folds, which samples these are, those
            of them that are left out, and the fold.
    """
    parts = []
    for fold in range(FOLDS):
        rest, own = folds != fold, folds == fold
        probes = fit(gram[np.ix_(rest, rest)], rest, None if left_out is None else left_out[:, rest], fold)
        parts.append(probes.weights @ gram[np.ix_(rest, own)] - probes.offsets[:, None])
    scores = np.empty((len(parts[0]), len(gram)))
    for fold, part in enumerate(parts):
        scores[:, folds == fold] = part
    return scores
