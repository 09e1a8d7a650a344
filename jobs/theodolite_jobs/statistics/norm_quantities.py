"""Quantities of the inputs and outputs of norm layers, for each vector. Pure, in float64."""

import numpy as np
from jaxtyping import Float, Float64

from theodolite_jobs.statistics.kernels import row_sums
from theodolite_jobs.statistics.norms import Norm

QUANTITIES = (
    "norm_before",
    "squared_norm_before",
    "component_before",
    "norm_after",
    "expected",
    "deviation",
    "component_after",
    "residual",
)
"""Quantities that are measured for each vector."""


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
