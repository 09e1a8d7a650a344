"""The share of an MLP's hidden units that are active, and of those with equal signs in two prompts. Pure, in float64.

A unit is active where its input to the activation function is positive, as a rectifier passes it. Both shares follow
from c_u, the number of prompts among n with unit u active; the signs of single prompts are not needed.
"""

import numpy as np
from jaxtyping import Float64, Int


def orthant_occupancy(counts: Int[np.ndarray, "*dims unit"], n: int) -> Float64[np.ndarray, "*dims"]:
    """Return the share of active units, Σ_u c_u / (n · units): the mean over prompts and units; NaN without prompts."""
    if n == 0:
        return np.full(counts.shape[:-1], np.nan)
    return np.asarray((counts.astype(np.float64) / n).mean(axis=-1))


def orthant_overlap(counts: Int[np.ndarray, "*dims unit"], n: int) -> Float64[np.ndarray, "*dims"]:
    """Return the share of units with equal signs in two prompts, as a mean over pairs of distinct prompts.

    Among the n(n−1) ordered pairs, both prompts are positive at a unit in c(c−1), and neither is in (n−c)(n−c−1).
    The share is Σ_u [c_u(c_u−1) + (n−c_u)(n−c_u−1)] / (n(n−1) · units); it is 1 if all prompts have the same signs, and
    NaN for fewer than two prompts.
    """
    if n < 2:
        return np.full(counts.shape[:-1], np.nan)
    positive = counts.astype(np.float64)
    others = n - positive
    agreeing = positive * (positive - 1) + others * (others - 1)
    return np.asarray(agreeing.mean(axis=-1) / (n * (n - 1)))
