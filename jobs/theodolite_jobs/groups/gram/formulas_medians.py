"""Geometric medians from Gram matrices; norms and cosines of means, medians and their differences. Pure, in float64."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

_TOLERANCE = 1e-12
_ROUNDS = 1000
_ROUNDING = 1e-13
_COINCIDENT = 1e-14

Weights = Float64[np.ndarray, " n"]


class Centres(NamedTuple):
    """The means, or the geometric medians, of two sets. A cosine is NaN if one of its vectors is zero.

    Attributes:
        norms: norm of each; the positive set is the first.
        cosines: cosine of each with their difference, positive minus negative.
        cosine: cosine between them.
        difference: norm of their difference.
    """

    norms: tuple[float, float]
    cosines: tuple[float, float]
    cosine: float
    difference: float


def median_weights(matrix: Float64[np.ndarray, "n n"]) -> Weights:
    """Return weights w, Σw = 1, such that Σ w_i x_i is the geometric median: its sum of distances is the smallest.

    Weiszfeld's iteration in the form of Vardi and Zhang (2000), which does not stop at a sample. The distances follow
    from the Gram matrix, centred or not: ‖x_i − Xᵀw‖² = K_ii − 2(Kw)_i + wᵀKw.
    """
    n = len(matrix)
    weights = np.full(n, 1 / n)
    squares = np.diag(matrix)
    for _ in range(_ROUNDS):
        along = matrix @ weights
        inverse, coincident = _inverse_distances(squares - 2 * along + weights @ along, squares)
        if coincident == n:
            return weights  # all samples are the median
        target = inverse / inverse.sum()
        if coincident:
            target = _step_from_sample(matrix, weights, target, inverse, coincident)
        change = target - weights
        weights = target
        if change @ matrix @ change <= _TOLERANCE**2 * squares.mean():
            break
    # The iteration converges slowly if the median is a sample.
    nearest = int(np.argmin(squares - 2 * (matrix @ weights)))
    return np.eye(n)[nearest] if _is_median(matrix, nearest) else weights


def _inverse_distances(distances: NDArray[np.float64], squares: NDArray[np.float64]) -> tuple[NDArray[np.float64], int]:
    """Return 1/distance to each sample, 0 for samples that coincide with the point, and the number of those.

    `distances` are squared. The rounding of the samples' squared lengths is the smallest distance that is not zero.
    """
    distinct = distances > _COINCIDENT * squares.max()
    inverse = np.where(distinct, 1 / np.sqrt(np.where(distinct, distances, 1.0)), 0.0)
    return inverse, int((~distinct).sum())


def _is_median(matrix: NDArray[np.float64], sample: int) -> bool:
    """Return whether a sample is the median: the sum of unit vectors to the others is at most its multiplicity."""
    squares = np.diag(matrix)
    inverse, coincident = _inverse_distances(squares - 2 * matrix[sample] + squares[sample], squares)
    inverse[sample] = -inverse.sum()
    return bool(inverse @ matrix @ inverse <= coincident**2)


def _step_from_sample(
    matrix: NDArray[np.float64], weights: Weights, target: Weights, inverse: NDArray[np.float64], coincident: int
) -> Weights:
    """Return the next weights at a sample: towards the target, damped by the sample's multiplicity."""
    step = target - weights
    force = inverse.sum() * np.sqrt(max(float(step @ matrix @ step), 0.0))
    damping = min(1.0, coincident / force) if force > 0 else 1.0
    return (1 - damping) * target + damping * weights


def means_and_medians(
    positive: Float64[np.ndarray, "p p"],
    negative: Float64[np.ndarray, "q q"],
    cross: Float64[np.ndarray, "p q"],
    positive_along: Float64[np.ndarray, " p"],
    negative_along: Float64[np.ndarray, " q"],
    square: float,
) -> tuple[Centres, Centres]:
    """Return norms and cosines of both sets' means and of their difference, and the same of their geometric medians.

    These are the columns of Heretic's per-layer residual tables: |g|, |b|, |r| and S(g,b), S(g,r), S(b,r) for means,
    and the same for medians.

    After subtraction of a point m from all samples, the arguments are the dot products of P with P, N with N, P with N,
    P with m and N with m, and ‖m‖².
    """

    def centres(w_p: Float64[np.ndarray, " p"], w_q: Float64[np.ndarray, " q"]) -> Centres:
        # With weights that sum to 1, Σ w_i x_i = Σ w_i (x_i − m) + m.
        along_p, along_q = w_p @ positive_along, w_q @ negative_along
        pp = w_p @ positive @ w_p + 2 * along_p + square
        qq = w_q @ negative @ w_q + 2 * along_q + square
        pq = w_p @ cross @ w_q + along_p + along_q + square
        difference = w_p @ positive @ w_p + w_q @ negative @ w_q - 2 * (w_p @ cross @ w_q)
        spread = float(np.diag(positive).mean() + np.diag(negative).mean())
        scale = spread + square
        p, q, r = _length(pp, scale), _length(qq, scale), _length(difference, spread)
        return Centres((p, q), (_cosine(pp - pq, p * r), _cosine(pq - qq, q * r)), _cosine(pq, p * q), r)

    n_p, n_q = cross.shape
    means = centres(np.full(n_p, 1 / n_p), np.full(n_q, 1 / n_q))
    return means, centres(median_weights(positive), median_weights(negative))


def _length(square: float, scale: float) -> float:
    """Return √square, or 0 if rounding of terms of the given scale can explain the square."""
    return float(np.sqrt(square)) if square > _ROUNDING * scale else 0.0


def _cosine(dot: float, lengths: float) -> float:
    return float(dot / lengths) if lengths > 0 else float("nan")
