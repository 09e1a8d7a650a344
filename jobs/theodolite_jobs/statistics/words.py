"""Vectors of the stream decoded into tokens, in blocks of the vocabulary so that memory stays small. Pure.

Tokens are ranked by raw dot products in float32. Averages are in float64.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import rankdata

from theodolite_jobs.statistics.norms import Norm, standardised, unit
from theodolite_jobs.statistics.ratio import ratio

BLOCK_TOKENS = 4096
"""Rows of the vocabulary in one block."""

Rows = Callable[[slice], torch.Tensor]
"""Return some rows of a table over the vocabulary, (token, d_model), in float32."""

ENDS = {"top": 1, "bottom": -1}  # the sign with which that end of a ranking has the largest scores


@dataclass(frozen=True)
class RankedTokens:
    """The tokens at one end of each vector's ranking, the end first: ids and scores, (…, index)."""

    ids: Int[np.ndarray, "*vector index"]
    scores: Float[np.ndarray, "*vector index"]

    def shifted(self, by: Float[np.ndarray, "*vector"]) -> "RankedTokens":
        """Return the same tokens with a constant added to all scores of each vector."""
        return RankedTokens(self.ids, self.scores + by[..., None])


@dataclass(frozen=True)
class Request:
    """Vectors to decode against some columns of a table.

    Attributes:
        vectors: the vectors, (…, column).
        ends: requested ends of the ranking, `top` or `bottom`.
        first_column: index of the table's column that the vectors' first component multiplies.
    """

    vectors: NDArray[np.floating]
    ends: tuple[str, ...]
    first_column: int = 0


def top_tokens(rows: Rows, n_tokens: int, requests: Sequence[Request], count: int) -> list[dict[str, RankedTokens]]:
    """Return the first tokens of each request's rankings, by end.

    Args:
        rows: a table over the vocabulary.
        n_tokens: number of rows to rank.
        requests: vectors, ends and columns.
        count: number of tokens to return at each end; fewer if the vocabulary is smaller.
    """
    vectors = [_flat(request.vectors) for request in requests]
    rankings: list[dict[str, RankedTokens]] = [
        {end: RankedTokens(np.empty((len(flat), 0), dtype=np.int64), np.empty((len(flat), 0))) for end in request.ends}
        for flat, request in zip(vectors, requests, strict=True)
    ]
    for start in range(0, n_tokens, BLOCK_TOKENS):
        block = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens)))
        for ranking, flat, request in zip(rankings, vectors, requests, strict=True):
            columns = slice(request.first_column, request.first_column + flat.shape[1])
            scores = (flat @ block[:, columns].T).numpy()
            for end in request.ends:
                ranking[end] = _merged(ranking[end], scores, start, count, ENDS[end])
    return [
        {
            end: RankedTokens(ranked.ids.reshape(shape), ranked.scores.reshape(shape))
            for end, ranked in ranking.items()
            for shape in [(*request.vectors.shape[:-1], ranked.ids.shape[1])]
        }
        for ranking, request in zip(rankings, requests, strict=True)
    ]


def _flat(vectors: NDArray[np.floating]) -> torch.Tensor:
    flat = vectors.reshape(-1, vectors.shape[-1])
    return torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float32))


