"""Leading subspaces of weight matrices, and the overlap of two subspaces. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh

from theodolite_jobs.statistics.norms import Norm, projected


def leading_basis(square: Float64[np.ndarray, "d d"], rank: int) -> Float64[np.ndarray, "d rank"]:
    """Return the leading eigenvectors of WᵀW or WWᵀ, which are W's singular vectors on the side of the stream."""
    last = len(square) - 1
    _, vectors = eigh(square, subset_by_index=(last - rank + 1, last), check_finite=False)
    return np.asarray(vectors[:, ::-1])


def folded_reader(square: Float64[np.ndarray, "d d"], norm: Norm) -> Float64[np.ndarray, "d d"]:
    """Return W′W′ᵀ for W′ = Π diag(γ) W, from WWᵀ of a matrix W that reads the norm's output."""
    scaled = norm.scale[:, None] * square * norm.scale
    return projected(projected(scaled, norm).T, norm)


def folded_writer(square: Float64[np.ndarray, "d d"], norm: Norm) -> Float64[np.ndarray, "d d"]:
    """Return W′ᵀW′ for W′ = W Π diag(γ), from WᵀW of a matrix W whose output the norm takes, without its 1/σ."""
    return np.asarray(norm.scale[:, None] * projected(projected(square, norm).T, norm) * norm.scale)


def overlap(first: Float64[np.ndarray, "d rank"], second: Float64[np.ndarray, "d rank"]) -> float:
    """Return the overlap ‖UᵀV‖²_F/r of two subspaces: 1 if they are equal, r/d on average if they are random."""
    return float((np.square(first.T @ second)).sum() / first.shape[1])


def random_overlap(rank: int, d_model: int) -> tuple[float, float]:
    """Return mean and standard deviation of the overlap of two random subspaces of dimension r.

    The mean is r/d and the variance 2(d−r)²/(d²(d−1)(d+2)), from the second moments of a random projection P:
    E P_ij² of Haar matrices (Collins and Śniady 2006, orthogonal group).
    """
    spread = np.sqrt(2 / ((d_model - 1) * (d_model + 2))) if d_model > 1 else 0.0
    return rank / d_model, float((1 - rank / d_model) * spread)
