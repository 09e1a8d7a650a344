"""What the travel statistics are if the steps are independent of each other and of the stream. Pure, in float64.

- Cosines of deviations: if two deviations are independent over prompts, the prompts of one can be permuted without
  changing the distribution of the cosine.
- Paths and arcs: if each step is at a right angle to the previous states, as independent steps nearly are in many
  dimensions, the shortest path follows from the lengths or angles of the steps.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64

from theodolite_jobs.statistics.gram_matrices import centred
from theodolite_jobs.statistics.ratio import ratio

DRAWS = 999

_SEED = 0

_EQUAL = 1e-9  # relative; a permutation that changes nothing gives the same sum up to rounding


class PermutedCosine(NamedTuple):
    """A cosine of deviations under permutations of the prompts.

    Attributes:
        null_sd: standard deviation of the cosine over all permutations, whose mean is 0.
        z: the cosine over null_sd, and that of each of DRAWS permutations, (1 + DRAWS,).
    """

    null_sd: float
    z: Float64[np.ndarray, " draw"]


def permuted_cosine(x: Float[np.ndarray, "sample d_model"], y: Float[np.ndarray, "sample d_model"]) -> PermutedCosine:
    """Return the null distribution of the cosine Σ dx·dy/√(Σ‖dx‖² Σ‖dy‖²) of deviations from the means over samples.

    With K = dX dYᵀ, a permutation π gives Σᵢ K[i, π(i)]. Its variance over all permutations is ‖K‖²/(n−1), since all
    rows and columns of K sum to zero. Source: Hoeffding 1951, "A combinatorial central limit theorem". The drawn
    permutations depend on n alone, so they are the same in all blocks. NaN if a deviation is zero in all samples.
    """
    n = len(x)
    if n < 2:
        return PermutedCosine(float("nan"), np.full(1 + DRAWS, np.nan))
    deviations = centred(x.astype(np.float64)), centred(y.astype(np.float64))
    products = deviations[0] @ deviations[1].T
    sd = np.sqrt((products**2).sum() / (n - 1))
    lengths = np.sqrt(np.prod([np.vecdot(one, one).sum() for one in deviations]))
    order = np.tile(np.arange(n), (1 + DRAWS, 1))
    order[1:] = np.random.default_rng(_SEED).permuted(order[1:], axis=1)
    return PermutedCosine(float(ratio(sd, lengths)), ratio(products[np.arange(n), order].sum(axis=1), sd))


def family_wise_p(z: Float64[np.ndarray, "draw block"]) -> Float64[np.ndarray, " block"]:
    """Return the two-sided family-wise p of each block: the share of rows whose largest |z| is at least as large.

    Row 0 is the observed one, and counts too. NaN where a block has no z. Source: Westfall and Young 1993.
    """
    absolute = np.abs(z)
    largest = np.fmax.reduce(absolute[1:], axis=1)
    as_large = (largest[:, None] >= absolute[0] * (1 - _EQUAL)).sum(axis=0)
    return np.where(np.isnan(z[0]), np.nan, (1 + as_large) / len(z))


def path_ratio_at_right_angles(mean_squares: Float64[np.ndarray, "*dims block"]) -> Float64[np.ndarray, "*dims"]:
    """Return the length of a path over its displacement if all steps are at right angles: Σ ℓ / √Σ ℓ².

    Args:
        mean_squares: mean squared length ℓ² of each block's step.
    """
    return ratio(np.sqrt(mean_squares).sum(axis=-1), np.sqrt(mean_squares.sum(axis=-1)))


def arc_ratio_at_right_angles(angles: Float64[np.ndarray, "*dims block"]) -> Float64[np.ndarray, "*dims"]:
    """Return the sum of a path's angles over the angle between its ends, if it turns by a right angle at each state.

    The great circles of all steps are at right angles to those of the previous steps, so the cosine of the angle
    between the ends is Π cos θ.

    Args:
        angles: angle θ of each block's step, in radians.
    """
    return ratio(angles.sum(axis=-1), np.arccos(np.cos(angles).prod(axis=-1)))
