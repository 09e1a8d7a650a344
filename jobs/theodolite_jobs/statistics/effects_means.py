"""Means over prompts of what interventions change, their intervals, and their tests. Pure, in float64."""

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray
from scipy.stats import norm, t

from theodolite_jobs.statistics.permutations import permutation_test
from theodolite_jobs.statistics.ratio import ratio

DRAWS = 2_000

_SEED, _TAIL = 0, 0.025


class Estimate(NamedTuple):
    """A statistic and the ends of its 95 % interval, each of shape (…)."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def mean_over_prompts(values: Float64[np.ndarray, "prompt *places"]) -> Estimate:
    """Return the mean over prompts, with the expanded percentile interval of a bootstrap over prompts.

    The prompts of one side of a paired contrast are one for each pair, so this is a bootstrap over pairs.
    """
    if not len(values):
        return _unknown(values)
    return _ends(np.asarray(values.mean(axis=0)), _resampled(values), len(values))


def share_of_means(values: Float64[np.ndarray, "prompt *places"], wholes: Float64[np.ndarray, " prompt"]) -> Estimate:
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
    tail = 100 * norm.cdf(t.ppf(_TAIL, n - 1) * np.sqrt(n / (n - 1))) if n > 1 else 0.0
    low, high = (np.asarray(end) for end in np.percentile(draws, (tail, 100 - tail), axis=0))
    return Estimate(value, low, high)


def _unknown(values: NDArray[np.float64]) -> Estimate:
    missing = np.full(values.shape[1:], np.nan)
    return Estimate(missing, missing, missing)


class ControlTest(NamedTuple):
    """An effect against those of control directions, each of shape (*places).

    Attributes:
        control: mean over the control directions.
        z: the logarithm of the effect minus the mean of those of the controls, over their standard deviation (n−1).
        p: share of directions, the own one included, with as large an effect.
        p_family: share of directions, the own one included, whose largest z over all places is as large as z.
    """

    control: NDArray[np.float64]
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    p_family: NDArray[np.float64]


def against_controls(
    effect: Float64[np.ndarray, "*places"], controls: Float64[np.ndarray, "draw *places"]
) -> ControlTest:
    """Return the one-sided test that a direction's effect is larger than that of control directions.

    Effects are sizes, at least 0. Their logarithms are compared, since sizes are skewed: a few control directions have
    far larger effects than the others, and would decide every z. Where an effect is 0, the test is NaN.
    """
    sizes = np.concatenate([effect[None], controls])
    tested = permutation_test(np.log(sizes, where=sizes > 0, out=np.full(sizes.shape, np.nan)))
    return ControlTest(controls.mean(axis=0), tested.z, tested.p, tested.p_family)
