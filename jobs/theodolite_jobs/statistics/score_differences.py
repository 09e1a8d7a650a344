"""Differences between the AUROCs, or paired accuracies, of two scores of the same prompts. Pure, in float64."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.statistics.bands import simultaneous_quantile
from theodolite_jobs.statistics.curves import NORMAL_QUANTILE
from theodolite_jobs.statistics.ratio import ratio
from theodolite_jobs.statistics.separation import Estimate
from theodolite_jobs.statistics.separation_scores import Negative, Positive

Sides = tuple[Positive, Negative]
"""Scores of P and of N."""

Statistic = Callable[..., Estimate]
Terms = Callable[..., NDArray[np.float64]]
"""A statistic of `separation_scores` with its interval, and the terms of its error."""


def difference(
    statistic: Statistic, terms: Terms, scores: Sides, controls: Sides, *, paired: bool
) -> tuple[Estimate, Estimate]:
    """Return a statistic of scores minus that of a control, with its 95 % interval and with its simultaneous band.

    The interval combines the intervals of both with the correlation of their errors, so that it stays asymmetric near 1
    (Zou and Donner 2008; Newcombe 1998 for pairs). The quantile of the band comes from the errors of the differences at
    all places, see `bands.simultaneous_quantile`.

    Args:
        statistic: for example `separation_scores.auroc`.
        terms: the function that returns the terms of its error.
        scores: the scores, each (prompt, …).
        controls: the scores of the control for the same prompts, in the same shapes.
        paired: whether prompt i of P belongs to prompt i of N.
    """
    own, other = (terms(*sides, paired=paired) for sides in (scores, controls))
    correlation = _correlation(own, other)
    at_once = simultaneous_quantile(own - other)
    both = []
    for quantile in (NORMAL_QUANTILE, at_once):
        one, control = (statistic(*sides, paired=paired, quantile=quantile) for sides in (scores, controls))
        both.append(_difference(one, control, correlation))
    return both[0], both[1]


def _correlation(own: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of two errors; 0 if one has no estimated error."""
    lengths = np.sqrt((own**2).sum(axis=0) * (other**2).sum(axis=0))
    products = (own * other).sum(axis=0)
    return np.where(lengths == 0, 0.0, ratio(products, lengths))


def _difference(one: Estimate, other: Estimate, correlation: NDArray[np.float64]) -> Estimate:
    value = one.value - other.value
    below = _half(one.value - one.low, other.high - other.value, correlation)
    above = _half(one.high - one.value, other.value - other.low, correlation)
    return Estimate(value, np.asarray(value - below), np.asarray(value + above))


def _half(
    own: NDArray[np.float64], other: NDArray[np.float64], correlation: NDArray[np.float64]
) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(np.maximum(own**2 + other**2 - 2 * correlation * own * other, 0)))
