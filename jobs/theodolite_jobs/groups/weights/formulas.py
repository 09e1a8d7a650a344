"""Leading subspaces of weight matrices, and the overlap of two subspaces. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh, qr

from theodolite_jobs.statistics.norms import Norm, projected

_COLUMNS = 4096  # of a random matrix at a time


def leading_basis(square: Float64[np.ndarray, "d d"], rank: int) -> Float64[np.ndarray, "d rank"]:
    """Return the leading eigenvectors of WᵀW or WWᵀ, which are W's singular vectors on the side of the stream."""
    last = len(square) - 1
    _, vectors = eigh(square, subset_by_index=(last - rank + 1, last), check_finite=False)
    return np.asarray(vectors[:, ::-1])


def leading_columns(
    matrix: Float64[np.ndarray, "d columns"], square: Float64[np.ndarray, "d d"], rank: int
) -> Float64[np.ndarray, "d rank"]:
    """Return the leading left singular vectors of a matrix, from the smaller one of WWᵀ (square) and WᵀW.

    There are at most as many as columns. They are NaN if the matrix has fewer independent columns than that, since the
    others could then be any.
    """
    size = min(matrix.shape)
    side = square if size == len(matrix) else matrix.T @ matrix
    first = size - min(rank, size)
    values, vectors = eigh(side, subset_by_index=(first, size - 1), check_finite=False)
    basis = vectors[:, ::-1]
    if not values[0] > max(matrix.shape) * np.finfo(np.float64).eps * values[-1]:
        return np.full((len(matrix), size - first), np.nan)
    return np.asarray(basis if side is square else qr(matrix @ basis, mode="economic")[0])


def folded_reader(square: Float64[np.ndarray, "d d"], norm: Norm) -> Float64[np.ndarray, "d d"]:
    """Return W′W′ᵀ for W′ = Π diag(γ) W, from WWᵀ of a matrix W that reads the norm's output."""
    scaled = norm.scale[:, None] * square * norm.scale
    return projected(projected(scaled, norm).T, norm)


def folded_writer(square: Float64[np.ndarray, "d d"], norm: Norm) -> Float64[np.ndarray, "d d"]:
    """Return W′ᵀW′ for W′ = W Π diag(γ), from WᵀW of a matrix W whose output the norm takes, without its 1/σ."""
    return np.asarray(norm.scale[:, None] * projected(projected(square, norm).T, norm) * norm.scale)


def random_square(columns: int, rng: np.random.Generator, d_model: int) -> Float64[np.ndarray, "d d"]:
    """Return RRᵀ of a matrix R of independent standard Gaussian numbers, (d_model, columns)."""
    square = np.zeros((d_model, d_model))
    for start in range(0, columns, _COLUMNS):
        block = rng.standard_normal((d_model, min(_COLUMNS, columns - start)))
        square += block @ block.T
    return square


def with_row_lengths(
    square: Float64[np.ndarray, "d d"], other: Float64[np.ndarray, "d d"]
) -> Float64[np.ndarray, "d d"]:
    """Return R′R′ᵀ, where R′ is R of RRᵀ (square) with each row scaled to the length of the same row of another matrix.

    A row is a feature of the stream. Its length is the square root of the diagonal of WWᵀ (other).
    """
    scale = np.sqrt(np.diag(other) / np.diag(square))
    return np.asarray(scale[:, None] * square * scale)


def overlap(first: Float64[np.ndarray, "d rank"], second: Float64[np.ndarray, "d rank"]) -> float:
    """Return the overlap ‖UᵀV‖²_F/r of two subspaces: 1 if they are equal, r/d on average if they are random."""
    return float((np.square(first.T @ second)).sum() / first.shape[1])


def pairwise_overlaps(bases: Float64[np.ndarray, "n d rank"]) -> Float64[np.ndarray, "n n"]:
    """Return the overlap of each pair of subspaces; NaN for a basis with NaN."""
    n, d, rank = bases.shape
    side_by_side = bases.transpose(1, 0, 2).reshape(d, n * rank)
    overlaps = np.empty((n, n))
    for index, basis in enumerate(bases):
        products = np.square(basis.T @ side_by_side[:, index * rank :])
        overlaps[index, index:] = products.sum(axis=0).reshape(n - index, rank).sum(axis=1) / rank
        overlaps[index:, index] = overlaps[index, index:]
    return overlaps


def random_overlap(rank: int, d_model: int) -> tuple[float, float]:
    """Return mean and standard deviation of the overlap of two random subspaces of dimension r.

    The mean is r/d and the variance 2(d−r)²/(d²(d−1)(d+2)), from the second moments of a random projection P:
    E P_ij² of Haar matrices (Collins and Śniady 2006, orthogonal group).
    """
    spread = np.sqrt(2 / ((d_model - 1) * (d_model + 2))) if d_model > 1 else 0.0
    return rank / d_model, float((1 - rank / d_model) * spread)
