"""Permutation tests: statistics of a contrast under labels that are permuted between its two sets. Pure, in float64.

If the two sets had the same distribution, the labels could be exchanged without changing the distribution of any
statistic. A paired contrast exchanges the labels inside pairs. Other contrasts permute the labels inside each fold, so
that the folds keep their numbers of both sets. Sources: Phipson and Smyth (2010) for p, Westfall and Young (1993) for
the family-wise p.

All statistics are linear in the samples, or follow from their Gram matrix, so no draw reads the samples again.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy.typing import NDArray
from scipy.stats import rankdata

from theodolite.groups.schema import LEVEL
from theodolite_jobs.statistics.gram_matrices import squared_distances
from theodolite_jobs.statistics.norms import unit
from theodolite_jobs.statistics.ratio import ratio

DRAWS = 200

_SEED = 0

_CANCELLED = 1e-12  # relative; what a difference of two equal sums of squares can have left

_EQUAL = 1e-9  # relative; draws that exchange all labels of each other give the same statistic up to rounding


class Tested(NamedTuple):
    """A statistic's distribution over the draws, and its tests, each of shape (…).

    Attributes:
        null_mean: mean over the draws.
        null_sd: standard deviation (n−1) over the draws.
        z: (statistic − null_mean) / null_sd; NaN where null_sd is 0.
        p: share of draws, the real labels included, whose statistic is as large; NaN where null_sd is 0.
        p_family: share of draws, the real labels included, whose largest z over all places is as large as z.
        critical: the statistic at a place is above this value exactly where p_family is at most LEVEL.
    """

    null_mean: NDArray[np.float64]
    null_sd: NDArray[np.float64]
    z: NDArray[np.float64]
    p: NDArray[np.float64]
    p_family: NDArray[np.float64]
    critical: NDArray[np.float64]

    def stacked(self) -> NDArray[np.float64]:
        """Return all of them in the order of NULL_AND_LIMIT, (…, null)."""
        return np.stack(self, axis=-1)


def permuted_labels(
    positive_folds: Int64[np.ndarray, " p"], negative_folds: Int64[np.ndarray, " q"], *, paired: bool
) -> Bool[np.ndarray, "draw sample"]:
    """Return which samples count as positive: in row 0 those of P, in DRAWS further rows after a random permutation.

    The samples are those of P, then those of N; pair i is sample i of both. The draws depend only on the arguments, so
    they are the same at all sites, layers and positions.
    """
    n_p, random = len(positive_folds), np.random.default_rng(_SEED)
    folds = np.concatenate([positive_folds, negative_folds])
    labels = np.tile(np.arange(len(folds)) < n_p, (1 + DRAWS, 1))
    if paired:
        kept = random.random((DRAWS, n_p)) < 0.5
        labels[1:] = np.hstack([kept, ~kept])
        return labels
    for fold in np.unique(folds):
        labels[1:, folds == fold] = random.permuted(labels[1:, folds == fold], axis=1)
    return labels


def auroc(
    scores: Float64[np.ndarray, "draw sample"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, " draw"]:
    """Return the area under the ROC curve under each draw; ties count half. NaN if a score is NaN."""
    n_p, n_q = labels.sum(axis=1), (~labels).sum(axis=1)
    ranks = rankdata(scores, axis=1, nan_policy="propagate")
    return ratio((ranks * labels).sum(axis=1) - n_p * (n_p + 1) / 2, (n_p * n_q).astype(np.float64))


def accuracy(
    scores: Float64[np.ndarray, "draw sample"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, " draw"]:
    """Return the share of samples whose score has the sign of their own set under each draw. NaN if a score is NaN."""
    correct = np.where(labels, scores > 0, scores < 0)
    return np.where(np.isnan(scores).any(axis=1), np.nan, correct.mean(axis=1))


def paired_accuracy(
    scores: Float64[np.ndarray, "draw sample"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, " draw"]:
    """Return the share of pairs whose positive sample has the larger score under each draw; ties count half."""
    first, second = np.hsplit(scores, 2)
    differences = np.where(np.hsplit(labels, 2)[0], first - second, second - first)
    return np.asarray(((1 + np.sign(differences)) / 2).mean(axis=1))


def silhouettes(
    gram: Float64[np.ndarray, "sample sample"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, " draw"]:
    """Return the mean silhouette of the two sets under each draw, as `groups/gram/formulas.py` defines it.

    NaN if a set has fewer than two samples.
    """
    distances = np.sqrt(squared_distances(gram))
    to_positive = labels @ distances
    to_negative = distances.sum(axis=0) - to_positive
    n_p, n_q = (one.sum(axis=1, keepdims=True).astype(np.float64) for one in (labels, ~labels))
    within = np.where(labels, ratio(to_positive, n_p - 1), ratio(to_negative, n_q - 1))
    between = np.where(labels, ratio(to_negative, n_q), ratio(to_positive, n_p))
    larger = np.maximum(within, between)
    values = np.where(larger == 0, 0.0, ratio(between - within, larger))
    return np.asarray(values.mean(axis=1))


def permutation_test(statistic: Float64[np.ndarray, "draw *places"]) -> Tested:
    """Return the one-sided tests of a statistic whose large values speak for a difference.

    Places without a statistic, NaN, are outside the family. The z of each row is relative to mean and standard
    deviation of all other rows, so that all rows are exchangeable if the labels are.

    Args:
        statistic: at each place, first with the real labels, then with those of each draw.
    """
    n, whole = len(statistic), statistic.mean(axis=0)
    deviations = statistic - whole
    means = whole - deviations / (n - 1)  # of all other rows
    total = (deviations**2).sum(axis=0)
    squares = total - deviations**2 * (n / (n - 1))
    squares = np.where(squares <= _CANCELLED * total, 0, squares)  # the other rows are equal, up to rounding
    sds = np.sqrt(squares / (n - 2))
    sds = np.where(sds <= _EQUAL * np.abs(means), 0, sds)
    z = ratio(statistic - means, sds)
    largest = np.fmax.reduce(z[1:].reshape(n - 1, -1), axis=1, initial=np.nan)
    critical = np.sort(largest)[-int(LEVEL * n)]
    return Tested(
        null_mean=means[0],
        null_sd=sds[0],
        critical=np.where(sds[0] > 0, means[0] + critical * sds[0], np.nan),
        z=z[0],
        p=_share(statistic[1:], np.where(sds[0] > 0, statistic[0], np.nan)),
        p_family=_share(np.expand_dims(largest, tuple(range(1, z.ndim))), z[0]),
    )


def _share(null: NDArray[np.float64], observed: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of draws, the real labels included, that are as large as the observed value."""
    as_large = (null >= observed - _EQUAL * np.abs(observed)).sum(axis=0)
    return np.where(np.isnan(observed), np.nan, (1 + as_large) / (1 + len(null)))


