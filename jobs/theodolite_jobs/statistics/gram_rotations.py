"""A Gaussian reference for statistics of Gram matrices: the same eigenvalues in random frames. Pure, in float64.

If samples are Gaussian, with any mean and covariance, a random rotation of the samples that keeps their mean gives
samples of the same distribution. So a statistic of the rotated samples is a draw from its distribution under the
Gaussian hypothesis, given the sample covariance. No spectrum has to be estimated. Source: Langsrud 2005, "Rotation
tests".
"""

from functools import lru_cache

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.gram import Gram, intrinsic_dimension

DRAWS = 5
"""Rotations of one point cloud. Each costs two thirds of the eigenvalues, or less if d_model is below n."""


def intrinsic_dimension_of_rotations(values: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Return mean and standard deviation (n−1) over DRAWS of the TwoNN estimate of rotated samples.

    `values` are the eigenvalues of a centred Gram matrix. Both numbers are NaN with fewer than three samples, if all
    samples are equal, or if one is NaN.
    """
    if len(values) < 3 or not values.sum() > 0:
        return float("nan"), float("nan")
    draws = [intrinsic_dimension(rotated(values, frame))[0] for frame in frames(len(values))]
    return float(np.mean(draws)), float(np.std(draws, ddof=1))


def rotated(values: Float64[np.ndarray, " n"], frame: Float64[np.ndarray, "n m"]) -> Gram:
    """Return the centred Gram matrix with these eigenvalues, of which at most n−1 are positive, in a frame."""
    leading = np.sort(values)[::-1][: frame.shape[1]]
    rank = int((leading > 0).sum())
    return np.asarray((frame[:, :rank] * leading[:rank]) @ frame[:, :rank].T)


@lru_cache(maxsize=1)  # all sites and layers of a set have the same n
def frames(n: int) -> Float64[np.ndarray, "draw n m"]:
    """Return DRAWS random orthonormal frames of the n−1 dimensions orthogonal to (1, …, 1); the seed is fixed."""
    columns = np.random.default_rng(0).normal(size=(DRAWS, n, n - 1))
    return np.asarray(np.linalg.qr(columns - columns.mean(axis=1, keepdims=True))[0])
