"""What vectors of the stream say in words of the vocabulary, swept in blocks so that memory stays small. Pure.

Rankings are by raw dot product, in float32; what is averaged is in float64.
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
"""Rows of the vocabulary that are looked at together."""

Rows = Callable[[slice], torch.Tensor]
"""Some rows of a table of the vocabulary, (token, d_model), in float32."""

ENDS = {"top": True, "bottom": False}


@dataclass(frozen=True)
class Tops:
    """The tokens that score highest, or lowest, with each vector, best first: ids and scores, (…, place)."""

    ids: Int[np.ndarray, "*vector place"]
    scores: Float[np.ndarray, "*vector place"]

    def raised(self, by: Float[np.ndarray, "*vector"]) -> "Tops":
        """Return the same with something added to all scores of a vector."""
        return Tops(self.ids, self.scores + by[..., None])


@dataclass(frozen=True)
class Request:
    """Vectors that are looked up in a table, (…, column).

    Attributes:
        vectors: the vectors.
        ends: which ends of the ranking are wanted, `top` or `bottom`.
        first_column: where the columns of the table begin that they meet.
    """

    vectors: NDArray[np.floating]
    ends: tuple[str, ...]
    first_column: int = 0


def top_tokens(rows: Rows, n_tokens: int, requests: Sequence[Request], count: int) -> list[dict[str, Tops]]:
    """Return the best tokens of each request's vectors, by end.

    Args:
        rows: a table of the vocabulary.
        n_tokens: how many rows take part.
        requests: what is looked up.
        count: tokens in a list.
    """
    vectors = [_flat(request.vectors) for request in requests]
    found: list[dict[str, tuple[torch.Tensor, torch.Tensor]]] = [{} for _ in requests]
    for start in range(0, n_tokens, BLOCK_TOKENS):
        block = rows(slice(start, min(start + BLOCK_TOKENS, n_tokens)))
        for best, ours, request in zip(found, vectors, requests, strict=True):
            columns = slice(request.first_column, request.first_column + ours.shape[1])
            scores = ours @ block[:, columns].T
            for end in request.ends:
                values, ids = scores.topk(min(count, len(block)), largest=ENDS[end])
                best[end] = _merged(best.get(end), (values, ids + start), count, ENDS[end])
    return [
        {
            end: Tops(ids.reshape(shape).numpy(), values.reshape(shape).double().numpy())
            for end, (values, ids) in best.items()
            for shape in [(*request.vectors.shape[:-1], ids.shape[1])]
        }
        for best, request in zip(found, requests, strict=True)
    ]


def _flat(vectors: NDArray[np.floating]) -> torch.Tensor:
    flat = vectors.reshape(-1, vectors.shape[-1])
    return torch.from_numpy(np.ascontiguousarray(flat, dtype=np.float32))


def _merged(
    known: tuple[torch.Tensor, torch.Tensor] | None, new: tuple[torch.Tensor, torch.Tensor], count: int, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    if known is None:
        return new
    values, ids = (torch.cat(pair, dim=1) for pair in zip(known, new, strict=True))
    values, places = values.topk(min(count, values.shape[1]), largest=largest)
    return values, ids.gather(1, places)


def with_bias(rows: Rows, bias: torch.Tensor | None) -> Rows:
    """Return a table with a bias for each token in one more column; vectors that are to meet it end in a one."""
    if bias is None:
        return rows
    return lambda some: torch.cat([rows(some), bias[some, None]], dim=1)


def meeting_bias(vectors: NDArray[np.float64], bias: torch.Tensor | None) -> NDArray[np.float64]:
    """Return vectors that meet the bias of such a table."""
    return vectors if bias is None else np.concatenate([vectors, np.ones_like(vectors[..., :1])], axis=-1)


def ranks_of(
    rows: Rows, n_tokens: int, vectors: Float[np.ndarray, "vector d_model"], tokens: Int[np.ndarray, " vector"]
) -> Int[np.ndarray, " vector"]:
    """Return the rank of one token for each vector, by raw dot product over the vocabulary; 1 is the highest."""
    ours = _flat(vectors)
    own = torch.stack([vector @ rows(slice(token, token + 1))[0] for vector, token in zip(ours, tokens, strict=True)])
    above = torch.zeros(len(ours), dtype=torch.int64)
    for start in range(0, n_tokens, BLOCK_TOKENS):
        stop = min(start + BLOCK_TOKENS, n_tokens)
        greater = ours @ rows(slice(start, stop)).T > own[:, None]
        # A product of one row and one of many may round differently: the token is never above itself.
        inside = torch.from_numpy((tokens >= start) & (tokens < stop))
        greater[inside, torch.from_numpy(tokens)[inside] - start] = False
        above += greater.sum(dim=1)
    return (above + 1).numpy()


def standard_rows(rows: Rows, norm: Norm) -> Rows:
    """Return a table as a norm has it before its scale and bias."""
    return lambda some: torch.from_numpy(standardised(rows(some).numpy(), norm))


def alignment(
    read: Float[np.ndarray, "noun d_model"],
    left: Float[np.ndarray, "d_model d_head"],
    right: Float[np.ndarray, "d_model d_head"],
) -> dict[str, NDArray[Any]]:
    """Compare words' similarity ê_q·ê_k with what a head makes of it, ê_q W_QK ê_kᵀ, for each word as the query.

    Returns:
        `correlation`, Spearman's over the other words; `before` and `after`, the other word that is most similar;
        `own_rank`, the place of the word itself as a key after, 1 the highest.
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
        return {name: np.empty(0, dtype=np.int64) for name in ("before", "after", "own_rank")} | {
            "correlation": correlation
        }
    nearest = [np.where(others, side, -np.inf).argmax(axis=1) for side in (before, after)]
    own_rank = (after > after.diagonal()[:, None]).sum(axis=1) + 1
    return {
        "correlation": correlation,
        "before": nearest[0],
        "after": nearest[1],
        "own_rank": own_rank,
    }


def embedding_sphere(rows: Rows, n_tokens: int, norm: Norm) -> list[dict[str, float | str | int]]:
    """Compare the table of embeddings as it is, centred, scaled, and both, with the same on the norm's sphere.

    Centred takes out the mean over the vocabulary; scaled multiplies by √d_model over the mean length; the sphere is
    the norm without its scale and bias (arXiv 2309.07315, §3.1). Distances are L2 and 1 − cosine: mean and standard
    deviation (n−1) over the vocabulary.
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
            # |u − v|²/2 of unit vectors is 1 − cosine, and never below zero.
            cosine = ((unit(changed) - unit(sphere)) ** 2).sum(axis=1) / 2
            distances[name].append(np.stack([np.linalg.norm(changed - sphere, axis=1), cosine]))
    found: list[dict[str, float | str | int]] = []
    for name, parts in distances.items():
        whole = np.concatenate(parts, axis=1)
        usable = np.isfinite(whole).all(axis=0)  # a row of zeros has no direction
        l2, cosine = whole[:, usable]
        row: dict[str, float | str | int] = {"setting": name, "n": int(usable.sum())}
        row |= {"l2_mean": float(l2.mean()), "l2_std": float(l2.std(ddof=1))}
        row |= {"cosine_distance_mean": float(cosine.mean()), "cosine_distance_std": float(cosine.std(ddof=1))}
        found.append(row)
    return found


def embedding_lengths(rows: Rows, n_tokens: int, norm: Norm) -> dict[str, NDArray[np.float64]]:
    """Return ‖e‖ and, for the norm's γ and β where it has them, ‖γ⊙e‖, and each plus β·e, of every token."""
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