def _merged(known: RankedTokens, scores: NDArray[np.float32], start: int, count: int, sign: int) -> RankedTokens:
    """Return the first `count` of the known tokens and a block's tokens `start` and following, by score, then by id.

    In all blocks but the first, few scores exceed the last known score. To compare, and to sort these few, takes less
    than half the time of `torch.topk` on each block.
    """
    (n_vectors, n_known), n_new = known.ids.shape, scores.shape[1]
    signed = scores if sign > 0 else -scores
    if n_known == count:
        trails = signed <= sign * known.scores[:, -1:].astype(np.float32)
    else:
        at, filled = n_new - min(count, n_new), np.where(np.isnan(signed), -np.inf, signed)
        trails = signed < np.partition(filled, at, axis=1)[:, [at]]
    vector, column = np.divmod(np.flatnonzero(~trails), n_new)  # with NaN, which both comparisons leave in
    vectors = np.concatenate([np.repeat(np.arange(n_vectors), n_known), vector])
    ids = np.concatenate([known.ids.ravel(), column + start])
    values = np.concatenate([known.scores.ravel(), scores[vector, column]])
    order = np.lexsort((-sign * values, vectors))  # of equal scores the smaller id is first, and NaN is last
    firsts = np.searchsorted(vectors[order], np.arange(n_vectors))
    leading = order[firsts[:, None] + np.arange(min(count, n_known + n_new))]
    return RankedTokens(ids[leading], values[leading])


def with_bias(rows: Rows, bias: torch.Tensor | None) -> Rows:
    """Return a table with each token's bias as an additional last column; `augmented` vectors multiply it by 1."""
    if bias is None:
        return rows
    return lambda some: torch.cat([rows(some), bias[some, None]], dim=1)


def augmented(vectors: NDArray[np.float64], bias: torch.Tensor | None) -> NDArray[np.float64]:
    """Return vectors with an additional last component of 1 for a table `with_bias`; unchanged without a bias."""
    return vectors if bias is None else np.concatenate([vectors, np.ones_like(vectors[..., :1])], axis=-1)


def token_ranks(
    rows: Rows, n_tokens: int, vectors: Float[np.ndarray, "vector d_model"], tokens: Int[np.ndarray, " vector"]
) -> Int[np.ndarray, " vector"]:
    """Return the rank of one token for each vector, by raw dot product over the vocabulary; 1 is the largest."""
    flat = _flat(vectors)
    distinct, number = np.unique(tokens, return_inverse=True)
    table = torch.cat([rows(slice(token, token + 1)) for token in distinct])
    own = (flat * table[number]).sum(dim=1)
    above = torch.zeros(len(flat), dtype=torch.int64)
    for start in range(0, n_tokens, BLOCK_TOKENS):
        stop = min(start + BLOCK_TOKENS, n_tokens)
        greater = flat @ rows(slice(start, stop)).T > own[:, None]
        # The product with one row may round differently from the product with many; a token never ranks above itself.
        inside = torch.from_numpy((tokens >= start) & (tokens < stop))
        greater[inside, torch.from_numpy(tokens)[inside] - start] = False
        above += greater.sum(dim=1)
    return (above + 1).numpy()


def standardised_rows(rows: Rows, norm: Norm) -> Rows:
    """Return a table of the norm's outputs for each row, before scale and bias."""
    return lambda some: torch.from_numpy(standardised(rows(some).numpy(), norm))


def alignment(
    read: Float[np.ndarray, "noun d_model"],
    left: Float[np.ndarray, "d_model d_head"],
    right: Float[np.ndarray, "d_model d_head"],
) -> dict[str, NDArray[Any]]:
    """Return how a head changes the similarity of words, ê_q·ê_k before and ê_q W_QK ê_kᵀ after, by query word.

    Returns:
        `correlation`: Spearman correlation of both similarities over the other words; NaN with fewer than three words.
        `before` and `after`: index of the other word with the largest similarity.
        `own_rank`: rank of the word itself as a key after the head, 1 for the largest score.
    """
    before, after = read @ read.T, (read @ left) @ (read @ right).T
    others = ~np.eye(len(read), dtype=bool)
    correlation = np.full(len(read), np.nan)
    if len(read) > 2:
        ranks = [rankdata(side[others].reshape(len(read), -1), axis=1) for side in (before, after)]
        x, y = (rank - rank.mean(axis=1, keepdims=True) for rank in ranks)
        spread = np.sqrt((x**2).sum(axis=1) * (y**2).sum(axis=1))
        correlation = ratio((x * y).sum(axis=1), spread)
    if not len(read):
        empty = np.empty(0, dtype=np.int64)
        return {"correlation": correlation, "before": empty, "after": empty, "own_rank": empty}
    nearest = [np.where(others, side, -np.inf).argmax(axis=1) for side in (before, after)]
    own_rank = (after > after.diagonal()[:, None]).sum(axis=1) + 1
    return {"correlation": correlation, "before": nearest[0], "after": nearest[1], "own_rank": own_rank}


