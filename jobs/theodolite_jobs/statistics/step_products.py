"""Sums over prompts of products of the deviations of steps from their mean. Pure, in float64."""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.kernels import block_products

ByBlock = Float64[np.ndarray, "position block"]


@dataclass(frozen=True)
class StepProducts:
    """Sums over samples of products of deviations from their means; NaN where a state was not captured.

    Attributes:
        count: number of samples.
        means: mean of each block's input, middle and output, (position, block, 3, d_model).
        sums: for a start x, a step Δ and an end y, the sums of ‖dx‖², dx·dΔ, ‖dΔ‖² and ‖dy‖², (position, block,
            ENDS, 4).
        following: sums of dΔ_l·dΔ_{l+1} of a block's step and the next block's step, (position, block).
    """

    count: int
    means: Float64[np.ndarray, "position block 3 d_model"]
    sums: Float64[np.ndarray, "position block 3 4"]
    following: ByBlock


def merge_products(first: StepProducts, second: StepProducts) -> StepProducts:
    """Return the sums for the union of two disjoint sets of samples.

    Source: Chan, Golub, LeVeque (1983), whose formula for squares holds for all products of two deviations.
    """
    if first.count == 0 or second.count == 0:
        return second if first.count == 0 else first
    count = first.count + second.count
    shift, weight = second.means - first.means, first.count * second.count / count
    sums, following = _products(shift)
    return StepProducts(
        count,
        first.means + shift * (second.count / count),
        first.sums + second.sums + weight * sums,
        first.following + second.following + weight * following,
    )


def _products(states: Float64[np.ndarray, "position block 3 d_model"]) -> tuple[NDArray[np.float64], ByBlock]:
    """Return the products of one sample of states whose means are zero, with the shapes of `StepProducts`."""
    shape, d_model = states.shape[:2], states.shape[3]
    zero = np.zeros((1, d_model))
    sums, _ = block_products([states[:, :, state].reshape(-1, d_model) for state in range(3)], (zero, zero, zero))
    steps, following = states[:, :, 2] - states[:, :, 0], np.full(shape, np.nan)
    following[:, :-1] = np.vecdot(steps[:, :-1], steps[:, 1:])
    return sums.reshape(*shape, 3, 4), following
