"""The QK and OV circuits of attention heads: singular values and vectors, ranks, gains and scores. Pure, in float64.

A circuit is a (d_model, d_model) bilinear map of rank d_head, M = A C Bᵀ, with A and B of (d_model, d_head) and C of
(d_head, d_head): W_QK(δ) = s·W_Q R(δ) W_Kᵀ and W_OV = W_V W_O (Elhage et al. 2021, "A Mathematical Framework for
Transformer Circuits", in row convention). M itself is never formed.
"""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from theodolite_jobs.statistics.factors import Thin, gaussian_product, numerical_rank
from theodolite_jobs.statistics.ratio import ratio

_SEED = 0
_COPYING_DRAWS = 100  # the standard deviation differs by about 7 % between seeds


def gain(
    directions: Float[np.ndarray, "direction d_model"],
    left: Thin,
    right: Thin,
    left_of: Int[np.ndarray, " head"],
    right_of: Int[np.ndarray, " head"],
    middle: Float[np.ndarray, "d_head d_head"] | None = None,
) -> Float[np.ndarray, "direction head"]:
    """Return |dᵀM| = √Σ σ²(u·d)² of unit vectors d for M = A C Bᵀ, between 0 and the leading singular value.

    A random d has √(Σσ²/d_model) in root mean square. To get |M d|, swap A and B and pass Cᵀ as `middle`. A direction
    of NaN gives NaN. The other arguments are those of `decompose`.
    """
    inner = left.times_factor(directions)
    inner = inner if middle is None else inner @ middle
    products = inner[left_of] @ right.triangle[right_of].transpose(0, 2, 1)
    return np.asarray(np.linalg.norm(products, axis=-1).T)


def null_share(inputs: Float[np.ndarray, "sample d_model"], factors: Thin) -> Float[np.ndarray, " head"]:
    """Return the share of the inputs' variance in the null space of each projection x ↦ x A.

    The share is 1 − Σ|Qᵀ(x − mean)|² / Σ|x − mean|². NaN if all samples are equal.
    """
    centred = inputs - inputs[:1]  # first, so that equal samples have a variance of exactly 0
    centred = centred - centred.mean(axis=0)
    total = (centred**2).sum()
    ranks = numerical_rank(factors).tolist()
    projected = np.array([_projected_squares(centred, factors, head, rank) for head, rank in enumerate(ranks)])
    return 1 - ratio(projected, np.broadcast_to(total, projected.shape))


def _projected_squares(centred: NDArray[np.float64], factors: Thin, head: int, rank: int) -> float:
    """Return Σ|Pᵀx|² for an orthonormal basis P of one factor's column space, which has `rank` dimensions."""
    inner, _, _ = np.linalg.svd(factors.triangle[head])
    basis = factors.times_basis(np.array([head]), inner[None, :, :rank])[0]
    return float(((centred @ basis.T) ** 2).sum())


def copying_score(
    value: Float[np.ndarray, "kv_head d_model d_head"],
    output: Float[np.ndarray, "head d_model d_head"],
    kv_head_of: Int[np.ndarray, " head"],
    vocabulary: Float[np.ndarray, "d_model d_model"],
) -> Float[np.ndarray, " head"]:
    """Return Σλ/Σ|λ| over the eigenvalues λ of W_E W_OV W_Uᵀ, 1 if all are real and positive.

    The non-zero eigenvalues are those of the core W_O (W_Uᵀ W_E) W_V, (d_head, d_head). NaN for a head of zeros.
    `value` is W_V, `output` is W_Oᵀ, `kv_head_of` is the index of each head's W_V, and `vocabulary` is W_Uᵀ W_E; with
    float32 the scores have six correct digits. Source: Elhage et al. 2021.
    """
    through = np.matmul(vocabulary, value)
    core = np.stack(
        [one.T.astype(np.float64) @ through[kv].astype(np.float64) for one, kv in zip(output, kv_head_of, strict=True)]
    )
    values = np.linalg.eigvals(core)
    return ratio(values.sum(axis=-1).real, np.abs(values).sum(axis=-1))


def copying_score_sd_of_gaussian_factors(
    vocabulary: Float[np.ndarray, "d_model d_model"], value: Sequence[int], output: Sequence[int]
) -> float:
    """Return the standard deviation of the copying score of W_OV = A Bᵀ of random weights.

    A and B are independent products of standard Gaussians, with the widths `value` and `output`, as in
    `effective_rank_of_gaussian_factors`. B and −B are equally likely, so the mean is 0. `vocabulary` is that of
    `copying_score`.
    """
    random, only = np.random.default_rng(_SEED), np.array([0])
    scores = []
    for _ in range(_COPYING_DRAWS):
        first, second = (gaussian_product(random, len(vocabulary), one, np.float32)[None] for one in (value, output))
        scores.append(copying_score(first, second, only, vocabulary)[0])
    return float(np.sqrt(np.mean(np.square(scores))))
