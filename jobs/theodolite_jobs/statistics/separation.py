"""How well a contrast's direction tells its two sets apart, on prompts it was not fitted on. Pure, in float64.

Sample i belongs to fold i mod 5, so that both prompts of a pair share a fold. The direction of a fold is the difference
of means over all other folds.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from scipy.stats import rankdata, t

from theodolite_jobs.statistics.curves import NORMAL_QUANTILE

FOLDS = 5


@dataclass(frozen=True)
class Folds:
    """Sums over the samples of each fold, and how many they are.

    Attributes:
        counts: (fold,).
        sums: (fold, …, d_model).
    """

    counts: Int64[np.ndarray, " fold"]
    sums: Float64[np.ndarray, "fold *dims d_model"]

    def __add__(self, other: "Folds") -> "Folds":
        return Folds(self.counts + other.counts, self.sums + other.sums)

    @property
    def means(self) -> NDArray[np.float64]:
        """Mean of each fold; NaN for an empty one."""
        return _divide(self.sums, self.counts)

    @property
    def means_of_the_others(self) -> NDArray[np.float64]:
        """Mean of all samples outside each fold; NaN where there are none."""
        return _divide(self.sums.sum(axis=0) - self.sums, self.counts.sum() - self.counts)


@dataclass(frozen=True)
class Estimate:
    """A value and its 95 % interval."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


def fold_directions(
    positive: Folds, negative: Folds
) -> tuple[Float64[np.ndarray, "fold *dims d_model"], Float64[np.ndarray, "fold *dims"]]:
    """Return, for each fold, the unit direction of the other folds and where on it their midpoint lies.

    NaN where the other folds' means are equal or a set has no other fold.
    """
    p, q = positive.means_of_the_others, negative.means_of_the_others
    difference = p - q
    lengths = np.linalg.norm(difference, axis=-1, keepdims=True)
    units = np.divide(difference, lengths, out=np.full_like(difference, np.nan), where=lengths > 0)
    return units, np.einsum("...d,...d->...", (p + q) / 2, units)


def fold_scores(
    samples: Float64[np.ndarray, "sample d_model"],
    folds: Int64[np.ndarray, " sample"],
    units: Float64[np.ndarray, "fold d_model"],
    midpoints: Float64[np.ndarray, " fold"],
) -> Float64[np.ndarray, " sample"]:
    """Return how far each sample lies beyond the midpoint, along the direction of the folds that it is not in."""
    scores = np.empty(len(samples))
    for fold in range(len(units)):
        inside = folds == fold
        scores[inside] = samples[inside] @ units[fold] - midpoints[fold]
    return scores


def auroc(positive: Float64[np.ndarray, "p *dims"], negative: Float64[np.ndarray, "q *dims"]) -> Estimate:
    """Return the area under the ROC curve with DeLong's interval, which is cut off at 0 and 1.

    P(score of P > score of N), ties counting half. DeLong, DeLong, Clarke-Pearson (1988) by ranks, as Sun and Xu
    (2014). Where every prompt is on its side the interval has no width: its variance is estimated as 0.
    """
    n_p, n_q = len(positive), len(negative)
    ranks = rankdata(np.concatenate([positive, negative]), axis=0, nan_policy="propagate")
    beaten = (ranks[:n_p] - rankdata(positive, axis=0, nan_policy="propagate")) / n_q
    lost = (ranks[n_p:] - rankdata(negative, axis=0, nan_policy="propagate")) / n_p
    value = beaten.mean(axis=0)
    if min(n_p, n_q) < 2:
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    half = NORMAL_QUANTILE * np.sqrt(beaten.var(axis=0, ddof=1) / n_p + lost.var(axis=0, ddof=1) / n_q)
    return Estimate(value, np.clip(value - half, 0, 1), np.clip(value + half, 0, 1))


def accuracy(positive: Float64[np.ndarray, "p *dims"], negative: Float64[np.ndarray, "q *dims"]) -> Estimate:
    """Return the share of samples on the right side of the midpoint with Wilson's interval (1927)."""
    n = len(positive) + len(negative)
    undefined = np.isnan(positive).any(axis=0) | np.isnan(negative).any(axis=0)
    right = (positive > 0).sum(axis=0) + (negative < 0).sum(axis=0)
    share = np.where(undefined, np.nan, right / n)
    z = NORMAL_QUANTILE
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return Estimate(share, centre - half, centre + half)


def fisher_ratio(
    positive: Folds, negative: Folds, trace_p: Float64[np.ndarray, "*dims"], trace_q: Float64[np.ndarray, "*dims"]
) -> Estimate:
    """Return ‖Δμ‖² over (tr Σ_P + tr Σ_N), where ‖Δμ‖² is unbiased: the mean over folds of Δμ_fold · Δμ_rest.

    The plain ‖Δμ‖² holds the noise of both means. The interval is Student's over the jackknife that leaves out one
    fold at a time, with one degree of freedom less than folds; the traces are taken as known.

    Args:
        positive: fold sums of P.
        negative: fold sums of N.
        trace_p: trace of the covariance (n−1) of P.
        trace_q: the same of N.
    """
    differences = positive.means - negative.means
    rest = positive.means_of_the_others - negative.means_of_the_others
    value = np.einsum("f...d,f...d->f...", differences, rest).mean(axis=0)
    products = np.einsum("f...d,g...d->fg...", differences, differences)
    kept = [np.delete(np.arange(FOLDS), fold) for fold in range(FOLDS)]
    left_out = np.stack([_mean_over_pairs(products[np.ix_(others, others)]) for others in kept])
    error = np.sqrt((FOLDS - 1) / FOLDS * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    half = t.ppf(0.975, FOLDS - 1) * error
    total = trace_p + trace_q
    with np.errstate(invalid="ignore", divide="ignore"):
        return Estimate(value / total, (value - half) / total, (value + half) / total)


def _mean_over_pairs(products: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the mean of what stands off the diagonal of the first two axes."""
    n = len(products)
    diagonal = np.einsum("ff...->...", products)
    mean: NDArray[np.float64] = (products.sum(axis=(0, 1)) - diagonal) / (n * (n - 1))
    return mean


def _divide(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> NDArray[np.float64]:
    by_fold = counts.reshape(-1, *[1] * (sums.ndim - 1)).astype(np.float64)
    quotient: NDArray[np.float64] = np.divide(sums, by_fold, out=np.full_like(sums, np.nan), where=by_fold > 0)
    return quotient
