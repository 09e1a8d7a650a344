"""Shape of a cloud of samples from its Gram matrix: cosines, dimensions, silhouettes. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.moments import moments

_COINCIDENT = 1e-10  # of the mean squared distance: below it two samples differ by float32's rounding alone

Gram = Float64[np.ndarray, "n n"]


def standardised(x: Float64[np.ndarray, "sample d_model"]) -> tuple[Float64[np.ndarray, "sample feature"], int]:
    """Return features over their standard deviation (n−1), and how many had none and were left out."""
    spread = np.sqrt(np.nan_to_num(moments(x).variance))  # exactly 0 for equal numbers; one sample has none
    varies = spread > 0
    return x[:, varies] / spread[varies], int((~varies).sum())


def gram(x: Float64[np.ndarray, "n d"]) -> Gram:
    """Return all dot products of samples."""
    products: NDArray[np.float64] = x @ x.T
    return products


def mean_cosine(x: Float64[np.ndarray, "n d"]) -> float:
    """Return the mean cosine over pairs of distinct samples: of unit vectors u, (‖Σu‖² − n)/(n(n−1)).

    Near 0 where directions are spread over the sphere, near 1 where all point one way (Ethayarajh 2019). NaN with
    fewer than two samples, or where one is zero.
    """
    n, lengths = len(x), np.sqrt(np.vecdot(x, x))
    if n < 2 or not (lengths > 0).all():
        return float("nan")
    total = (1 / lengths) @ x
    return float((total @ total - n) / (n * (n - 1)))


def participation_ratio(matrix: Gram) -> float:
    """Return (Σλ)²/Σλ² of a centred Gram matrix: how many directions hold the variance, at most n−1.

    NaN where samples are identical.
    """
    squares = float((matrix**2).sum())
    return float(np.trace(matrix) ** 2 / squares) if squares > 0 else float("nan")


def effective_rank(matrix: Gram) -> float:
    """Return exp(−Σ p ln p), p = λ/Σλ, of a centred Gram matrix, at most n−1 (Roy and Vetterli 2007).

    NaN where samples are identical, or one is NaN.
    """
    if np.isnan(matrix).any():
        return float("nan")
    values = np.maximum(np.linalg.eigvalsh(matrix), 0.0)
    total = values.sum()
    if not total > 0:
        return float("nan")
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio_of_gaussian(n: int, d: int) -> float:
    """Return E(Σλ)²/EΣλ² for n samples of a standard Gaussian in d dimensions, whose own ratio is d.

    Of a Wishart matrix with m = n−1 degrees of freedom: ((md)² + 2md) / (md(m+d+1)).
    """
    m = n - 1
    return (m * d + 2) / (m + d + 1) if m > 0 else float("nan")


def effective_rank_of_gaussian(n: int, d: int) -> float:
    """Return a·exp(−a/2b), a and b the lesser and larger of n−1 and d (Page 1993, "Average entropy of a subsystem")."""
    a, b = sorted((n - 1, d))
    return float(a * np.exp(-a / (2 * b))) if a > 0 else float("nan")


def squared_distances(matrix: Gram) -> Gram:
    """Return squared distances between samples, from their Gram matrix."""
    squares = np.diag(matrix)
    distances: NDArray[np.float64] = np.maximum(squares[:, None] + squares - 2 * matrix, 0.0)
    np.fill_diagonal(distances, 0.0)
    return distances


def intrinsic_dimension(matrix: Gram) -> tuple[float, int]:
    """Return the TwoNN estimate N/Σ ln(r₂/r₁), and how many samples were left out since they coincide with another.

    r₁ and r₂ are a sample's distances to its nearest two neighbours (Facco et al. 2017, the maximum-likelihood form).
    A sample whose nearest neighbour is closer than rounding has no r₁ to speak of. NaN where fewer than three are left.
    """
    n = len(matrix)
    if n < 3:
        return float("nan"), 0
    distances = squared_distances(matrix)
    floor = _COINCIDENT * distances.sum() / (n * (n - 1))
    np.fill_diagonal(distances, np.inf)
    nearest = np.partition(distances, 1, axis=1)[:, :2]
    apart = nearest[:, 0] > floor
    left_out = n - int(apart.sum())
    logarithms = np.log(nearest[apart, 1] / nearest[apart, 0]).sum() / 2
    return (float(apart.sum() / logarithms) if apart.sum() > 2 and logarithms > 0 else float("nan")), left_out


def silhouette(
    positive: Float64[np.ndarray, "p p"], negative: Float64[np.ndarray, "q q"], cross: Float64[np.ndarray, "p q"]
) -> float:
    """Return the mean silhouette of two sets by Euclidean distance (Rousseeuw 1987).

    (b − a)/max(a, b), with a a sample's mean distance to its own set and b to the other. NaN where a set has fewer than
    two samples.

    Args:
        positive: Gram matrix of P.
        negative: Gram matrix of N.
        cross: dot products of P with N.
    """
    if min(len(positive), len(negative)) < 2:
        return float("nan")
    between = np.diag(positive)[:, None] + np.diag(negative) - 2 * cross
    apart = np.sqrt(np.maximum(between, 0.0))
    found = []
    for own, other in ((positive, apart), (negative, apart.T)):
        within = np.sqrt(squared_distances(own)).sum(axis=1) / (len(own) - 1)
        beyond = other.mean(axis=1)
        larger = np.maximum(within, beyond)
        nowhere = np.where(np.isnan(larger), np.nan, 0.0)  # equal samples belong to both sets, or to none
        found.append(np.divide(beyond - within, larger, out=nowhere, where=larger > 0))
    return float(np.concatenate(found).mean())
