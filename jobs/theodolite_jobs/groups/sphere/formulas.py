"""The geometry of norm layers: their inputs, the sphere they scale to, and the ellipsoid of outputs. Pure, in float64.

A layer norm is h∘g∘f: f subtracts the mean over features, g scales to the sphere of radius √d, and h stretches the
sphere to an ellipsoid. An RMS norm has no f. Source: arXiv 2309.07315, §2.
"""

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.stats import chi

from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.ratio import ratio

_HALVINGS = 64  # of an interval; enough for the last bit of a float64


def semi_axes(norm: Norm) -> Float64[np.ndarray, " d_model"]:
    """Return the semi-axes of the ellipsoid of a norm's outputs for ε → 0, in descending order.

    They are √d|γ| for the `rms` kind. For the `layer` kind they are √(d·μ), where μ are the eigenvalues of
    diag(γ)Πdiag(γ) = diag(γ²) − uuᵀ with u = γ/√d. Each μ lies between two neighbours among γ² and solves
    Σ u²/(γ²−μ) = 1; bisection finds all of them at once. One semi-axis is 0, since the outputs lie in a hyperplane.
    Source: Golub 1973, "Some modified matrix eigenvalue problems", §5.
    """
    squares = np.sort(norm.scale.astype(np.float64) ** 2)[::-1]
    if norm.kind == "rms":
        return scale_radii(norm)
    high, low = squares[:-1].copy(), squares[1:].copy()
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        above = _secular(middle, squares) > 0
        high, low = np.where(above, middle, high), np.where(above, low, middle)
    return np.asarray(np.sqrt(len(squares) * np.append((low + high) / 2, 0.0)))


def _secular(points: Float64[np.ndarray, " point"], squares: Float64[np.ndarray, " d_model"]) -> NDArray[np.float64]:
    """Return Σ u²/(γ²−μ) − 1 at each point μ, in blocks of points."""
    values = np.empty(len(points))
    for start in range(0, len(points), 512):
        block = slice(start, start + 512)
        gaps = squares - points[block, None]
        terms = np.divide(squares / len(squares), gaps, out=np.zeros_like(gaps), where=gaps != 0)
        values[block] = terms.sum(axis=1) - 1
    return values


def scale_radii(norm: Norm) -> Float64[np.ndarray, " d_model"]:
    """Return √d|γ| in descending order: the semi-axes of an RMS norm, and an approximation of those of a layer norm."""
    return np.asarray(np.sort(np.sqrt(len(norm.scale)) * np.abs(norm.scale.astype(np.float64)))[::-1])


def gaussian_spread(dimensions: int) -> float:
    """Return std/mean of the norm of a standard Gaussian, with mean √2 Γ((d+1)/2)/Γ(d/2) and std √(d − mean²)."""
    return float(chi.std(dimensions) / chi.mean(dimensions))


def gaussian_squared_spread(dimensions: int) -> float:
    """Return std/mean of the squared norm of a standard Gaussian, √(2/d)."""
    return float(np.sqrt(2 / dimensions))


def length_variance_share(
    length_m2: Float[np.ndarray, "*dims"], m2: Float[np.ndarray, "*dims d_model"]
) -> Float64[np.ndarray, "*dims"]:
    """Return Var‖x‖ / tr Cov(x), the share of the variance that is variance of the norm; NaN without variance.

    tr Cov(x) = Var‖x‖ + (E‖x‖)² − ‖Ex‖². The last two terms are the variance of the direction. The arguments are the
    sums of squared deviations of the norms and of each feature.
    """
    return ratio(length_m2, m2.sum(axis=-1))
