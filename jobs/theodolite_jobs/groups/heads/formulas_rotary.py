"""Singular values of the rotary part of scores. Pure, in float64."""

import numpy as np
from jaxtyping import Float

from theodolite_jobs.statistics.factors import decompose, thin


def rotary_singular_values(
    query: Float[np.ndarray, "head d_model width"],
    key: Float[np.ndarray, "1 d_model width"],
    rotations: Float[np.ndarray, "offset width width"],
) -> Float[np.ndarray, "offset head width"]:
    """Return the singular values of query · rotation · keyᵀ at each offset, in descending order.

    All heads have the same key. `rotations` are s·R(δ), with the scale s of scores.

    Raises:
        ValueError: a weight is not finite.
    """
    left, right = thin(query), thin(key)
    each, shared = np.arange(len(query)), np.zeros(len(query), np.int64)
    return np.stack([decompose(left, right, 0, each, shared, one).singular_values for one in rotations])
