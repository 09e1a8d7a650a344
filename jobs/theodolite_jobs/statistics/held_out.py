"""Scores of samples along directions that other samples give, from the samples' Gram matrix. Pure, in float64.

Each draw has its own labels, which say which samples count as positive.
"""

import numpy as np
from jaxtyping import Bool, Float64, Int64
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve

from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.ratio import ratio

ROUNDING = 1e-13
"""The rounding error of a squared distance of means, relative to the mean squared norm of the centred samples."""

RIDGE = 0.03
"""The penalty of ridge regression, as a multiple of the mean eigenvalue of the training samples' Gram matrix.

On a model whose leading feature has most of the variance, 0.01 to 0.1 gave the same AUROC within 0.001; see docs.
"""


def difference_weights(labels: Bool[np.ndarray, "draw sample"]) -> Float64[np.ndarray, "draw sample"]:
    """Return w of each draw, so that Σ w x is the difference of the means of its two sets; NaN if one is empty."""
    positive, negative = mean_weights(labels, ~labels)
    return positive - negative


def mean_weights(*sets: NDArray[np.bool_]) -> list[NDArray[np.float64]]:
    """Return the weights of samples in the mean of each set, each (draw, sample); NaN for an empty set."""
    with np.errstate(invalid="ignore"):
        return [chosen / chosen.sum(axis=1, keepdims=True) for chosen in sets]


def difference_norms(
    gram: Float64[np.ndarray, "sample sample"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, " draw"]:
    """Return the distance of the two sets' means under each draw, from the Gram matrix of the centred samples."""
    weights = difference_weights(labels)
    return _lengths(np.vecdot(weights @ gram, weights), gram)


def held_out_scores(
    gram: Float64[np.ndarray, "sample sample"],
    labels: Bool[np.ndarray, "#draw sample"],
    folds: Int64[np.ndarray, " sample"],
    left_out: Bool[np.ndarray, "draw sample"] | None = None,
) -> Float64[np.ndarray, "draw sample"]:
    """Return each sample's score x·u − m·u under each draw, along the direction u of all other folds.

    u is the unit vector between the two sets' means over the other folds, and m is the midpoint of these means. The
    scores are NaN where the means are equal, or where a set has no samples in other folds.

    Args:
        gram: Gram matrix of the centred samples.
        labels: from `permuted_labels`.
        folds: fold of each sample.
        left_out: samples that belong to no mean; they have scores nevertheless. One row of labels serves all draws.
    """
    scores = np.empty(_shape(labels, left_out))
    for fold in range(FOLDS):
        own, rest = folds == fold, folds != fold
        positive, negative = _means(labels, left_out, rest)
        centred, lengths = _along(gram, own, rest, positive - negative, (positive + negative) / 2)
        scores[:, own] = ratio(centred, lengths)
    return scores


def held_out_ridge_scores(
    gram: Float64[np.ndarray, "sample sample"],
    labels: Bool[np.ndarray, "#draw sample"],
    folds: Int64[np.ndarray, " sample"],
    left_out: Bool[np.ndarray, "draw sample"] | None = None,
) -> Float64[np.ndarray, "draw sample"]:
    """Return each sample's score x·w − m·w under each draw, by ridge regression on all other folds.

    w minimises Σ (y − w·(x − x̄))² + λ‖w‖² over the other folds, where y is 1 for P and −1 for N, minus its mean, x̄ is
    the mean of these samples, and λ is RIDGE times the mean of the n−1 eigenvalues of their Gram matrix, whichever
    samples are left out. m is the midpoint of both sets' means. With large λ, w has the direction of the difference of
    means. The Gram matrix of a fold does not depend on the labels, so it is factorised once (Saunders, Gammerman and
    Vovk 1998). Arguments, and where the scores are NaN, as for `held_out_scores`.
    """
    scores = np.full(_shape(labels, left_out), np.nan)
    for fold in range(FOLDS):
        own, rest = folds == fold, folds != fold
        positive, negative = _means(labels, left_out, rest)
        _, lengths = _along(gram, own, rest, positive - negative, positive)
        defined = lengths[:, 0] > 0
        if not defined.any():
            continue
        inner = centred_gram(gram[np.ix_(rest, rest)])
        penalty = RIDGE * np.trace(inner) / (len(inner) - 1)
        factor = cho_factor(inner + penalty * np.eye(len(inner)), lower=True)
        targets = 2.0 * labels[:, rest]
        solved = cho_solve(factor, (targets - targets.mean(axis=1, keepdims=True)).T).T
        weights = np.broadcast_to(solved, positive.shape)[defined]
        if left_out is not None:
            inverse = cho_solve(factor, np.eye(len(inner))) - 1 / (penalty * len(inner))
            without_samples(weights, inverse, left_out[np.ix_(defined, rest)])
        midpoints = (positive + negative)[defined] / 2
        scores[np.ix_(defined, own)] = _along(gram, own, rest, weights, midpoints)[0]
    return scores


def _shape(labels: NDArray[np.bool_], left_out: NDArray[np.bool_] | None) -> tuple[int, ...]:
    return labels.shape if left_out is None else np.broadcast_shapes(labels.shape, left_out.shape)


def without_samples(weights: NDArray[np.float64], inverse: NDArray[np.float64], left_out: NDArray[np.bool_]) -> None:
    """Replace the weights of ridge regression, (draw, sample), by those of the fit without the samples left out.

    A sample left out has the weight 0, and then the fit of the others is unchanged if its own target is what the fit
    without it predicts. `inverse` gives the weights of any targets. All draws that leave samples out leave out equally
    many.
    """
    draws = np.flatnonzero(left_out.any(axis=1))
    if not len(draws):
        return
    out = np.nonzero(left_out[draws])[1].reshape(len(draws), -1)  # (draw, k)
    among = inverse[out[:, :, None], out[:, None, :]]
    own = np.linalg.solve(among, weights[draws[:, None], out][..., None])
    weights[draws] -= np.einsum("dks,dk->ds", inverse[out], own[..., 0])


def _means(
    labels: NDArray[np.bool_], left_out: NDArray[np.bool_] | None, rest: NDArray[np.bool_]
) -> list[NDArray[np.float64]]:
    """Return the weights of the samples of the other folds in the means of both sets, each (draw, sample)."""
    sets = labels[:, rest], ~labels[:, rest]
    return mean_weights(*(sets if left_out is None else (one & ~left_out[:, rest] for one in sets)))


def _along(
    gram: NDArray[np.float64],
    own: NDArray[np.bool_],
    rest: NDArray[np.bool_],
    weights: NDArray[np.float64],
    midpoints: NDArray[np.float64],
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return x·v − m·v of each sample of a fold, (draw, sample), and the length of v = Σ weight x, (draw, 1).

    The sum is over the samples of the other folds, `rest`, and so is m = Σ midpoint x.
    """
    products = weights @ gram[rest]
    centred = products[:, own] - np.vecdot(products[:, rest], midpoints)[:, None]
    return centred, _lengths(np.vecdot(products[:, rest], weights), gram)[:, None]


def centred_gram(gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the Gram matrix of samples minus their mean, from that of the samples."""
    means = gram.mean(axis=0)
    return np.asarray(gram - means - means[:, None] + means.mean())


def _lengths(squares: NDArray[np.float64], gram: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the lengths of differences of means from their squares, which have the rounding error of the Gram matrix.

    Exactly equal means give 0.
    """
    rounding = ROUNDING * np.trace(gram) / len(gram)
    return np.sqrt(np.where(squares <= rounding, 0, squares))  # which keeps NaN
