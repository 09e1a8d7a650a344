"""The QK and VO circuits of attention heads: singular values, vectors and what follows from them, in float64.

A circuit is a (d_model, d_model) bilinear map of rank d_head, M = A C Bᵀ, with A and B of (d_model, d_head) and C of
(d_head, d_head): W_QK(δ) = s·W_Q R(δ) W_Kᵀ and W_VO = W_V W_O (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", in row convention). M itself is never formed.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrcon, dtrtrs

from theodolite_jobs.statistics.ratio import ratio

# Past this, a Cholesky factor of the Gram matrix, whose condition is the square, has lost the digits that count.
_LARGEST_CONDITION = 1e4

COVERED = 0.99


@dataclass(frozen=True)
class Thin:
    """Factors A = Q T of each head, or of each group of heads that share one, with Q orthonormal.

    Attributes:
        factor: A, as it was given; one head at a time is taken to float64.
        triangle: T.
        bases: Q of the heads whose Gram matrix would lose digits; of the others it is A T⁻¹.
    """

    factor: Float[np.ndarray, "head d_model d_head"]
    triangle: Float[np.ndarray, "head d_head d_head"]
    bases: Mapping[int, NDArray[np.float64]]

    def outside(
        self, heads: Int[np.ndarray, " other"], inner: Float[np.ndarray, "other d_head vector"]
    ) -> Float[np.ndarray, "other vector d_model"]:
        """Return Q u of some heads for inner vectors u; a head may come more than once."""
        along = np.empty((len(heads), inner.shape[2], self.factor.shape[1]))
        for head in sorted(set(heads.tolist())):
            basis = self.bases.get(head)
            factor = self.factor[head].astype(np.float64) if basis is None else basis
            for row in np.flatnonzero(heads == head):
                mixed = inner[row]
                if basis is None:
                    mixed, _ = dtrtrs(self.triangle[head].T, mixed, lower=1, trans=1)  # T⁻¹ u; LAPACK reads columns
                np.matmul(mixed.T, factor.T, out=along[row])
        return along

    def inside(self, rows: Float[np.ndarray, "row d_model"]) -> Float[np.ndarray, "head row d_head"]:
        """Return rows times A of each head."""
        if not len(rows):
            return np.empty((len(self.factor), 0, self.factor.shape[2]))
        return np.stack([rows @ factor.astype(np.float64) for factor in self.factor])


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
    gram = np.stack([_gram(one.astype(np.float64)) for one in factor])
    finite = np.isfinite(gram).all(axis=(1, 2))  # one weight that is not makes its own square so
    if not finite.all():
        raise ValueError(f"head {int(np.flatnonzero(~finite)[0])} has a weight that is not finite")
    triangle, bases = np.empty_like(gram), {}
    for head, one in enumerate(gram):
        triangle[head], failed = dpotrf(one)
        reciprocal, _ = (0.0, 0) if failed else dtrcon(triangle[head].T, uplo="L")
        if reciprocal * _LARGEST_CONDITION < 1:
            bases[head], triangle[head] = np.linalg.qr(factor[head].astype(np.float64))
    return Thin(factor, triangle, bases)


def _gram(factor: NDArray[np.float64]) -> NDArray[np.float64]:
    # NumPy sees that both sides are one matrix, and computes half of the product.
    gram: NDArray[np.float64] = factor.T @ factor
    return gram


def decompose(
    left: Thin,
    right: Thin,
    vectors: int,
    left_of: Int[np.ndarray, " head"],
    right_of: Int[np.ndarray, " head"],
    middle: Float[np.ndarray, "d_head d_head"] | None = None,
) -> Decomposition:
    """Decompose M = A C Bᵀ of each head through the small core T_A C T_Bᵀ.

    Args:
        left: factors A, one for each head or group of heads.
        right: factors B, likewise.
        vectors: how many leading singular vectors to return; 0 for singular values alone.
        left_of: which left factor each head uses.
        right_of: which right factor each head uses.
        middle: C; the identity if left out.
    """
    core = left.triangle if middle is None else left.triangle @ middle
    core = core[left_of] @ right.triangle[right_of].transpose(0, 2, 1)
    if vectors == 0:
        none = np.empty((len(core), 0, left.factor.shape[1]))
        return Decomposition(np.linalg.svd(core, compute_uv=False), none, none)
    u, values, vt = np.linalg.svd(core)
    theirs = right.outside(right_of, vt[:, :vectors].transpose(0, 2, 1))
    sign = _signs(theirs)
    theirs *= sign[..., None]
    return Decomposition(values, left.outside(left_of, u[:, :, :vectors] * sign[:, None]), theirs)


def _signs(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sign of each vector's component of largest magnitude, of several the first's."""
    highest, lowest = vectors.max(axis=-1), vectors.min(axis=-1)
    sign = np.where(-lowest > highest, -1.0, 1.0)
    tied = -lowest == highest  # rare: looking for the place of every largest component would take most of the time
    of_tied = vectors[tied]
    sign[tied] = np.sign(np.take_along_axis(of_tied, np.abs(of_tied).argmax(axis=-1)[:, None], axis=-1))[:, 0]
    return sign


