"""Differences between the AUROCs, or paired accuracies, of two scores of the same prompts. Pure, in float64."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import half_of_difference, simultaneous_quantile
from theodolite_jobs.statistics.estimates import NORMAL_QUANTILE, Estimate
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.refits import Scored, length

Statistic = Callable[..., Estimate]
Terms = Callable[..., NDArray[np.float64]]
"""A statistic of `statistics/scores.py` with its interval, and the terms of its error."""


def difference(statistic: Statistic, terms: Terms, scores: Scored, controls: Scored) -> tuple[Estimate, Estimate]:
    """Return a statistic of scores minus that of a control, with its 95 % interval and with its simultaneous band.

    The interval combines the intervals of both with the correlation of their errors, so that it stays asymmetric near 1
    (Zou and Donner 2008; Newcombe 1998 for pairs). All errors contain those of the fitted directions, see `Scored`. The
    quantile of the band comes from the errors of the differences at all places, see `bands.simultaneous_quantile`.

    Args:
        statistic: for example `scores.auroc`.
        terms: the function that returns the terms of its error.
        scores: the scores, each (prompt, …).
        controls: the scores of the control for the same prompts, in the same shapes.
    """
    sides = scores, controls
    own, other = (side.terms(terms) for side in sides)
    correlation = ratio((own * other).sum(axis=0), length(own) * length(other))
    at_once = simultaneous_quantile(own - other)
    of_fits = [side.fit_error(terms) for side in sides]
    both = []
    for quantile in (NORMAL_QUANTILE, at_once):
        one, control = (
            statistic(side.positive, side.negative, paired=side.paired, quantile=quantile).widened(quantile * error)
            for side, error in zip(sides, of_fits, strict=True)
        )
        both.append(_difference(one, control, np.nan_to_num(correlation)))
    return both[0], both[1]


def _difference(one: Estimate, other: Estimate, correlation: NDArray[np.float64]) -> Estimate:
    value = one.value - other.value
    below = half_of_difference(one.value - one.low, other.high - other.value, correlation)
    above = half_of_difference(one.high - one.value, other.value - other.low, correlation)
    return Estimate(value, np.asarray(value - below), np.asarray(value + above))
