"""Leading subspaces of weight matrices, and the overlap of two subspaces. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from scipy.linalg import eigh


def leading_basis(square: Float64[np.ndarray, "d d"], rank: int) -> Float64[np.ndarray, "d rank"]:
    """Return the leading eigenvectors of WᵀW or WWᵀ, which are W's singular vectors on the side of the stream."""
    last = len(square) - 1
    _, vectors = eigh(square, subset_by_index=(last - rank + 1, last), check_finite=False)
    return np.asarray(vectors[:, ::-1])


def overlap(first: Float64[np.ndarray, "d rank"], second: Float64[np.ndarray, "d rank"]) -> float:
    """Return the overlap ‖UᵀV‖²_F/r of two subspaces: 1 if they are equal, r/d on average if they are random."""
    return float((np.square(first.T @ second)).sum() / first.shape[1])