def coverage_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Int[np.ndarray, "*head"]:
    """Return the first rank at which the cumulative sum of singular values passes 99 % of the whole; 1 is the first.

    A circuit that is zero has −1.
    """
    cumulative = np.cumsum(singular_values, axis=-1)
    first = (cumulative <= COVERED * cumulative[..., -1:]).sum(axis=-1) + 1
    return np.where(cumulative[..., -1] > 0, first, -1).astype(np.int64)


def effective_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return exp of the entropy of p = σ/Σσ (Roy and Vetterli 2007); NaN for a circuit that is zero."""
    total = np.broadcast_to(singular_values.sum(axis=-1, keepdims=True), singular_values.shape)
    share = ratio(singular_values, total)
    # A NaN is passed on; a share of zero counts nothing.
    logarithm = np.log(share, where=~(share == 0), out=np.zeros_like(share))
    entropy: NDArray[np.float64] = np.exp(-(share * logarithm).sum(axis=-1))
    return entropy


def stable_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return Σσ²/max σ² (Rudelson and Vershynin 2007); NaN for a circuit that is zero."""
    squares = singular_values**2
    return ratio(squares.sum(axis=-1), squares[..., 0])


def numerical_rank(factors: Thin) -> Int[np.ndarray, " head"]:
    """Return each factor's rank: how many singular values are above rounding, as numpy.linalg.matrix_rank has it."""
    rank = np.full(len(factors.triangle), factors.triangle.shape[-1])  # where the Gram matrix would do, it is full
    for head in factors.bases:
        values = np.linalg.svd(factors.triangle[head], compute_uv=False)
        rank[head] = (values > values[0] * max(factors.factor.shape[1:]) * np.finfo(np.float64).eps).sum()
    return rank


def gain(
    directions: Float[np.ndarray, "direction d_model"],
    near: Thin,
    far: Thin,
    near_of: Int[np.ndarray, " head"],
    far_of: Int[np.ndarray, " head"],
    middle: Float[np.ndarray, "d_head d_head"] | None = None,
) -> Float[np.ndarray, "direction head"]:
    """Return |dᵀM| of unit vectors d for M = A C Bᵀ: √Σ σ²(u·d)², so between 0 and the leading singular value.

    A random d has √(Σσ²/d_model) on average.

    Args:
        directions: unit vectors; NaN gives NaN.
        near: the factors A that the directions meet; with B, and Cᵀ as `middle`, it is |M d|.
        far: the factors B.
        near_of: which factor A each head uses.
        far_of: which factor B each head uses.
        middle: C; the identity if left out.
    """
    inner = near.inside(directions)
    inner = inner if middle is None else inner @ middle
    met = inner[near_of] @ far.triangle[far_of].transpose(0, 2, 1)
    length: NDArray[np.float64] = np.linalg.norm(met, axis=-1).T
    return length


def null_share(inputs: Float[np.ndarray, "sample d_model"], factors: Thin) -> Float[np.ndarray, " head"]:
    """Return the share of the inputs' variance that lies in the null space of each projection x ↦ x A.

    That is 1 − Σ|Qᵀ(x − mean)|² / Σ|x − mean|²; NaN where all samples are equal.
    """
    centred = inputs - inputs[:1]  # first, so that samples that are all equal have no variance at all
    centred = centred - centred.mean(axis=0)
    total = (centred**2).sum()
    seen = np.array([_seen(centred, factors, head, rank) for head, rank in enumerate(numerical_rank(factors).tolist())])
    return 1 - ratio(seen, np.broadcast_to(total, seen.shape))


def _seen(centred: NDArray[np.float64], factors: Thin, head: int, rank: int) -> float:
    """Return Σ|Pᵀx|² for an orthonormal basis P of one factor's span; its rank may be less than its columns."""
    inner, _, _ = np.linalg.svd(factors.triangle[head])
    basis = factors.outside(np.array([head]), inner[None, :, :rank])[0]
    return float(((centred @ basis.T) ** 2).sum())


def copying_score(
    value: Float[np.ndarray, "kv_head d_model d_head"],
    output: Float[np.ndarray, "head d_model d_head"],
    kv_head_of: Int[np.ndarray, " head"],
    vocabulary: Float[np.ndarray, "d_model d_model"],
) -> Float[np.ndarray, " head"]:
    """Return Σλ/Σ|λ| over the eigenvalues of W_E W_VO W_Uᵀ: 1 where each token raises itself (Elhage et al. 2021).

    Its non-zero eigenvalues are those of the core W_O (W_Uᵀ W_E) W_V, (d_head, d_head).

    Args:
        value: W_V.
        output: W_Oᵀ.
        kv_head_of: which W_V each head uses.
        vocabulary: W_Uᵀ W_E; in float32 the scores have six digits.
    """
    through = np.matmul(vocabulary, value)
    core = np.stack(
        [one.T.astype(np.float64) @ through[kv].astype(np.float64) for one, kv in zip(output, kv_head_of, strict=True)]
    )
    values = np.linalg.eigvals(core)
    return ratio(values.sum(axis=-1).real, np.abs(values).sum(axis=-1))