def embedding_sphere(rows: Rows, n_tokens: int, norm: Norm) -> list[dict[str, float | str | int]]:
    """Return distances between embeddings and their projections on the norm's sphere: one row for each setting.

    The settings are the embeddings as stored, centred, scaled, and both. Centring subtracts the mean over the
    vocabulary; scaling multiplies by √d_model over the mean length. The projection is the norm without scale and bias.
    The distances are L2 and 1 − cosine, as mean and standard deviation (n−1) over the vocabulary; rows of zeros are
    left out. Source: arXiv 2309.07315, §3.1.
    """
    blocks = [slice(start, min(start + BLOCK_TOKENS, n_tokens)) for start in range(0, n_tokens, BLOCK_TOKENS)]
    total, length = np.zeros(len(norm.scale)), 0.0
    for block in blocks:
        exact = rows(block).double().numpy()
        total += exact.sum(axis=0)
        length += float(np.linalg.norm(exact, axis=1).sum())
    centre, factor = total / n_tokens, np.sqrt(len(norm.scale)) * n_tokens / length
    settings: Mapping[str, Callable[[NDArray[np.float64]], NDArray[np.float64]]] = {
        "original": lambda e: e,
        "centred": lambda e: e - centre,
        "scaled": lambda e: e * factor,
        "centred and scaled": lambda e: (e - centre) * factor,
    }
    distances: dict[str, list[NDArray[np.float64]]] = {name: [] for name in settings}
    for block in blocks:
        exact = rows(block).double().numpy()
        sphere = standardised(exact, norm)
        for name, change in settings.items():
            changed = change(exact)
            # For unit vectors, |u − v|²/2 equals 1 − cosine and is never negative.
            cosine = ((unit(changed) - unit(sphere)) ** 2).sum(axis=1) / 2
            distances[name].append(np.stack([np.linalg.norm(changed - sphere, axis=1), cosine]))
    table: list[dict[str, float | str | int]] = []
    for name, parts in distances.items():
        whole = np.concatenate(parts, axis=1)
        usable = np.isfinite(whole).all(axis=0)  # a row of zeros has no direction
        l2, cosine = whole[:, usable]
        row: dict[str, float | str | int] = {"setting": name, "n": int(usable.sum())}
        row |= {"l2_mean": float(l2.mean()), "l2_std": float(l2.std(ddof=1))}
        row |= {"cosine_distance_mean": float(cosine.mean()), "cosine_distance_std": float(cosine.std(ddof=1))}
        table.append(row)
    return table


def embedding_lengths(rows: Rows, n_tokens: int, norm: Norm) -> dict[str, NDArray[np.float64]]:
    """Return ‖e‖ of each token, ‖γ⊙e‖ if the norm has a scale γ, and both plus β·e if it has a bias β, by measure."""
    parts: dict[str, list[NDArray[np.float64]]] = {}
    for start in range(0, n_tokens, BLOCK_TOKENS):
        exact = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens))).double().numpy()
        measures = {"norm": np.linalg.norm(exact, axis=1)}
        if (norm.scale != 1).any():
            measures["scaled norm"] = np.linalg.norm(exact * norm.scale, axis=1)
        if norm.bias.any():
            toward = exact @ norm.bias
            measures |= {f"{name} + bias": lengths + toward for name, lengths in measures.items()}
        for name, values in measures.items():
            parts.setdefault(name, []).append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}
