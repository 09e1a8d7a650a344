"""How much of the difference of two means is noise, and how well its direction would repeat. Pure, in float64."""

from itertools import combinations

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.folds import FOLDS, Folds
from theodolite_jobs.statistics.ratio import ratio

_HALF = 2  # folds of each half of a split; of five folds, one is in neither half


def noise_share(
    squared_length: Float64[np.ndarray, "*dims"],
    trace_p: Float64[np.ndarray, "*dims"],
    trace_q: Float64[np.ndarray, "*dims"],
    n_p: int,
    n_q: int,
    pairs: Float64[np.ndarray, "*dims"],
) -> Float64[np.ndarray, "*dims"]:
    """Return the share of |a − b|² that sampling noise is expected to add.

    The expected |a − b|² exceeds the squared distance of the true means by tr Σ_P/n_P + tr Σ_N/n_N − 2 tr Σ_PN/n. The
    share can exceed 1, since |a − b|² varies too. NaN if the means are equal.

    The arguments are |a − b|², the traces of both covariances, the numbers of samples, and tr Σ_PN/n, which is 0 for
    independent sets.
    """
    return ratio(trace_p / n_p + trace_q / n_q - 2 * pairs, squared_length)


def split_half_cosine(positive: Folds, negative: Folds) -> Float64[np.ndarray, "*dims"]:
    """Return the mean cosine between the directions of two disjoint halves, each of two of the five folds.

    The mean is over all 15 splits. NaN if a half has no sample of a set.
    """
    differences = {pair: _mean(positive, pair) - _mean(negative, pair) for pair in combinations(range(FOLDS), _HALF)}
    cosines = [
        ratio(np.vecdot(d, e), np.sqrt(np.vecdot(d, d) * np.vecdot(e, e)))
        for (first, d), (second, e) in combinations(differences.items(), 2)
        if not set(first) & set(second)
    ]
    return np.asarray(np.mean(cosines, axis=0))


def samples_of_half(positive: Folds, negative: Folds) -> tuple[float, float]:
    """Return the mean numbers of samples of both sets in a half of `split_half_cosine`."""
    return tuple(_HALF * float(side.counts.mean()) for side in (positive, negative))  # type: ignore[return-value]


def reliability(
    cosine: Float64[np.ndarray, "*dims"], half: tuple[float, float], whole: tuple[int, int]
) -> Float64[np.ndarray, "*dims"]:
    """Return the expected cosine between the direction of all samples and that of as many other samples.

    Spearman and Brown's formula, k·r/(1 + (k − 1)·r), with the cosine r between halves and the ratio k of the effective
    sizes of the whole and of a half. The effective size m of a contrast is 1/m = 1/n_P + 1/n_N. In many dimensions the
    formula holds for directions: r is S/(S + σ²/m), with the squared distance S of the true means. The result is 0
    where r is not positive.

    Args:
        cosine: the mean cosine between the directions of two halves.
        half: mean numbers of samples of both sets in a half.
        whole: numbers of samples of both sets.
    """
    k = _effective_size(whole) / _effective_size(half)
    positive = np.maximum(cosine, 0.0)  # which keeps NaN
    return np.asarray(k * positive / (1 + (k - 1) * positive))


def _effective_size(numbers: tuple[float, ...] | tuple[int, ...]) -> float:
    return 1 / sum(1 / n for n in numbers) if all(numbers) else float("nan")


def _mean(folds: Folds, chosen: tuple[int, ...]) -> NDArray[np.float64]:
    return Folds(*(array[list(chosen)] for array in (folds.counts, folds.means, folds.deviations))).mean
