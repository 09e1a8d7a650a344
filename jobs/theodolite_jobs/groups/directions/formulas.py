"""Directions between two sets' means. Pure, in float64."""

import numpy as np
from jaxtyping import Float64

from theodolite_jobs.statistics.norms import unit


def direction(
    a: Float64[np.ndarray, "*dims d_model"], b: Float64[np.ndarray, "*dims d_model"]
) -> Float64[np.ndarray, "*dims d_model"]:
    """Return the unit vectors from b to a, NaN where a equals b."""
    return unit(a - b)


def contrast_cosines(
    units: Float64[np.ndarray, "contrast *places d_model"],
) -> Float64[np.ndarray, "contrast contrast_other *places"]:
    """Return the cosines between the directions of all pairs of contrasts, at each place."""
    return np.stack([np.vecdot(one, units) for one in units])


def direction_cosines(
    units: Float64[np.ndarray, "site position layer d_model"],
) -> Float64[np.ndarray, "site position layer layer_other"]:
    """Return the cosines between the directions of all pairs of layers, at each site and position."""
    return np.asarray(np.einsum("spld,spmd->splm", units, units))
