"""The geometry of norm layers: their inputs, the sphere they scale to, and the ellipsoid of outputs. Pure, in float64.

A layer norm is h∘g∘f: f subtracts the mean over features, g scales to the sphere of radius √d, and h stretches the
sphere to an ellipsoid. An RMS norm has no f. Source: arXiv 2309.07315, §2.
"""

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.stats import chi

from theodolite_jobs.statistics.kernels import row_sums
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.statistics.ratio import ratio

QUANTITIES = (
    "norm_before",
    "squared_norm_before",
    "component_before",
    "normalized_norm",
    "expected",
    "deviation",
    "component_after",
    "residual",
)
"""Quantities that are measured for each vector."""

_HALVINGS = 64  # of an interval; enough for the last bit of a float64


def input_quantities(x: Float[np.ndarray, "sample d_model"], norm: Norm) -> Float64[np.ndarray, "sample quantity"]:
    """Return the quantities of a norm's inputs x, in the order of QUANTITIES.

    ŷ is the output before scale and bias, and v the biased variance of x (the mean square for the `rms` kind):
    ‖x‖; ‖x‖²; |1·x|/(√d‖x‖); ‖ŷ‖; its expected value √(d·v/(v+ε)), with ε inside the root; the relative deviation from
    the expected value; |1·ŷ|/(√d‖ŷ‖); |‖ŷ‖/√d − 1|, the distance from the ellipsoid that ε causes. A ratio is NaN if
    its vector is zero.
    """
    d_model = x.shape[-1]
    total, squares = row_sums(x, np.zeros(len(x)))
    centred, centred_squares = row_sums(x, total / d_model) if norm.kind == "layer" else (total, squares)
    square, length = centred_squares / d_model, np.sqrt(squares)
    expected = np.sqrt(d_model * square / (square + norm.epsilon))
    with np.errstate(invalid="ignore", divide="ignore"):
        divisor = np.sqrt(square + norm.epsilon)
        after = np.sqrt(centred_squares) / divisor
        columns = [
            length,
            squares,
            np.abs(total) / (np.sqrt(d_model) * length),
            after,
            expected,
            np.abs(after / expected - 1),
            np.abs(centred / divisor) / (np.sqrt(d_model) * after),
            np.abs(after / np.sqrt(d_model) - 1),
        ]
    return np.stack(columns, axis=-1)


def output_quantities(y: Float[np.ndarray, "sample d_model"], norm: Norm) -> Float64[np.ndarray, "sample quantity"]:
    """Return the quantities from a norm's outputs y, in the order of QUANTITIES; NaN for those that need the inputs.

    ŷ = (y − β)/γ. If a γ is zero, ŷ is unknown and all quantities are NaN.
    """
    scale = np.where(norm.scale == 0, np.nan, norm.scale)
    outputs = (y.astype(np.float64) - norm.bias) / scale
    after = np.linalg.norm(outputs, axis=-1)
    unknown = np.full(len(y), np.nan)
    with np.errstate(invalid="ignore", divide="ignore"):
        residual = np.abs(after / np.sqrt(y.shape[-1]) - 1)
        component = np.abs(outputs.sum(axis=-1)) / (np.sqrt(y.shape[-1]) * after)
    return np.stack([unknown] * 3 + [after] + [unknown] * 2 + [component, residual], axis=-1)


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
