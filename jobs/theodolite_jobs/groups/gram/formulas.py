"""Cosines, dimensions and silhouettes of samples, from their Gram matrices. Pure, in float64."""

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.gram_matrices import Gram, squared_distances
from theodolite_jobs.statistics.moments import moments

_COINCIDENT = 1e-10  # share of the mean squared distance; below it two samples differ by float32 rounding only


def standardised(x: Float64[np.ndarray, "sample d_model"]) -> tuple[Float64[np.ndarray, "sample feature"], int]:
    """Return the features over their standard deviation (n−1), and the number of constant features left out."""
    spread = np.sqrt(np.nan_to_num(moments(x).variance))  # exactly 0 for equal numbers; 0 for one sample
    varies = spread > 0
    return x[:, varies] / spread[varies], int((~varies).sum())


def mean_cosine(x: Float64[np.ndarray, "n d"]) -> float:
    """Return the mean cosine over pairs of distinct samples: (‖Σu‖² − n)/(n(n−1)) for unit vectors u.

    The mean is about 0 if directions are uniform on the sphere, and 1 if all are equal. NaN with fewer than two
    samples, or if one is zero. Source: Ethayarajh 2019.
    """
    n, lengths = len(x), np.sqrt(np.vecdot(x, x))
    if n < 2 or not (lengths > 0).all():
        return float("nan")
    total = (1 / lengths) @ x
    return float((total @ total - n) / (n * (n - 1)))


def participation_ratio(matrix: Gram) -> float:
    """Return the participation ratio (Σλ)²/Σλ² of a centred Gram matrix's eigenvalues, at most n−1.

    It estimates the number of directions that have most of the variance. NaN if all samples are equal.
    """
    squares = float((matrix**2).sum())
    return float(np.trace(matrix) ** 2 / squares) if squares > 0 else float("nan")


def eigenvalues(matrix: Gram) -> Float64[np.ndarray, " n"]:
    """Return the eigenvalues of a centred Gram matrix, in ascending order and not negative; NaN if a sample is NaN."""
    if np.isnan(matrix).any():
        return np.full(len(matrix), np.nan)
    return np.asarray(np.maximum(np.linalg.eigvalsh(matrix), 0.0))


def effective_rank(values: Float64[np.ndarray, " n"]) -> float:
    """Return the effective rank exp(−Σ p ln p), p = λ/Σλ, of a centred Gram matrix's eigenvalues λ, at most n−1.

    NaN if all samples are equal, or if one is NaN. Source: Roy and Vetterli 2007.
    """
    total = values.sum()
    if not total > 0:
        return float("nan")
    shares = values[values > 0] / total
    return float(np.exp(-(shares * np.log(shares)).sum()))


def participation_ratio_of_gaussian(n: int, d: int) -> float:
    """Return E(Σλ)²/EΣλ² for n samples of a standard Gaussian in d dimensions, for which the ratio tends to d.

    For a Wishart matrix with m = n−1 degrees of freedom it is ((md)² + 2md) / (md(m+d+1)). NaN for n < 2.
    """
    m = n - 1
    return (m * d + 2) / (m + d + 1) if m > 0 else float("nan")


def effective_rank_of_gaussian(n: int, d: int) -> float:
    """Return the expected effective rank a·exp(−a/2b) of a Gaussian; a ≤ b are n−1 and d in ascending order.

    NaN for n < 2. Source: Page 1993, "Average entropy of a subsystem".
    """
    a, b = sorted((n - 1, d))
    return float(a * np.exp(-a / (2 * b))) if a > 0 else float("nan")


def intrinsic_dimension(matrix: Gram) -> tuple[float, int]:
    """Return the TwoNN estimate N/Σ ln(r₂/r₁), and the number of samples left out because they coincide with another.

    r₁ and r₂ are a sample's distances to its two nearest neighbours. Two samples coincide if rounding alone can explain
    their distance. NaN if fewer than three samples remain. Source: Facco et al. 2017, the maximum-likelihood form.
    """
    n = len(matrix)
    if n < 3:
        return float("nan"), 0
    distances = squared_distances(matrix)
    floor = _COINCIDENT * distances.sum() / (n * (n - 1))
    np.fill_diagonal(distances, np.inf)
    nearest = np.partition(distances, 1, axis=1)[:, :2]
    distinct = nearest[:, 0] > floor
    n_coincident = n - int(distinct.sum())
    logarithms = np.log(nearest[distinct, 1] / nearest[distinct, 0]).sum() / 2
    return (float(distinct.sum() / logarithms) if distinct.sum() > 2 and logarithms > 0 else float("nan")), n_coincident


def silhouette(
    positive: Float64[np.ndarray, "p p"], negative: Float64[np.ndarray, "q q"], cross: Float64[np.ndarray, "p q"]
) -> float:
    """Return the mean silhouette (b − a)/max(a, b) of two sets, by Euclidean distance.

    a is a sample's mean distance to the other samples of its own set, b its mean distance to the other set. A sample
    with a = b = 0 counts as 0. NaN if a set has fewer than two samples. `cross` are the dot products of P with N.
    Source: Rousseeuw 1987.
    """
    if min(len(positive), len(negative)) < 2:
        return float("nan")
    squares = np.diag(positive)[:, None] + np.diag(negative) - 2 * cross
    distances = np.sqrt(np.maximum(squares, 0.0))
    values = []
    for own, to_other in ((positive, distances), (negative, distances.T)):
        within = np.sqrt(squared_distances(own)).sum(axis=1) / (len(own) - 1)
        between = to_other.mean(axis=1)
        larger = np.maximum(within, between)
        default = np.where(np.isnan(larger), np.nan, 0.0)
        values.append(np.divide(between - within, larger, out=default, where=larger > 0))
    return float(np.concatenate(values).mean())
