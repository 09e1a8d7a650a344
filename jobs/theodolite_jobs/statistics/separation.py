"""How well a contrast's direction tells its two sets apart, on prompts it was not fitted on. Pure, in float64.

Sample i belongs to fold i mod 5, so that both prompts of a pair share a fold. The direction of a fold is the difference
of means over all other folds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from numpy.typing import NDArray
from scipy.stats import rankdata, t

from theodolite_jobs.statistics.curves import NORMAL_QUANTILE
from theodolite_jobs.statistics.directions import direction
from theodolite_jobs.statistics.moments import moments
from theodolite_jobs.statistics.ratio import ratio

FOLDS = 5


@dataclass(frozen=True)
class Folds:
    """Moments of the samples of each fold; parts of different samples are merged by Chan's formula.

    Attributes:
        counts: (fold,).
        means: (fold, …, d_model); zeros for an empty fold.
        deviations: sums of ‖x − mean‖², (fold, …).
    """

    counts: Int64[np.ndarray, " fold"]
    means: Float64[np.ndarray, "fold *dims d_model"]
    deviations: Float64[np.ndarray, "fold *dims"]

    def __add__(self, other: "Folds") -> "Folds":
        counts = self.counts + other.counts
        delta = other.means - self.means
        share = _shares(other.counts, counts)
        between = np.vecdot(delta, delta) * _like(self.counts * share, self.deviations)
        return Folds(counts, self.means + delta * _like(share, delta), self.deviations + other.deviations + between)

    def without(self, fold: int) -> "Folds":
        """Return the other folds."""
        return Folds(*(np.delete(of_folds, fold, axis=0) for of_folds in (self.counts, self.means, self.deviations)))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of all samples; NaN without any."""
        if not self.counts.sum():
            return np.full(self.means.shape[1:], np.nan)
        # From one fold on, so that equal means give their own value, to the bit.
        first = self.means[int(np.argmax(self.counts > 0))]
        shares = _like(_shares(self.counts, np.asarray(self.counts.sum())), self.means)
        total: NDArray[np.float64] = first + (shares * (self.means - first)).sum(axis=0)
        return total

    @property
    def trace(self) -> NDArray[np.float64]:
        """Trace of the covariance (n−1) of all samples; NaN for fewer than two."""
        n = int(self.counts.sum())
        if n < 2:
            return np.full(self.deviations.shape[1:], np.nan)
        apart = self.means - self.mean
        between = np.vecdot(apart, apart) * _like(self.counts, self.deviations)
        return np.asarray((self.deviations + between).sum(axis=0) / (n - 1))


def folds_of(
    samples: Float64[np.ndarray, "sample d_model"], of_folds: Int64[np.ndarray, " sample"]
) -> tuple[Float64[np.ndarray, "fold d_model"], Float64[np.ndarray, " fold"]]:
    """Return `means` and `deviations` of one place's samples, given the fold of each."""
    parts = [moments(samples[of_folds == fold]) for fold in range(FOLDS)]
    return np.stack([np.nan_to_num(part.mean) for part in parts]), np.array([part.m2.sum() for part in parts])


def _shares(counts: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.float64]:
    share: NDArray[np.float64] = np.divide(counts, total, out=np.zeros(len(counts)), where=total > 0)
    return share


def _like(of_folds: NDArray[Any], array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return a number of each fold in as many dimensions as an array has."""
    return of_folds.reshape(-1, *[1] * (array.ndim - 1)).astype(np.float64)


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
    p, q = (np.stack([side.without(fold).mean for fold in range(FOLDS)]) for side in (positive, negative))
    units = direction(p, q)
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
    (2014). Where every prompt is on its side the variance is estimated as 0: then, as for a share of n in n, the end is
    where the n-th power is 2.5 %, n the smaller set.
    """
    n_p, n_q = len(positive), len(negative)
    if min(n_p, n_q) == 0:
        nothing = np.full(positive.shape[1:], np.nan)
        return Estimate(nothing, nothing, nothing)
    ranks = rankdata(np.concatenate([positive, negative]), axis=0, nan_policy="propagate")
    beaten = (ranks[:n_p] - rankdata(positive, axis=0, nan_policy="propagate")) / n_q
    lost = (ranks[n_p:] - rankdata(negative, axis=0, nan_policy="propagate")) / n_p
    value = beaten.mean(axis=0)
    if min(n_p, n_q) < 2:
        return Estimate(value, np.full_like(value, np.nan), np.full_like(value, np.nan))
    half = NORMAL_QUANTILE * np.sqrt(beaten.var(axis=0, ddof=1) / n_p + lost.var(axis=0, ddof=1) / n_q)
    farthest = 0.025 ** (1 / min(n_p, n_q))  # Clopper and Pearson (1934)
    low = np.where((half == 0) & (value == 1), farthest, value - half)
    high = np.where((half == 0) & (value == 0), 1 - farthest, value + half)
    return Estimate(value, np.clip(low, 0, 1), np.clip(high, 0, 1))


def accuracy(positive: Float64[np.ndarray, "p *dims"], negative: Float64[np.ndarray, "q *dims"]) -> Estimate:
    """Return the share of samples on the right side of the midpoint with Wilson's interval (1927)."""
    n = len(positive) + len(negative)
    if min(len(positive), len(negative)) == 0:
        nothing = np.full(positive.shape[1:], np.nan)
        return Estimate(nothing, nothing, nothing)
    undefined = np.isnan(positive).any(axis=0) | np.isnan(negative).any(axis=0)
    right = (positive > 0).sum(axis=0) + (negative < 0).sum(axis=0)
    share = np.where(undefined, np.nan, right / n)
    z = NORMAL_QUANTILE
    centre = (share + z**2 / (2 * n)) / (1 + z**2 / n)
    half = z / (1 + z**2 / n) * np.sqrt(share * (1 - share) / n + z**2 / (4 * n**2))
    return Estimate(share, centre - half, centre + half)


def fisher_ratio(positive: Folds, negative: Folds) -> Estimate:
    """Return ‖Δμ‖² over (tr Σ_P + tr Σ_N), where ‖Δμ‖² is unbiased: the mean over folds of Δμ_fold · Δμ_rest.

    The plain ‖Δμ‖² holds the noise of both means. The interval is Student's over the jackknife that leaves out one
    fold at a time, with one degree of freedom less than folds.
    """
    value = _fisher_ratio(positive, negative)
    left_out = np.stack([_fisher_ratio(positive.without(fold), negative.without(fold)) for fold in range(FOLDS)])
    error = np.sqrt((FOLDS - 1) / FOLDS * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    half = t.ppf(0.975, FOLDS - 1) * error
    return Estimate(value, value - half, value + half)


def _fisher_ratio(positive: Folds, negative: Folds) -> NDArray[np.float64]:
    total = positive.trace + negative.trace
    if not ((positive.counts > 0) & (negative.counts > 0)).all():
        return np.full(total.shape, np.nan)
    products = []
    for fold in range(len(positive.counts)):
        here = positive.means[fold] - negative.means[fold]
        rest = positive.without(fold).mean - negative.without(fold).mean
        products.append(np.vecdot(here, rest))
    return ratio(np.mean(products, axis=0), total)
