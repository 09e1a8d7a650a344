"""Cross-validated separation of a contrast's two sets along its direction. Pure, in float64.

Sample i belongs to fold i mod 5, so both prompts of a pair are in the same fold. The direction of a fold is the
difference of the means over all other folds.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int64
from numpy.typing import NDArray
from scipy.stats import t

from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.kernels import fold_dots
from theodolite_jobs.statistics.moments import scaled_moments
from theodolite_jobs.statistics.norms import unit

FOLDS = 5


@dataclass(frozen=True)
class Folds:
    """Moments of the samples of each fold; `+` merges the moments of disjoint sets of samples by Chan's formula.

    Attributes:
        counts: number of samples, (fold,).
        means: means over samples, (fold, …, d_model); zeros for an empty fold.
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
        """Return all folds except one."""
        return Folds(*(np.delete(array, fold, axis=0) for array in (self.counts, self.means, self.deviations)))

    @property
    def mean(self) -> NDArray[np.float64]:
        """Mean of all samples; NaN without samples."""
        if not self.counts.sum():
            return np.full(self.means.shape[1:], np.nan)
        # Relative to one fold, so that equal means give exactly their own value.
        first = self.means[int(np.argmax(self.counts > 0))]
        shares = _like(_shares(self.counts, np.asarray(self.counts.sum())), self.means)
        return np.asarray(first + (shares * (self.means - first)).sum(axis=0))

    @property
    def trace(self) -> NDArray[np.float64]:
        """Trace of the covariance (n−1) of all samples; NaN for fewer than two."""
        n = int(self.counts.sum())
        if n < 2:
            return np.full(self.deviations.shape[1:], np.nan)
        differences = self.means - self.mean
        between = np.vecdot(differences, differences) * _like(self.counts, self.deviations)
        return np.asarray((self.deviations + between).sum(axis=0) / (n - 1))


def fold_moments(
    samples: Float[np.ndarray, "sample d_model"], folds: Int64[np.ndarray, " sample"]
) -> tuple[Float64[np.ndarray, "fold d_model"], Float64[np.ndarray, " fold"]]:
    """Return `means` and `deviations` of Folds for samples, given each one's fold."""
    inside = [samples[folds == fold] for fold in range(FOLDS)]
    parts = [scaled_moments(part, np.ones(len(part))) for part in inside]
    means = [part.mean if part.count else np.zeros_like(part.mean) for part in parts]
    return np.stack(means), np.stack([part.m2.sum(axis=-1) for part in parts])


def _shares(counts: NDArray[np.int64], total: NDArray[np.int64]) -> NDArray[np.float64]:
    return np.asarray(np.divide(counts, total, out=np.zeros(len(counts)), where=total > 0))


def _like(values: NDArray[Any], array: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return one value of each fold, (fold, 1, …), with as many dimensions as an array."""
    return values.reshape(-1, *[1] * (array.ndim - 1)).astype(np.float64)


def fold_directions(
    positive: Folds, negative: Folds
) -> tuple[Float64[np.ndarray, "fold *dims d_model"], Float64[np.ndarray, "fold *dims"]]:
    """Return, for each fold, the unit direction u of the other folds and the projection m·u of their midpoint m.

    m is the midpoint of the two sets' means. NaN if these means are equal, or if a set has no samples in other folds.
    """
    p, q = (np.stack([side.without(fold).mean for fold in range(FOLDS)]) for side in (positive, negative))
    units = unit(p - q)
    return units, np.einsum("...d,...d->...", (p + q) / 2, units)


def fold_scores(
    samples: Float[np.ndarray, "sample d_model"],
    folds: Int64[np.ndarray, " sample"],
    units: Float64[np.ndarray, "fold d_model"],
    midpoints: Float64[np.ndarray, " fold"],
) -> Float64[np.ndarray, " sample"]:
    """Return x·u − m·u of each sample x, with u and m·u of its fold from `fold_directions`."""
    return np.asarray(fold_dots(samples, units, folds) - midpoints[folds])


def jackknife(value: NDArray[np.float64], left_out: Float64[np.ndarray, "fold *dims"]) -> Estimate:
    """Return a value with its 95 % interval, from the values with one fold left out.

    The interval is Student's, with FOLDS − 1 degrees of freedom and the jackknife error over folds.
    """
    error = np.sqrt((FOLDS - 1) / FOLDS * ((left_out - left_out.mean(axis=0)) ** 2).sum(axis=0))
    half = t.ppf(0.975, FOLDS - 1) * error
    return Estimate(value, np.asarray(value - half), np.asarray(value + half))
