"""AUROC, accuracy and paired accuracy from held-out scores, with their intervals. Pure, in float64.

The two scores of a pair depend on each other. So the intervals of a paired contrast use the variance over pairs, and
those of other contrasts the variance over single prompts. They are intervals of how well the fitted directions separate
new prompts. `refits` adds the error of the directions.

`quantile` is the two-sided quantile of the normal distribution, for example 1.96 for an interval at one depth, or what
`bands.simultaneous_quantile` returns for a band over all depths; it broadcasts against the curves' dimensions. Each
statistic has a function `…_terms`. It returns one row for each pair or prompt, (row, …); the sum over the rows of their
squares is the squared standard error, and of their products the covariance between two depths.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray
from scipy.special import expit, logit
from scipy.stats import beta, norm, rankdata

from theodolite_jobs.statistics.estimates import NORMAL_QUANTILE, Estimate
from theodolite_jobs.statistics.ratio import ratio

Positive = Float[np.ndarray, "p *dims"]
Negative = Float[np.ndarray, "q *dims"]
"""Scores of P and of N."""

Quantile = float | NDArray[np.float64]


@dataclass(frozen=True)
class _Wins:
    """For each prompt of P, its share of prompts of N with a smaller score; for N, of P with a larger one."""

    of_positive: NDArray[np.float64]
    of_negative: NDArray[np.float64]

    @property
    def area(self) -> NDArray[np.float64]:
        return np.asarray(self.of_positive.mean(axis=0))


def auroc(positive: Positive, negative: Negative, *, paired: bool, quantile: Quantile = NORMAL_QUANTILE) -> Estimate:
    """Return the area under the ROC curve and its interval.

    The area is P(score of P > score of N); ties count half. NaN without samples of a set; the interval is NaN with
    fewer than two. The interval is symmetric on the scale of log-odds, since the error is skewed near 0 and 1. If all
    scores of one set lie above those of the other, the estimated variance is 0. The interval then ends at (α/2)^(1/n)
    (Clopper and Pearson 1934), where n is the size of the smaller set; no other area has a narrower one. Sources:
    DeLong et al. (1988), by ranks as in Sun and Xu (2014); Obuchowski (1997) for pairs.
    """
    n_p, n_q = len(positive), len(negative)
    if min(n_p, n_q) == 0:
        return _undefined(positive)
    value = _wins(positive, negative).area
    if min(n_p, n_q) < 2:
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    bound = bound_of_one(min(n_p, n_q), quantile)
    error = _standard_error(auroc_terms(positive, negative, paired=paired))
    half = quantile * ratio(error, value * (1 - value))  # NaN at 0 and 1
    low, high = (expit(logit(value) + side * half) for side in (-1, 1))
    low = np.where(value == 1, bound, np.where(value == 0, 0.0, np.minimum(low, bound)))
    high = np.where(value == 0, 1 - bound, np.where(value == 1, 1.0, np.maximum(high, 1 - bound)))
    return Estimate(value, low, high)


def bound_of_one(n: int, quantile: Quantile) -> NDArray[np.float64]:
    """Return the lower end of the interval of an AUROC of 1, given the size of the smaller set; NaN if it is 0."""
    return np.asarray(norm.sf(quantile) ** (1 / n)) if n else np.full(np.shape(quantile), np.nan)


def auroc_terms(positive: Positive, negative: Negative, *, paired: bool) -> Float64[np.ndarray, "row *dims"]:
    """Return the terms of the error of `auroc`."""
    wins = _wins(positive, negative)
    parts = wins.of_positive, wins.of_negative
    return _terms([parts[0] + parts[1]] if paired else parts)


def _wins(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> _Wins:
    n_p, n_q = len(positive), len(negative)
    ranks = rankdata(np.concatenate([positive, negative]), axis=0, nan_policy="propagate")
    return _Wins(
        (ranks[:n_p] - rankdata(positive, axis=0, nan_policy="propagate")) / n_q,
        1 - (ranks[n_p:] - rankdata(negative, axis=0, nan_policy="propagate")) / n_p,
    )


def accuracy(positive: Positive, negative: Negative, *, paired: bool, quantile: Quantile = NORMAL_QUANTILE) -> Estimate:
    """Return the share of scores with the sign of their own set and its interval.

    Scores of P count if positive, scores of N if negative. NaN without samples of a set, or if a score is NaN. The
    interval is Wilson's (1927). For pairs, accuracy is (1 + δ)/2 with the difference δ between the shares of positive
    scores in P and in N, and the interval is that of Agresti and Min (2005) for such a difference: quantile²/8 pairs
    are added to each of the four outcomes of a pair.
    """
    if min(len(positive), len(negative)) == 0:
        return _undefined(positive)
    rows = np.concatenate(_correct(positive, negative))
    share, z = rows.mean(axis=0), np.asarray(quantile)
    if not paired:
        n = len(rows)
        centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
        half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
        return Estimate(share, centre - half, centre + half)
    correct = np.mean(np.split(rows, 2), axis=0)  # 0, ½ or 1 of each pair
    n, added = len(correct), z**2 / 2
    centre = (n * share + added / 2) / (n + added)
    squares = ((correct - centre) ** 2).sum(axis=0)
    squares = squares + added * (centre**2 / 4 + (centre - 0.5) ** 2 / 2 + (centre - 1) ** 2 / 4)
    half = z * np.sqrt(squares) / (n + added)
    return Estimate(share, np.clip(centre - half, 0, 1), np.clip(centre + half, 0, 1))


def accuracy_terms(positive: Positive, negative: Negative, *, paired: bool) -> Float64[np.ndarray, "row *dims"]:
    """Return the terms of the error of `accuracy`."""
    n = len(positive) + len(negative)
    parts = [len(part) / n * part for part in _correct(positive, negative)]
    return _terms([parts[0] + parts[1]] if paired else parts)


def _correct(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> list[NDArray[np.float64]]:
    """Return 1 for each score with the sign of its own set, else 0; NaN at a curve with a score of NaN."""
    undefined = np.isnan(positive).any(axis=0) | np.isnan(negative).any(axis=0)
    return [np.where(undefined, np.nan, right) for right in (positive > 0, negative < 0)]


def paired_accuracy(
    positive: Positive, negative: Negative, *, paired: bool, quantile: Quantile = NORMAL_QUANTILE
) -> Estimate:
    """Return the share of pairs whose positive prompt has the larger score, and its exact interval; ties count half.

    The interval is that of Clopper and Pearson (1934). With ties, its ends belong to the next whole numbers of pairs,
    which makes it wider. NaN for sets without pairs, and where a score is NaN.
    """
    if not paired or not len(positive):
        return _undefined(positive)
    ordered = _ordered(positive, negative)
    n, successes, tail = len(ordered), ordered.sum(axis=0), norm.sf(quantile)
    fewer, more = np.floor(successes), np.ceil(successes)
    low = np.where(fewer == 0, 0.0, beta.ppf(tail, np.maximum(fewer, 1), n - fewer + 1))
    high = np.where(more == n, 1.0, beta.isf(tail, more + 1, np.maximum(n - more, 1)))
    undefined = np.isnan(successes)
    return Estimate(successes / n, *(np.where(undefined, np.nan, end) for end in (low, high)))


def paired_accuracy_terms(positive: Positive, negative: Negative, *, paired: bool) -> Float64[np.ndarray, "row *dims"]:
    """Return the terms of the error of `paired_accuracy`; none for sets without pairs."""
    return _terms([_ordered(positive, negative)]) if paired else np.empty((0, *positive.shape[1:]))


def _ordered(positive: NDArray[np.floating], negative: NDArray[np.floating]) -> NDArray[np.float64]:
    """Return 1 for each pair in the right order, 0 in the wrong order, ½ for a tie; NaN where a score is NaN."""
    return np.asarray((1 + np.sign(positive - negative)) / 2, dtype=np.float64)


def _terms(parts: list[NDArray[np.float64]] | tuple[NDArray[np.float64], ...]) -> NDArray[np.float64]:
    """Return the deviations of means over independent rows, scaled so that their squares sum to the squared error."""
    scaled = []
    for part in parts:
        n = max(len(part), 1)  # an empty part has no terms, and one row has no error
        scaled.append((part - part.sum(axis=0) / n) / np.sqrt(n * max(n - 1, 1)))
    return np.concatenate(scaled)


def _standard_error(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt((terms**2).sum(axis=0)))


def _undefined(scores: NDArray[np.floating]) -> Estimate:
    nan = np.full(scores.shape[1:], np.nan)
    return Estimate(nan, nan, nan)


OF_SCORES = {
    "auroc": (auroc, auroc_terms),
    "accuracy": (accuracy, accuracy_terms),
    "paired_accuracy": (paired_accuracy, paired_accuracy_terms),
}
"""Each statistic of held-out scores with the terms of its error."""