def cosines_of_independent_draws(
    first: Float64[np.ndarray, "draw d_model"], second: Float64[np.ndarray, "draw d_model"]
) -> tuple[float, float, float]:
    """Return mean, standard deviation (n−1) and z of the cosine between two contrasts' differences of means.

    Two contrasts of the same sizes have the same permutations. So each draw of the first one is compared with all other
    draws of the second one, which are independent of it, and not with its own. z is that of the real labels; NaN
    without a spread, or if a difference is zero.

    Args:
        first: differences of the means of one contrast; row 0 has the real labels.
        second: those of the other contrast, of other prompts.
    """
    cosines = unit(first) @ unit(second).T
    drawn = cosines[1:, 1:][~np.eye(len(first) - 1, dtype=bool)]
    mean, sd = drawn.mean(), drawn.std(ddof=1)
    z = ratio(cosines[0, 0] - mean, np.where(sd > _CANCELLED, sd, 0.0))
    return float(mean), float(sd), float(z)


def cosines_between_layers(
    differences: Float[np.ndarray, "draw layer d_model"],
) -> tuple[Float64[np.ndarray, "layer layer_other"], Float64[np.ndarray, "layer layer_other"]]:
    """Return mean and standard deviation (n−1), over the draws, of the cosines between layers' differences of means."""
    units = (unit(difference.astype(np.float64)) for difference in differences)
    cosines = np.stack([one @ one.T for one in units])
    return cosines.mean(axis=0), cosines.std(axis=0, ddof=1)
