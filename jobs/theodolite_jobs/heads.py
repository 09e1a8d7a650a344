"""The QK and VO circuits of attention heads: singular values and vectors from thin factors, in float64.

A circuit is a (d_model, d_model) bilinear map of rank d_head, M = A C Bᵀ, with A and B of (d_model, d_head) and C of
(d_head, d_head): W_QK(δ) = s·W_Q R(δ) W_Kᵀ and W_VO = W_V W_O (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", in row convention). M itself is never formed.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

# Past this, a Cholesky factor of the Gram matrix, whose condition is the square, has lost the digits that count.
_LARGEST_CONDITION = 1e5

COVERED = 0.99


@dataclass(frozen=True)
class Thin:
    """Factors A = Q T, (head, d_model, d_head), and T, (head, d_head, d_head); Q is orthonormal and not kept."""

    factor: Float[np.ndarray, "head d_model d_head"]
    triangle: Float[np.ndarray, "head d_head d_head"]


@dataclass(frozen=True)
class Decomposition:
    """M = Σ σ u vᵀ for each head, singular values descending.

    Attributes:
        singular_values: all of them.
        left: the vectors u of the leading ones.
        right: the vectors v; the component of largest magnitude is positive.
    """

    singular_values: Float[np.ndarray, "head rank"]
    left: Float[np.ndarray, "head vector d_model"]
    right: Float[np.ndarray, "head vector d_model"]


def thin(factor: Float[np.ndarray, "head d_model d_head"]) -> Thin:
    """Return each head's triangle: the Cholesky factor of its Gram matrix, or QR's where the Gram loses digits.

    Raises:
        ValueError: a weight is not finite.
    """
    exact = np.asarray(factor, dtype=np.float64)
    if not np.isfinite(exact).all():
        head = int(np.flatnonzero(~np.isfinite(exact).all(axis=(1, 2)))[0])
        raise ValueError(f"head {head} has a weight that is not finite")
    gram = exact.transpose(0, 2, 1) @ exact
    eigenvalues = np.linalg.eigvalsh(gram)
    if (eigenvalues[:, 0] * _LARGEST_CONDITION**2 > eigenvalues[:, -1]).all():
        return Thin(exact, np.linalg.cholesky(gram).transpose(0, 2, 1))
    return Thin(exact, np.asarray(np.linalg.qr(exact, mode="r")))


def decompose(
    left: Thin,
    right: Thin,
    vectors: int,
    right_of: Int[np.ndarray, " head"] | None = None,
    middle: Float[np.ndarray, "d_head d_head"] | None = None,
) -> Decomposition:
    """Decompose M = A C Bᵀ of each head through the small core T_A C T_Bᵀ.

    Args:
        left: factors A, one for each head.
        right: factors B, one for each head, or one for each group of heads.
        vectors: how many leading singular vectors to return; 0 for singular values alone.
        right_of: which right factor each head uses; one each if left out.
        middle: C; the identity if left out.
    """
    of_head = np.arange(len(left.triangle)) if right_of is None else right_of
    core = left.triangle if middle is None else left.triangle @ middle
    core = core @ right.triangle[of_head].transpose(0, 2, 1)
    if vectors == 0:
        values = np.linalg.svd(core, compute_uv=False)
        none = np.empty((len(core), 0, left.factor.shape[1]))
        return Decomposition(values, none, none)
    u, values, vt = np.linalg.svd(core)
    ours = _along_factor(left, np.arange(len(core)), u[:, :, :vectors])
    theirs = _along_factor(right, of_head, vt.transpose(0, 2, 1)[:, :, :vectors])
    largest = np.abs(theirs).argmax(axis=-1)[..., None]
    sign = np.where(np.take_along_axis(theirs, largest, axis=-1) < 0, -1.0, 1.0)
    return Decomposition(values, ours * sign, theirs * sign)


def _along_factor(
    thin_factor: Thin, of_head: Int[np.ndarray, " head"], inner: Float[np.ndarray, "head d_head vector"]
) -> Float[np.ndarray, "head vector d_model"]:
    """Return Q u = A T⁻¹ u for each head's inner vectors u, (head, d_head, vector)."""
    weights = np.linalg.solve(thin_factor.triangle[of_head], inner)
    along = np.empty((len(weights), weights.shape[2], thin_factor.factor.shape[1]))
    for head, (index, columns) in enumerate(zip(of_head, weights, strict=True)):
        along[head] = (thin_factor.factor[index] @ columns).T
    return along


def coverage_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Int[np.ndarray, "*head"]:
    """Return the first rank at which the cumulative sum of singular values passes 99 % of the whole; 1 is the first."""
    cumulative = np.cumsum(singular_values, axis=-1)
    first: NDArray[np.int64] = (cumulative <= COVERED * cumulative[..., -1:]).sum(axis=-1) + 1
    return first


def effective_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return exp of the entropy of p = σ/Σσ (Roy and Vetterli 2007)."""
    share = singular_values / singular_values.sum(axis=-1, keepdims=True)
    logarithm = np.log(share, where=share > 0, out=np.zeros_like(share))
    entropy: NDArray[np.float64] = np.exp(-(share * logarithm).sum(axis=-1))
    return entropy


def stable_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return Σσ²/max σ² (Rudelson and Vershynin 2007)."""
    squares = singular_values**2
    stable: NDArray[np.float64] = squares.sum(axis=-1) / squares[..., 0]
    return stable
