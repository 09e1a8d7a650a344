"""A Gaussian reference for statistics of Gram matrices: the same eigenvalues in random frames. Pure, in float64.

If samples are Gaussian, with any mean and covariance, a random rotation of the samples that keeps their mean gives
samples of the same distribution. So a statistic of the rotated samples is a draw from its distribution under the
Gaussian hypothesis, given the sample covariance. No spectrum has to be estimated. Source: Langsrud 2005, "Rotation
tests".
"""

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.groups.gram.formulas import intrinsic_dimension
from theodolite_jobs.statistics.gram_matrices import Gram

DRAWS = 10
"""Rotations of one point cloud. Their standard deviation has an error of about 24 %."""


def intrinsic_dimension_of_rotations(values: Float64[np.ndarray, " n"]) -> tuple[float, float]:
    """Return mean and standard deviation (n−1) over DRAWS of the TwoNN estimate of rotated samples.

    `values` are the eigenvalues of a centred Gram matrix. Both numbers are NaN with fewer than three samples, if all
    samples are equal, or if one is NaN.
    """
    if len(values) < 3 or not values.sum() > 0:
        return float("nan"), float("nan")
    draws = [intrinsic_dimension(matrix)[0] for matrix in rotations(values)]
    return float(np.mean(draws)), float(np.std(draws, ddof=1))


def rotations(values: Float64[np.ndarray, " n"]) -> Iterator[Gram]:
    """Yield DRAWS centred Gram matrices with these eigenvalues, of which at most n−1 are positive; the seed is fixed.

    All draws use the vectors of one random frame, each draw in another order. So each draw has the distribution of a
    random frame, and two draws are nearly independent.
    """
    frame, rng = random_frame(len(values)), np.random.default_rng(1)
    leading = np.sort(values)[::-1][: frame.shape[1]]
    leading = leading[leading > 0]
    for _ in range(DRAWS):
        vectors = frame[:, rng.permutation(frame.shape[1])[: len(leading)]]
        yield np.asarray((vectors * leading) @ vectors.T)


@lru_cache(maxsize=1)  # all sites and layers of a set have the same n
def random_frame(n: int) -> Float64[np.ndarray, "n m"]:
    """Return a random orthonormal frame of the n−1 dimensions orthogonal to (1, …, 1); the seed is fixed."""
    columns = np.random.default_rng(0).normal(size=(n, n - 1))
    return np.asarray(np.linalg.qr(columns - columns.mean(axis=0))[0])
