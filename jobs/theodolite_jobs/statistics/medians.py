"""Geometric medians from Gram matrices alone, and how means, medians and their differences lie. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.gram import centred

_TOLERANCE = 1e-12
_ROUNDS = 1000

Weights = Float64[np.ndarray, " n"]


def median_weights(matrix: Float64[np.ndarray, "n n"]) -> Weights:
    """Return w, Σw = 1, such that Σ w_i x_i is the point with the least sum of distances to the samples.

    Weiszfeld's iteration in the form of Vardi and Zhang (2000), which does not stop at a sample that it meets. The
    distances follow from the Gram matrix: ‖x_i − Xᵀw‖² = K_ii − 2(Kw)_i + wᵀKw.

    Args:
        matrix: Gram matrix; centred or not makes no difference.
    """
    n = len(matrix)
    weights = np.full(n, 1 / n)
    squares = np.diag(matrix)
    floor = 1e-24 * max(float(squares.max()), 0.0)
    for _ in range(_ROUNDS):
        along = matrix @ weights
        distances = np.maximum(squares - 2 * along + weights @ along, 0.0)
        away = distances > floor
        if not away.any():
            return weights  # all samples are the median
        pull = np.zeros(n)
        pull[away] = 1 / np.sqrt(distances[away])
        target = pull / pull.sum()
        met = int((~away).sum())
        if met:
            target = _past_a_sample(matrix, weights, target, pull, met)
        change = target - weights
        weights = target
        if change @ matrix @ change <= _TOLERANCE**2 * distances.mean():
            break
    return weights


def _past_a_sample(
    matrix: NDArray[np.float64], weights: Weights, target: Weights, pull: NDArray[np.float64], met: int
) -> Weights:
    """Return where to go from a sample: towards the others, unless they pull less than it holds."""
    step = target - weights
    force = pull.sum() * np.sqrt(max(float(step @ matrix @ step), 0.0))
    held = min(1.0, met / force) if force > 0 else 1.0
    return (1 - held) * target + held * weights


def places(
    positive: Float64[np.ndarray, "p p"], negative: Float64[np.ndarray, "q q"], cross: Float64[np.ndarray, "p q"]
) -> dict[str, float]:
    """Return norms and cosines of both sets' means and geometric medians, and of their differences.

    What per-layer residual tables print elsewhere (Heretic): |g|, |b|, |r| and S(g,b), S(g,r), S(b,r) for means, and
    the same for medians. NaN where a vector has no length.

    Args:
        positive: Gram matrix of P, not centred.
        negative: Gram matrix of N, not centred.
        cross: dot products of P with N.
    """
    found: dict[str, float] = {}
    for centre in ("mean", "median"):
        w_p, w_q = (
            np.full(len(matrix), 1 / len(matrix)) if centre == "mean" else median_weights(centred(matrix))
            for matrix in (positive, negative)
        )
        pp, qq, pq = w_p @ positive @ w_p, w_q @ negative @ w_q, w_p @ cross @ w_q
        lengths = np.sqrt(np.maximum([pp, qq, pp + qq - 2 * pq], 0.0))
        found[f"norm_of_{centre}_positive"], found[f"norm_of_{centre}_negative"] = lengths[:2].tolist()
        found[f"difference_of_{centre}s"] = float(lengths[2])
        found[f"cosine_of_{centre}s"] = _over(pq, lengths[0] * lengths[1])
        found[f"cosine_{centre}_positive_difference"] = _over(pp - pq, lengths[0] * lengths[2])
        found[f"cosine_{centre}_negative_difference"] = _over(pq - qq, lengths[1] * lengths[2])
    return found


def _over(dot: float, lengths: float) -> float:
    return float(dot / lengths) if lengths > 0 else float("nan")
