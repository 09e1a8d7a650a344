"""Means over prompts of what interventions change, their intervals, and their tests. Pure, in float64."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.stats import norm, t

from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.statistics.ratio import ratio

DRAWS = 2_000

_SEED, _TAIL = 0, 0.025


def mean_over_prompts(values: Float64[np.ndarray, "prompt *places"]) -> Estimate:
    """Return the mean over prompts, with the expanded percentile interval of a bootstrap over prompts.

    The prompts of one side of a paired contrast are one for each pair, so this is a bootstrap over pairs.
    """
    if not len(values):
        return _unknown(values)
    return _ends(np.asarray(values.mean(axis=0)), _resampled(values), len(values))


def restored_of_means(
    values: Float64[np.ndarray, "prompt *places"], wholes: Float64[np.ndarray, " prompt"]
) -> Estimate:
    """Return the mean of `values` over the mean of `wholes`, with the interval of a bootstrap over prompts.

    It is the ratio of the means, since a prompt whose own whole is near 0 would decide a mean of ratios. If the mean of
    `wholes` has both signs among the draws, there may be no whole to share, and all is NaN.
    """
    if not len(values):
        return _unknown(values)
    whole, draws = wholes.mean(), _resampled(wholes)
    if not (whole * draws > 0).all():
        return _unknown(values)
    sign = np.sign(whole)
    whole_draws = sign * draws.reshape(-1, *[1] * (values.ndim - 1))
    shares = ratio(sign * _resampled(values), whole_draws)
    return _ends(ratio(sign * values.mean(axis=0), sign * whole), shares, len(values))


def _resampled(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean over prompts of each draw of as many prompts with replacement, (draw, …)."""
    n = len(values)
    return np.asarray((_weights(n) @ values.reshape(n, -1)).reshape(DRAWS, *values.shape[1:]))


@lru_cache(maxsize=4)
def _weights(n: int) -> NDArray[np.float64]:
    """Return the weight of each of n prompts in each draw, (draw, prompt)."""
    return np.random.default_rng(_SEED).multinomial(n, np.full(n, 1 / n), DRAWS) / n


def _ends(value: NDArray[np.float64], draws: NDArray[np.float64], n: int) -> Estimate:
    """Return the value with the expanded percentile interval of its draws (Hesterberg 2015).

    A percentile interval is too narrow for few prompts: it lacks the factor √(n/(n−1)) and the quantile of Student's t.
    The expanded one takes the percentiles that give a mean of normal numbers both.
    """
    tail = _tail(n)
    low, high = (np.asarray(end) for end in np.percentile(draws, (tail, 100 - tail), axis=0))
    return Estimate(value, low, high)


def _tail(n: int) -> float:
    """Return the percentage of the draws below the expanded percentile interval of n prompts."""
    return float(100 * norm.cdf(t.ppf(_TAIL, n - 1) * np.sqrt(n / (n - 1)))) if n > 1 else 0.0


def _unknown(values: NDArray[np.float64]) -> Estimate:
    missing = np.full(values.shape[1:], np.nan)
    return Estimate(missing, missing, missing)


def half_dose(
    changes: Float64[np.ndarray, "prompt *places dose"],
    doses: Float64[np.ndarray, " dose"],
    wholes: Float64[np.ndarray, " prompt"],
) -> Estimate:
    """Return the smallest dose at which the mean change reaches half of the mean of `wholes`, with its interval.

    The mean change is 0 at a dose of 0, and linear between doses. NaN where no dose reaches half; the upper end is NaN
    where too many draws of the bootstrap do not.

    Args:
        changes: change of a measure towards the other set.
        doses: doses greater than 0, in ascending order.
        wholes: what the other set has more of the measure; its mean is greater than 0.
    """
    value = _first_reached(changes.mean(axis=0), doses, wholes.mean() / 2)
    tail = _tail(len(changes))
    draws = _first_reached(_resampled(changes), doses, _resampled(wholes).reshape(-1, *[1] * (changes.ndim - 2)) / 2)
    # No mean of two draws, since a draw is infinite if no dose reaches half.
    low, high = np.percentile(draws, (tail, 100 - tail), axis=0, method="inverted_cdf")
    known = np.isfinite(value)
    return Estimate(*(np.where(known & np.isfinite(end), end, np.nan) for end in (value, low, high)))


def _first_reached(
    curves: NDArray[np.float64], doses: NDArray[np.float64], level: NDArray[np.float64] | float
) -> NDArray[np.float64]:
    """Return the first dose at which curves (…, dose) that begin at 0 reach a level (…); infinite if none does."""
    curves = np.concatenate([np.zeros_like(curves[..., :1]), curves], axis=-1)
    levels, steps = np.broadcast_to(level, curves.shape[:-1])[..., None], np.concatenate([[0.0], doses])
    reached = curves[..., 1:] >= levels
    start = reached.argmax(axis=-1, keepdims=True)
    before, after = (np.take_along_axis(curves, start + one, axis=-1) for one in (0, 1))
    share = np.where(levels > before, ratio(levels - before, after - before), 0)
    found = steps[start] + share * (steps[start + 1] - steps[start])
    return np.where(reached.any(axis=-1), found[..., 0], np.inf)


class ControlTest(NamedTuple):
    """An effect against those of control directions, each of shape (*places).

    Attributes:
        null_mean: mean over the control directions.
        null_sd: standard deviation (n−1) over the control directions.
        z: the effect (for sizes, its logarithm) minus the mean of the controls, over their standard deviation.
        p: share of directions, the own one included, with as large an effect.
        p_family: share of directions, the own one included, whose largest z over all places is as large as z.
    """

    null_mean: NDArray[np.float64]
    null_sd: NDArray[np.float64]
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    p_family: NDArray[np.float64]


def against_controls(
    effect: Float64[np.ndarray, "*places"], controls: Float64[np.ndarray, "draw *places"], *, are_sizes: bool
) -> ControlTest:
    """Return the one-sided test that a direction's effect is larger than that of control directions.

    Of sizes, which are at least 0, the logarithms are compared, since sizes are skewed: a few control directions have
    far larger effects than the others, and would decide every z. Where a size is 0, where an effect is NaN, and where
    all controls have the same effect, the test is NaN.
    """
    effects = np.concatenate([effect[None], controls])
    compared = np.log(effects, where=effects > 0, out=np.full(effects.shape, np.nan)) if are_sizes else effects
    tested = permutation_test(compared)
    return ControlTest(controls.mean(axis=0), controls.std(axis=0, ddof=1), tested.z, tested.p, tested.p_family)
