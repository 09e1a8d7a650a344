"""Directions between two sets' means. Pure, in float64."""

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.norms import unit


def direction(
    a: Float64[np.ndarray, "*dims d_model"], b: Float64[np.ndarray, "*dims d_model"]
) -> Float64[np.ndarray, "*dims d_model"]:
    """Return the unit vector from b to a; NaN where they are equal."""
    return unit(a - b)


def direction_cosines(
    units: Float64[np.ndarray, "site position layer d_model"],
) -> Float64[np.ndarray, "site position layer layer_other"]:
    """Return the cosine between the directions of each pair of layers at the same site."""
    cosines: NDArray[np.float64] = np.einsum("spld,spmd->splm", units, units)
    return cosines
