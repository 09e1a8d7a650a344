"""Products of factors A C Bᵀ: singular values and vectors, and ranks. Pure, in float64.

The circuits of attention heads are such products; the matrices themselves are never formed.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.linalg.lapack import dpotrf, dtrcon, dtrtrs

from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.ratio import ratio

# Above this condition number a Cholesky factor of the Gram matrix, whose condition is the square, is too inexact.
_LARGEST_CONDITION = 1e4

COVERED = 0.99

_GAUSSIAN_DRAWS = 5  # the effective rank differs by about 0.1 % between draws
_SEED = 0


@dataclass(frozen=True)
class Circuits:
    """One layer's circuits: W_QK(δ) = query · rotation · keyᵀ and W_OV = value · writtenᵀ.

    An unchanged factor keeps the dtype of the model's files, so a layer of a large model needs little memory. A factor
    that a norm or a scale is folded into is in float64. Biases and norms are None where the model has none.

    Attributes:
        query: W_Q, with the scale of the norm on queries folded in.
        key: W_K, with the scale of the norm on keys folded in.
        value: W_V.
        output: W_Oᵀ.
        written: W_Oᵀ with the scale of the norm on attention's output and the residual multiplier folded in.
        kv_head_of: index of the key-value head that each head uses.
        rotations: s·R(δ) by offset δ, with the family's score scale s.
        input_norm: the norm between the residual stream and attention's queries.
        source_norm: the norm between the residual stream and keys and values, which may be those of an earlier layer.
        output_norm: the norm on attention's output before it is added to the stream.
        output_scale: factor on attention's output before it is added to the stream.
    """

    query: Float[np.ndarray, "head d_model d_head"]
    key: Float[np.ndarray, "kv_head d_model d_head"]
    value: Float[np.ndarray, "kv_head d_model d_head"]
    output: Float[np.ndarray, "head d_model d_head"]
    written: Float[np.ndarray, "head d_model d_head"]
    kv_head_of: Int[np.ndarray, " head"]
    rotations: Mapping[int, Float[np.ndarray, "d_head d_head"]]
    query_bias: Float[np.ndarray, "head d_head"] | None
    key_bias: Float[np.ndarray, "kv_head d_head"] | None
    value_bias: Float[np.ndarray, "kv_head d_head"] | None
    output_bias: Float[np.ndarray, " d_model"] | None
    input_norm: Norm | None
    source_norm: Norm | None
    output_norm: Norm | None
    output_scale: float


@dataclass(frozen=True)
class Thin:
    """Factors A = Q T of each head, or of each group of heads that share a factor, with Q orthonormal.

    Attributes:
        factor: A in its own dtype; one head at a time is converted to float64.
        triangle: T.
        bases: Q of the heads with an ill-conditioned Gram matrix, by head; for all other heads Q = A T⁻¹.
    """

    factor: Float[np.ndarray, "head d_model d_head"]
    triangle: Float[np.ndarray, "head d_head d_head"]
    bases: Mapping[int, NDArray[np.float64]]

    def times_basis(
        self, heads: Int[np.ndarray, " other"], inner: Float[np.ndarray, "other d_head vector"]
    ) -> Float[np.ndarray, "other vector d_model"]:
        """Return Q u for inner vectors u of the given heads; a head may occur more than once."""
        outer = np.empty((len(heads), inner.shape[2], self.factor.shape[1]))
        for head in sorted(set(heads.tolist())):
            basis = self.bases.get(head)
            factor = self.factor[head].astype(np.float64) if basis is None else basis
            for row in np.flatnonzero(heads == head):
                mixed = inner[row]
                if basis is None:
                    mixed, _ = dtrtrs(self.triangle[head].T, mixed, lower=1, trans=1)  # T⁻¹ u; LAPACK reads columns
                np.matmul(mixed.T, factor.T, out=outer[row])
        return outer

    def times_factor(self, rows: Float[np.ndarray, "row d_model"]) -> Float[np.ndarray, "head row d_head"]:
        """Return the rows times A of each head."""
        if not len(rows):
            return np.empty((len(self.factor), 0, self.factor.shape[2]))
        return np.stack([rows @ factor.astype(np.float64) for factor in self.factor])


@dataclass(frozen=True)
class Decomposition:
    """M = Σ σ u vᵀ for each head, singular values descending.

    Attributes:
        singular_values: all singular values σ.
        left: the leading vectors u.
        right: the leading vectors v; the component of largest magnitude is positive.
    """

    singular_values: Float[np.ndarray, "head rank"]
    left: Float[np.ndarray, "head vector d_model"]
    right: Float[np.ndarray, "head vector d_model"]


def thin(factor: Float[np.ndarray, "head d_model d_head"]) -> Thin:
    """Return A = Q T of each head; T is the Cholesky factor of AᵀA, or from QR if AᵀA is ill-conditioned.

    Raises:
        ValueError: a weight is not finite, or a head is wider than the stream.
    """
    if factor.shape[2] > factor.shape[1]:
        raise ValueError(
            f"its heads of {factor.shape[2]} values are wider than the stream of {factor.shape[1]}, and circuits are "
            "computed for heads that are at most as wide"
        )
    gram = np.stack([_gram(one.astype(np.float64)) for one in factor])
    finite = np.isfinite(gram).all(axis=(1, 2))  # the square of a weight that is not finite is not finite either
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
    # NumPy detects that both operands are the same matrix, and computes half of the product.
    return np.asarray(factor.T @ factor)


def decompose(
    left: Thin,
    right: Thin,
    vectors: int,
    left_of: Int[np.ndarray, " head"],
    right_of: Int[np.ndarray, " head"],
    middle: Float[np.ndarray, "d_head d_head"] | None = None,
) -> Decomposition:
    """Return the singular value decomposition of M = A C Bᵀ for each head, from the small core T_A C T_Bᵀ.

    Args:
        left: factors A, one for each head or group of heads.
        right: factors B, one for each head or group of heads.
        vectors: number of leading singular vectors to return; 0 returns singular values only.
        left_of: index of the factor A of each head.
        right_of: index of the factor B of each head.
        middle: C; the identity by default.
    """
    core = left.triangle if middle is None else left.triangle @ middle
    core = core[left_of] @ right.triangle[right_of].transpose(0, 2, 1)
    if vectors == 0:
        none = np.empty((len(core), 0, left.factor.shape[1]))
        return Decomposition(np.linalg.svd(core, compute_uv=False), none, none)
    u, values, vt = np.linalg.svd(core)
    right_vectors = right.times_basis(right_of, vt[:, :vectors].transpose(0, 2, 1))
    sign = _signs(right_vectors)
    right_vectors *= sign[..., None]
    return Decomposition(values, left.times_basis(left_of, u[:, :, :vectors] * sign[:, None]), right_vectors)


def _signs(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the sign of each vector's component of largest magnitude; of the first such component if several tie."""
    highest, lowest = vectors.max(axis=-1), vectors.min(axis=-1)
    sign = np.where(-lowest > highest, -1.0, 1.0)
    tied = -lowest == highest  # rare; argmax over all vectors would take most of the time
    ties = vectors[tied]
    sign[tied] = np.sign(np.take_along_axis(ties, np.abs(ties).argmax(axis=-1)[:, None], axis=-1))[:, 0]
    return sign


