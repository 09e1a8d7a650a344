"""How many hidden units of an MLP are positive, and how many of their signs two prompts share. Pure, in float64.

A rectifier keeps only the first orthant: of what it reads, a unit passes where it is positive. From how many prompts
have each unit positive follows how full that orthant is, and how much of it two prompts have in common, without any
prompt's own signs.
"""

import numpy as np
from jaxtyping import Float64, Int


def orthant_occupancy(counts: Int[np.ndarray, "*dims unit"], n: int) -> Float64[np.ndarray, "*dims"]:
    """Return the share of positive units, Σ_u c_u / (n · units): the mean over prompts and units.

    Args:
        counts: c_u, how many prompts have each unit positive.
        n: prompts that were counted; NaN without any.
    """
    if n == 0:
        return np.full(counts.shape[:-1], np.nan)
    return np.asarray((counts.astype(np.float64) / n).mean(axis=-1))


def orthant_overlap(counts: Int[np.ndarray, "*dims unit"], n: int) -> Float64[np.ndarray, "*dims"]:
    """Return the share of units whose sign two prompts share, mean over pairs of distinct prompts.

    Of the n(n−1) ordered pairs, c(c−1) are both positive at a unit and (n−c)(n−c−1) both not, so it is
    Σ_u [c_u(c_u−1) + (n−c_u)(n−c_u−1)] / (n(n−1) · units): 1 where all prompts have the same signs.

    Args:
        counts: c_u, how many prompts have each unit positive.
        n: prompts that were counted; NaN for fewer than two, which make no pair.
    """
    if n < 2:
        return np.full(counts.shape[:-1], np.nan)
    positive = counts.astype(np.float64)
    others = n - positive
    agreeing = positive * (positive - 1) + others * (others - 1)
    return np.asarray(agreeing.mean(axis=-1) / (n * (n - 1)))
