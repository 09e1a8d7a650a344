"""Nouns through attention heads: whether a head scores related nouns higher, against two nulls. Pure, in float64.

Before the head, two nouns q and k are as similar as ê_q·ê_k. After it, the query q gives the key k the score
ê_q W_QK ê_kᵀ. The relatedness of a head is the mean over nouns q of Spearman's correlation of both over the other
nouns k (arXiv 2309.07315, §3.3). It is compared with two nulls:

- Permuted nouns: the scores of a query are compared with the similarities of another noun. The keys keep their labels,
  so keys that all queries score high, and nouns that are similar to all, have the same effect in each draw.
- Random matrices: W_QK is replaced by O W_QK, with the same singular values and a random orthogonal O.
"""

import numpy as np
from jaxtyping import Bool, Float, Float64, Int64
from numpy.typing import NDArray
from scipy.stats import rankdata

from theodolite_jobs.statistics.permutations import DRAWS
from theodolite_jobs.statistics.ratio import ratio

_SEED = 0

_LEAST_NOUNS = 3  # a correlation over fewer than two other nouns does not exist

_CONSTANT = 1e-9  # of a variance of 1; below, only rounding is left


def noun_permutations(n_nouns: int) -> Int64[np.ndarray, "draw noun"]:
    """Return the noun whose scores each noun gets: itself in row 0, after a random permutation in DRAWS further rows.

    The draws depend only on the number of nouns, so they are the same in all heads.
    """
    rows = np.tile(np.arange(n_nouns), (1 + DRAWS, 1))
    rows[1:] = np.random.default_rng(_SEED).permuted(rows[1:], axis=1)
    return rows


def rank_profiles(values: Float64[np.ndarray, "noun noun"]) -> Float64[np.ndarray, "noun noun"]:
    """Return the ranks of each row over the other nouns, centred and of unit length, with 0 on the diagonal.

    The dot product of two profiles of a noun is Spearman's correlation. The profile of a constant row is NaN.
    """
    n, others = len(values), ~np.eye(len(values), dtype=bool)
    profiles = np.zeros((n, n))
    if n < _LEAST_NOUNS:
        return np.full((n, n), np.nan)
    ranks = rankdata(values[others].reshape(n, -1), axis=1)
    centred = ranks - ranks.mean(axis=1, keepdims=True)
    lengths = np.sqrt((centred**2).sum(axis=1, keepdims=True))
    profiles[others] = ratio(centred, np.broadcast_to(lengths, centred.shape)).ravel()
    return profiles


def relatedness(
    before: Float64[np.ndarray, "noun noun"],
    after: Float64[np.ndarray, "noun noun"],
    permutations: Int64[np.ndarray, "draw noun"],
) -> Float64[np.ndarray, " draw"]:
    """Return the mean over nouns of the rank correlation of both matrices' rows, under each permutation of queries.

    In a draw, the similarities of noun q and the scores of noun π(q) have n − 2 other nouns in common. Their
    correlation is over these alone: both nouns as keys are left out of both rows.

    Args:
        before: rank profiles of the similarities.
        after: rank profiles of the scores.
        permutations: from `noun_permutations`.
    """
    return _matched_means(_common_correlations(after, before), permutations)


def _common_correlations(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the correlation of row i of x with row j of y over all columns but i and j.

    The rows are rank profiles, so their sums are 0 and their sums of squares 1 with the left-out column.
    """
    n_common = max(len(x) - 2, 1)  # on the diagonal the left-out values are 0, and the number does not matter
    products = x @ y.T - x * y.T / n_common
    left = 1 - x**2 * (1 + 1 / n_common)
    right = 1 - y.T**2 * (1 + 1 / n_common)
    squares = np.where(np.minimum(left, right) > _CONSTANT, left * right, 0)
    return ratio(products, np.sqrt(squares))


def own_first(
    scores: Float64[np.ndarray, "noun noun"], permutations: Int64[np.ndarray, "draw noun"]
) -> Float64[np.ndarray, " draw"]:
    """Return the share of nouns whose own key has the largest score, under each permutation of queries."""
    if not len(scores):
        return np.full(len(permutations), np.nan)
    largest: Bool[np.ndarray, "noun noun"] = scores >= scores.max(axis=1, keepdims=True)
    return _matched_means(largest.astype(np.float64), permutations)


def _matched_means(
    values: Float64[np.ndarray, "noun noun"], permutations: Int64[np.ndarray, "draw noun"]
) -> NDArray[np.float64]:
    """Return the mean over nouns q of values[π(q), q] for each permutation π."""
    if not len(values):
        return np.full(len(permutations), np.nan)
    return np.asarray(values[permutations, np.arange(len(values))].mean(axis=1))


def random_bases(d_model: int, rank: int, n_rows: int) -> Float64[np.ndarray, "draw row rank"]:
    """Return the first rows of DRAWS random matrices (d_model, rank) with orthonormal columns, uniformly distributed.

    The distribution is the same for each choice of orthonormal coordinates of the rows. So for nouns X = L V, with
    orthonormal rows V, L times these rows is distributed as X times the whole matrix.
    """
    random = np.random.default_rng(_SEED)
    draws = (random.normal(size=(d_model, rank)) for _ in range(DRAWS))
    # The sign convention of QR makes the first components of the columns dependent; random signs undo it.
    signs = random.choice([-1.0, 1.0], size=(DRAWS, 1, rank))
    return np.asarray(np.stack([np.linalg.qr(draw)[0][:n_rows] for draw in draws]) * signs)


def random_relatedness(
    before: Float64[np.ndarray, "noun noun"],
    rows: Float64[np.ndarray, "draw noun rank"],
    keys: Float64[np.ndarray, "rank noun"],
) -> Float64[np.ndarray, " draw"]:
    """Return the relatedness of random matrices: of the scores `rows @ keys` of each draw.

    Args:
        before: rank profiles of the similarities.
        rows: nouns times a random basis.
        keys: T C Wᵀ Xᵀ for W_QK = Q T C Wᵀ, with orthonormal Q: the nouns as keys in the basis.
    """
    n = len(before)
    if n < _LEAST_NOUNS:
        return np.full(len(rows), np.nan)
    weights = np.arange(-1.0, n - 1) - (n - 2) / 2
    weights[0] = 0.0
    weights /= np.linalg.norm(weights)
    means = np.empty(len(rows))
    for draw, own in enumerate(rows):  # one after the other, so that many nouns fit into memory
        scores = (own @ keys).astype(np.float32)  # single precision halves the time of the sort
        np.fill_diagonal(scores, -np.inf)  # first in the order, with the weight 0
        means[draw] = (np.take_along_axis(before, np.argsort(scores, axis=1), axis=1) @ weights).mean()
    return means


def kept_share(
    before: Int64[np.ndarray, "*list index"], after: Int64[np.ndarray, "*list index"]
) -> Float[np.ndarray, "*list"]:
    """Return the share of the ids of each list that the other list of the same length also has."""
    return np.asarray((before[..., :, None] == after[..., None, :]).any(axis=-1).mean(axis=-1))
