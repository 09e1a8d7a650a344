"""Gram matrices of samples. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

Gram = Float64[np.ndarray, "n n"]


def centred(x: Float64[np.ndarray, "n d"]) -> Float64[np.ndarray, "n d"]:
    """Return samples minus their mean; equal samples give exact zeros."""
    shifted = np.asarray(x - x[0])
    shifted -= shifted.mean(axis=0)
    return shifted


def gram(x: Float64[np.ndarray, "n d"]) -> Gram:
    """Return the dot products of all pairs of samples."""
    return np.asarray(x @ x.T)


def squared_distances(matrix: Gram) -> Gram:
    """Return the squared distances between all pairs of samples, from their Gram matrix."""
    squares = np.diag(matrix)
    distances: NDArray[np.float64] = np.maximum(squares[:, None] + squares - 2 * matrix, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances
