"""Vectors of the stream decoded into tokens, in blocks of the vocabulary so that memory stays small. Pure.

Tokens are ranked by raw dot products in float32, on the torch device of the table.

A GPU sums the products of a score in another order than a CPU. So scores may differ by 1e-5 of |vector|·|row|, and
tokens whose scores are closer than this may change places.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from scipy.stats import rankdata

from theodolite_jobs.statistics.norms import Norm, divisor, projected
from theodolite_jobs.statistics.ratio import ratio

BLOCK_TOKENS = 4096
"""Rows of the vocabulary in one block."""

SCORE_BYTES = 2**24
"""Maximum number of bytes of the scores that are computed at once: those of 1,024 vectors and a block of tokens."""

GROUP_TOKENS = 64
"""Scores of which only the extreme is compared with a threshold first."""

Rows = Callable[[slice], torch.Tensor]
"""Return some rows of a table over the vocabulary, (token, d_model), in float32, on one device."""

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


def top_tokens(
    rows: Rows, n_tokens: int, requests: Sequence[Request], count: int, device: torch.device
) -> list[dict[str, RankedTokens]]:
    """Return the first tokens of each request's rankings, by end.

    Args:
        rows: a table over the vocabulary, on `device`.
        n_tokens: number of rows to rank.
        requests: vectors, ends and columns.
        count: number of tokens to return at each end; fewer if the vocabulary is smaller.
        device: the device that multiplies and compares; only the few scores that can be among the first leave it.
    """
    parts = [_parts(request.vectors, device) for request in requests]
    rankings = [
        [
            {end: RankedTokens(np.empty((len(part), 0), np.int64), np.empty((len(part), 0))) for end in request.ends}
            for part in of_request
        ]
        for of_request, request in zip(parts, requests, strict=True)
    ]
    for start in range(0, n_tokens, BLOCK_TOKENS):
        block = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens)))
        for of_request, rankings_of_request, request in zip(parts, rankings, requests, strict=True):
            columns = block[:, request.first_column : request.first_column + request.vectors.shape[-1]]
            for part, ranking in zip(of_request, rankings_of_request, strict=True):
                scores = part @ columns.T
                for end in request.ends:
                    ranking[end] = _merged(ranking[end], scores, start, count, end)
    return [
        {end: _joined([ranking[end] for ranking in of_request], request.vectors.shape[:-1]) for end in request.ends}
        for of_request, request in zip(rankings, requests, strict=True)
    ]


def _parts(vectors: NDArray[np.floating], device: torch.device) -> Sequence[torch.Tensor]:
    """Return flat vectors in float32 on the device, in parts whose scores over a block of tokens fit `SCORE_BYTES`."""
    flat = vectors.reshape(-1, vectors.shape[-1])
    moved = torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float32)).to(device)
    parts: Sequence[torch.Tensor] = moved.split(max(1, SCORE_BYTES // (4 * BLOCK_TOKENS)))
    return parts


def _joined(parts: Sequence[RankedTokens], shape: tuple[int, ...]) -> RankedTokens:
    ids, scores = (np.concatenate([getattr(part, name) for part in parts]) for name in ("ids", "scores"))
    return RankedTokens(ids.reshape(*shape, ids.shape[1]), scores.reshape(*shape, scores.shape[1]))


def _merged(known: RankedTokens, scores: torch.Tensor, start: int, count: int, end: str) -> RankedTokens:
    """Return the first `count` of the known tokens and a block's tokens `start` and following, by score, then by id.

    In all blocks but the first, few scores exceed the last known score. To find and sort these few takes less than half
    the time of `torch.topk` on each block. Each row of the sorted arrays has a vector's known tokens and its new ones.
    """
    (n_vectors, n_known), n_new = known.ids.shape, scores.shape[1]
    found = _leading(scores, known, count, end)
    vector, column, values = (part.cpu().numpy() for part in (*found, scores[found]))
    counts, n_kept = np.bincount(vector, minlength=n_vectors), min(count, n_known + n_new)
    width = max(n_kept, n_known + counts.max(initial=0))
    ids, all_values = np.zeros((n_vectors, width), np.int64), np.full((n_vectors, width), np.nan)
    ids[:, :n_known], all_values[:, :n_known] = known.ids, known.scores
    places = n_known + np.arange(len(vector)) - np.repeat(counts.cumsum() - counts, counts)
    ids[vector, places], all_values[vector, places] = column + start, values
    # A stable sort: of equal scores the smaller id is first. NaN is last, and the unused places of a row follow it.
    order = np.argsort(-ENDS[end] * all_values, axis=1, kind="stable")[:, :n_kept]
    return RankedTokens(np.take_along_axis(ids, order, axis=1), np.take_along_axis(all_values, order, axis=1))


def _leading(scores: torch.Tensor, known: RankedTokens, count: int, end: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return vector and token of the scores that can be among the first `count`, in this order; NaN is among them.

    Most groups of tokens contain no such score. So the extreme of each group is compared first, and then the scores of
    the remaining groups.
    """
    is_top, (n_vectors, n_new) = end == "top", scores.shape
    size = GROUP_TOKENS if n_new % GROUP_TOKENS == 0 and n_new >= GROUP_TOKENS * count else 1
    groups = scores.view(n_vectors, n_new // size, size)
    extreme = groups.amax(dim=2) if is_top else groups.amin(dim=2)  # NaN if one of the group is
    if known.ids.shape[1] == count:
        last = torch.from_numpy(known.scores[:, -1:].astype(np.float32)).to(scores.device)
        trails = torch.le if is_top else torch.ge
    else:  # as many groups as the list is long have a score that is at least this
        comparable = torch.where(extreme.isnan(), -ENDS[end] * torch.inf, extreme)
        last = comparable.topk(min(count, extreme.shape[1]), largest=is_top).values[:, -1:]
        trails = torch.lt if is_top else torch.gt
    vector, group = (~trails(extreme, last)).nonzero(as_tuple=True)  # with NaN, which no comparison leaves out
    hit, member = (~trails(groups[vector, group], last[vector])).nonzero(as_tuple=True)
    return vector[hit], group[hit] * size + member


def on_device(rows: Rows, device: torch.device) -> Rows:
    """Return a table whose blocks are moved to the device when they are read."""
    return lambda some: rows(some).to(device)


def with_bias(rows: Rows, bias: torch.Tensor | None) -> Rows:
    """Return a table with each token's bias as an additional last column; `augmented` vectors multiply it by 1."""
    if bias is None:
        return rows
    return lambda some: torch.cat([rows(some), bias[some, None]], dim=1)


def augmented(vectors: NDArray[np.float64], bias: torch.Tensor | None) -> NDArray[np.float64]:
    """Return vectors with an additional last component of 1 for a table `with_bias`; unchanged without a bias."""
    return vectors if bias is None else np.concatenate([vectors, np.ones_like(vectors[..., :1])], axis=-1)


def token_ranks(
    rows: Rows,
    n_tokens: int,
    vectors: Float[np.ndarray, "vector d_model"],
    tokens: Int[np.ndarray, " vector"],
    device: torch.device,
) -> Int[np.ndarray, " vector"]:
    """Return the rank of one token for each vector, by raw dot product over the vocabulary; 1 is the largest.

    `rows` is a table over the vocabulary on `device`.
    """
    parts = _parts(vectors, device)
    distinct, number = np.unique(tokens, return_inverse=True)
    table = torch.cat([rows(slice(token, token + 1)) for token in distinct])
    sizes = [len(part) for part in parts]
    numbers, of_parts = (torch.from_numpy(ids).to(device).split(sizes) for ids in (number, tokens))
    own = [(part * table[number]).sum(dim=1) for part, number in zip(parts, numbers, strict=True)]
    above = [torch.zeros(size, dtype=torch.int64, device=device) for size in sizes]
    for start in range(0, n_tokens, BLOCK_TOKENS):
        block = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens)))
        for part, score, token, total in zip(parts, own, of_parts, above, strict=True):
            greater = part @ block.T > score[:, None]
            # A product with one row may round differently from a product with many. A token never ranks above itself.
            inside = (token >= start) & (token < start + len(block))
            greater[inside, token[inside] - start] = False
            total += greater.sum(dim=1)
    return (torch.cat(above) + 1).cpu().numpy()


@dataclass(frozen=True)
class Standardisation:
    """The mean and the divisor with which a norm standardises each row of a table, (token, 1), in float32.

    All layers' norms have the same kind and ε, so one computation serves all layers. It runs in NumPy, and the division
    has one correct result, so standardised rows are equal on all devices.

    Attributes:
        mean: the row's mean, or 0 if the norm subtracts none.
        divisor: √(variance + ε) or √(mean square + ε).
    """

    mean: Float[torch.Tensor, "token 1"]
    divisor: Float[torch.Tensor, "token 1"]


def standardisation(rows: Rows, n_tokens: int, norm: Norm) -> Standardisation:
    """Return the means and divisors of the rows of a table."""
    means, divisors = [], []
    for start in range(0, n_tokens, BLOCK_TOKENS):
        block = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens))).numpy()
        means.append(block.mean(axis=1, keepdims=True) if norm.kind == "layer" else np.zeros_like(block[:, :1]))
        divisors.append(divisor(projected(block, norm), norm))
    return Standardisation(torch.from_numpy(np.concatenate(means)), torch.from_numpy(np.concatenate(divisors)))


def standardised_rows(rows: Rows, by: Standardisation, device: torch.device) -> Rows:
    """Return a table of a norm's outputs for each row of a table on `device`, before scale and bias."""
    mean, divisor = by.mean.to(device), by.divisor.to(device)
    return lambda some: (rows(some) - mean[some]) / divisor[some]


def alignment(
    read: Float[np.ndarray, "noun d_model"],
    queries: Float[np.ndarray, "noun d_head"],
    keys: Float[np.ndarray, "noun d_head"],
) -> dict[str, NDArray[Any]]:
    """Return how a head changes the similarity of words, ê_q·ê_k before and ê_q W_QK ê_kᵀ after, by query word.

    Args:
        read: the words as attention reads them, ê.
        queries: the head's queries of the words, ê W_Q, rotated for offset 0 and scaled as the scores are.
        keys: the head's keys of the words, ê W_K.

    Returns:
        `correlation`: Spearman correlation of both similarities over the other words; NaN with fewer than three words.
        `before` and `after`: index of the other word with the largest similarity.
        `own_rank`: rank of the word itself as a key after the head, 1 for the largest score.
    """
    before, after = read @ read.T, queries @ keys.T
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