def coverage_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Int[np.ndarray, "*head"]:
    """Return the number of leading singular values whose sum first exceeds 99 % of Σσ; −1 for a circuit of zeros."""
    cumulative = np.cumsum(singular_values, axis=-1)
    first = (cumulative <= COVERED * cumulative[..., -1:]).sum(axis=-1) + 1
    return np.where(cumulative[..., -1] > 0, first, -1).astype(np.int64)


def effective_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return the exponential of the entropy of p = σ/Σσ (Roy and Vetterli 2007); NaN for a circuit of zeros."""
    total = np.broadcast_to(singular_values.sum(axis=-1, keepdims=True), singular_values.shape)
    share = ratio(singular_values, total)
    # 0·ln 0 counts as 0; NaN stays NaN.
    logarithm = np.log(share, where=~(share == 0), out=np.zeros_like(share))
    entropy: NDArray[np.float64] = np.exp(-(share * logarithm).sum(axis=-1))
    return entropy


def effective_rank_of_gaussian_factors(d_model: int, left: Sequence[int], right: Sequence[int]) -> float:
    """Return the mean effective rank of A Bᵀ of random weights.

    A is a product of independent standard Gaussians, of (d_model, w₁), (w₁, w₂) and so on, for the widths w of `left`;
    B is the same for `right`. A product of several matrices has a smaller effective rank than one matrix of its shape.
    The singular values are those of T_A T_Bᵀ, with A = Q T.
    """
    random = np.random.default_rng(_SEED)
    singular = []
    for _ in range(_GAUSSIAN_DRAWS):
        first, second = (np.linalg.qr(gaussian_product(random, d_model, widths)).R for widths in (left, right))
        singular.append(np.linalg.svd(first @ second.T, compute_uv=False))
    return float(effective_rank(np.stack(singular)).mean())


def gaussian_product(
    random: np.random.Generator, d_model: int, widths: Sequence[int], dtype: type[np.floating] = np.float64
) -> NDArray[np.floating]:
    """Return a product of standard Gaussians, of (d_model, w₁), (w₁, w₂), …."""
    product: NDArray[np.floating] = random.standard_normal((d_model, widths[0]), dtype=dtype)
    for before, after in pairwise(widths):
        product = product @ random.standard_normal((before, after), dtype=dtype)
    return product


def stable_rank(singular_values: Float[np.ndarray, "*head rank"]) -> Float[np.ndarray, "*head"]:
    """Return Σσ²/max σ² (Rudelson and Vershynin 2007); NaN for a circuit of zeros."""
    squares = singular_values**2
    return ratio(squares.sum(axis=-1), squares[..., 0])


def numerical_rank(factors: Thin) -> Int[np.ndarray, " head"]:
    """Return the rank of each factor: the number of singular values above numpy.linalg.matrix_rank's tolerance."""
    rank = np.full(len(factors.triangle), factors.triangle.shape[-1])  # a factor without a basis has full rank
    for head in factors.bases:
        values = np.linalg.svd(factors.triangle[head], compute_uv=False)
        rank[head] = (values > values[0] * max(factors.factor.shape[1:]) * np.finfo(np.float64).eps).sum()
    return rank
