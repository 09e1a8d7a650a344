"""Deviations of steps from their mean over prompts: what they add to the variance, and their cosines. Pure, in float64.

All statistics follow from sums over prompts of products of deviations. Such sums of parts merge by an exact formula, as
the sums of squares of `statistics/moments.py` do, so one pass over each shard is enough.
"""

import numpy as np
from jaxtyping import Float64

from theodolite.groups.schema import ENDS
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.step_products import ByBlock, StepProducts


def variance_budget(products: StepProducts) -> dict[str, Float64[np.ndarray, "position block 3 ..."]]:
    """Return the variance of the block's states and what each step adds to it, by the names of the group's variables.

    Variances are unbiased (n−1) and totals over features. With the step Δ = y − x, Var y = Var x + Var Δ + 2 Cov(x, Δ),
    where Cov is the total over features too. NaN for fewer than two samples.
    """
    degrees = products.count - 1 if products.count > 1 else np.nan
    start, cross, step, end = np.moveaxis(products.sums, -1, 0) / degrees
    attention, _, block = range(len(ENDS))
    states = (start[..., block], end[..., attention], end[..., block])
    return {"variance": np.stack(states, axis=-1), "variance_change": np.stack([step, 2 * cross], axis=-1)}


def centred_cosines(products: StepProducts) -> Float64[np.ndarray, "position block 4"]:
    """Return the cosines of deviations: of a block's step and the next one, and of the steps and the states before.

    The first is Σ dΔ_l·dΔ_{l+1} / √(Σ‖dΔ_l‖² Σ‖dΔ_{l+1}‖²), the others are Σ dx·dΔ / √(Σ‖dx‖² Σ‖dΔ‖²) for a step Δ of
    the block, of attention and of the MLP that starts at x, with sums over prompts. NaN where a sum of squares is zero.
    """
    start, cross, step, _ = np.moveaxis(products.sums, -1, 0)
    attention, mlp, block = np.moveaxis(ratio(cross, np.sqrt(start * step)), -1, 0)
    following, squares = np.full(block.shape, np.nan), step[..., list(ENDS).index("block")]
    following[:, :-1] = ratio(products.following[:, :-1], np.sqrt(squares[:, :-1] * squares[:, 1:]))
    return np.stack([following, block, attention, mlp], axis=-1)


def common_share(products: StepProducts) -> ByBlock:
    """Return the share of a block's mean squared step that all prompts have in common, ‖E Δ‖² / E‖Δ‖².

    The squared norm of the sample mean is too large by tr Cov(Δ)/n, which is subtracted; the share can be negative
    where the mean step is not resolved. NaN for fewer than two samples.
    """
    n, squares = products.count, products.sums[:, :, list(ENDS).index("block"), 2]
    if n < 2:
        return np.full(squares.shape, np.nan)
    mean = products.means[:, :, 2] - products.means[:, :, 0]
    common = np.vecdot(mean, mean)
    return ratio(common - squares / (n * (n - 1)), common + squares / n)
