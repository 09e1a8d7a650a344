"""The spread of the norm of a Gaussian that has a set's own mean and covariance. Pure, in float64.

For x ~ N(μ, S): E‖x‖² = ‖μ‖² + tr S and Var‖x‖² = 2 tr S² + 4 μᵀSμ. Products of different samples estimate both without
bias, where the sample covariance would make tr S² too large by about (tr S)²/n.
"""

import numpy as np
from jaxtyping import Float64

DRAWS = 4000
"""Draws that turn the spread of the squared norm into that of the norm; their ratio has an error of about 0.3 %."""


def fitted_spreads(samples: Float64[np.ndarray, "n d"]) -> tuple[float, float]:
    """Return std/mean of the norm, and of the squared norm, of a Gaussian with the samples' mean and covariance.

    The second is √Var‖x‖² / E‖x‖², from unbiased estimates. The first is the second times the ratio of both spreads in
    seeded draws of N(mean, sample covariance); this ratio is close to ½ and depends little on the spectrum. Both are 0
    for equal samples, and NaN with fewer than four samples.
    """
    n = len(samples)
    if n < 4:
        return float("nan"), float("nan")
    centred = samples - samples[0]  # equal samples give exact zeros
    centred -= centred.mean(axis=0)
    mean = samples.mean(axis=0)
    products, along_mean = centred @ centred.T, centred @ mean
    variance = squared_norm_variance(products + along_mean[:, None] + along_mean)
    if variance <= 0:  # rounding can make it negative
        return 0.0, 0.0
    squared = float(np.sqrt(variance) / np.square(samples).sum(axis=1).mean())
    # Without its noise tr S/n, ‖mean‖² estimates ‖μ‖².
    signal = max(float(mean @ mean) - float(np.trace(products)) / (n * (n - 1)), 0.0)
    draws = _squared_norms(products, along_mean, signal)
    return squared * _spread(np.sqrt(draws)) / _spread(draws), squared


def squared_norm_variance(products: Float64[np.ndarray, "n n"]) -> float:
    """Return the unbiased estimate of 2 tr S² + 4 μᵀSμ from the dot products K of at least four samples.

    For different i, j, k and l, E K_ij² = tr S² + 2 μᵀSμ + ‖μ‖⁴ and E K_ij K_kl = ‖μ‖⁴, so the estimate is twice the
    difference of the two means, over pairs and over pairs of disjoint pairs. A constant that is added to K cancels. The
    estimate is not negative, since K_ij K_kl ≤ (K_ij² + K_kl²)/2.
    """
    n = len(products)
    diagonal = np.diag(products)
    rows = products.sum(axis=1) - diagonal
    squares = float(np.square(products).sum() - diagonal @ diagonal)
    # Σ over disjoint pairs = all pairs of pairs, without those that share one sample (4×) or both (2×).
    disjoint = float(rows.sum() ** 2 - 4 * (rows @ rows) + 2 * squares)
    return 2 * (squares / (n * (n - 1)) - disjoint / (n * (n - 1) * (n - 2) * (n - 3)))


def _squared_norms(
    products: Float64[np.ndarray, "n n"], along_mean: Float64[np.ndarray, " n"], signal: float
) -> Float64[np.ndarray, " draw"]:
    """Return ‖m + Σ gᵢcᵢ/√(n−1)‖² for draws of standard normal g: c are the centred samples, and ‖m‖² is `signal`."""
    n = len(products)
    weights = np.random.default_rng(0).normal(size=(DRAWS, n)) / np.sqrt(n - 1)
    squares = signal + 2 * (weights @ along_mean) + np.vecdot(weights @ products, weights)
    return np.asarray(np.maximum(squares, 0.0))


def _spread(values: Float64[np.ndarray, " draw"]) -> float:
    return float(values.std() / values.mean())
