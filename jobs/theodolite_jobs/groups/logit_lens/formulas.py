"""What a direction of the stream changes in the logits: derivative of the final norm, then unembedding. Pure.

With the difference d of two sets' means, their midpoint m, the derivative J of the final norm at m, the unembedding's
row w of a token, and the factor s of the model's logits, the change of the token's logit is

    s·w·(J d) − its mean over the vocabulary

in nats. With c = m for `rms` and c = Πm for `layer` (Π subtracts the mean over features), r = √(mean c² + ε) and the
norm's scale γ,

    J d = γ∘(Πd/r − c·mean(c∘Πd)/r³)

This is the first-order change of the logit lens (nostalgebraist 2020) along d. The norm's bias and the bias of the
unembedding do not depend on d, so they cancel. The models' soft cap of logits is left out, and so is all that later
layers do with d: it is the direct path alone.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from numpy.typing import NDArray
from scipy.stats import t

from theodolite.groups.schema import LEVEL
from theodolite_jobs.statistics.held_out import difference_weights
from theodolite_jobs.statistics.norms import Norm, divisor, projected
from theodolite_jobs.statistics.ratio import ratio

BLOCK_TOKENS = 4096
"""Rows of the vocabulary that are in memory at once: 84 MB in float32 with 5,120 features."""

_NO_SPREAD = 1e-12  # relative to the scores; what the draws of a constant can differ by rounding

Rows = Callable[[slice], torch.Tensor]
"""Return some rows of the unembedding, (token, d_model)."""


def through_norm(
    vectors: Float64[np.ndarray, "*dims d_model"], at: Float64[np.ndarray, " d_model"], norm: Norm | None
) -> Float64[np.ndarray, "*dims d_model"]:
    """Return J v for each vector, with the derivative J of a norm at a point; v itself without a norm."""
    if norm is None:
        return vectors
    centred, moved = projected(at, norm), projected(vectors, norm)
    root = float(divisor(centred, norm)[0])
    along = (moved * centred).mean(axis=-1, keepdims=True)
    return np.asarray(norm.scale * (moved / root - centred * along / root**3))


def back_through_norm(
    rows: Float64[np.ndarray, "*dims d_model"], at: Float64[np.ndarray, " d_model"], norm: Norm | None
) -> Float64[np.ndarray, "*dims d_model"]:
    """Return Jᵀ w for each row, so that w·(J v) = (Jᵀ w)·v; w itself without a norm."""
    if norm is None:
        return rows
    centred, scaled = projected(at, norm), rows * norm.scale
    root = float(divisor(centred, norm)[0])
    along = (scaled * centred).mean(axis=-1, keepdims=True)
    return np.asarray(projected(scaled, norm) / root - centred * along / root**3)


class Leading(NamedTuple):
    """The tokens at both ends of each vector's ranking, and the mean row of the vocabulary.

    Attributes:
        raised: ids of the tokens with the largest products, the largest first, (vector, place).
        lowered: ids of the tokens with the most negative products.
        mean: mean row over all tokens that are ranked.
    """

    raised: Int64[np.ndarray, "vector place"]
    lowered: Int64[np.ndarray, "vector place"]
    mean: Float64[np.ndarray, " d_model"]


def leading_tokens(
    rows: Rows,
    is_token: Bool[np.ndarray, " token"],
    vectors: Float[np.ndarray, "vector d_model"],
    count: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda *_: None,
    block_tokens: int = BLOCK_TOKENS,
) -> Leading:
    """Return the first tokens at both ends of each vector's ranking by dot products, in one pass over the table.

    The products are in float32. In memory are one block of rows, its products with all vectors, and the tokens that
    lead so far: block_tokens·(d_model + vectors) numbers of four bytes, whatever the size of the vocabulary.

    Args:
        rows: the table over the vocabulary.
        is_token: whether each row is ranked, and counts for the mean.
        vectors: the vectors.
        count: number of tokens to return at each end; fewer if the vocabulary is smaller.
        device: the device that multiplies.
        progress: called with the numbers of read rows and of all rows.
        block_tokens: number of rows of a block.
    """
    moved = torch.from_numpy(np.ascontiguousarray(vectors, dtype=np.float32)).to(device)
    total = torch.zeros(vectors.shape[1], dtype=torch.float64)
    values = [torch.empty((len(vectors), 0), device=device) for _ in range(2)]  # of both ends, the end first
    ids = [torch.empty((len(vectors), 0), dtype=torch.int64, device=device) for _ in range(2)]
    for start in range(0, len(is_token), block_tokens):
        stop = min(start + block_tokens, len(is_token))
        new = torch.from_numpy(np.flatnonzero(is_token[start:stop]))
        block = rows(slice(start, stop)).float()[new]
        total += block.sum(dim=0, dtype=torch.float64)
        products = moved @ block.to(device).T
        new_ids = (new + start).to(device).expand(len(vectors), -1)
        for end, is_largest in enumerate((True, False)):
            known = torch.cat([values[end], products], dim=1)
            best = known.topk(min(count, known.shape[1]), dim=1, largest=is_largest)
            values[end] = best.values
            ids[end] = torch.cat([ids[end], new_ids], dim=1).gather(1, best.indices)
        progress(stop, len(is_token))
    raised, lowered = (one.cpu().numpy() for one in ids)
    return Leading(raised, lowered, total.numpy() / max(1, int(is_token.sum())))


class Changes(NamedTuple):
    """The changes of some tokens' logits, and z against permuted labels, (token,)."""

    change: Float64[np.ndarray, " token"]
    z: Float64[np.ndarray, " token"]


def changes(scores: Float64[np.ndarray, "sample token"], labels: Bool[np.ndarray, "draw sample"]) -> Changes:
    """Return the difference of the means of each token's scores, and its z over the draws; NaN without a spread.

    Args:
        scores: s·(w − mean row)·(J x) of each sample x. J is that at the midpoint of the real sets, in all draws.
        labels: which samples count as positive in each draw, from `permuted_labels`; row 0 has the real labels.
    """
    values = difference_weights(labels) @ scores
    null = values[1:]
    spread = null.std(axis=0, ddof=1)
    spread = np.where(spread > _NO_SPREAD * np.abs(scores).max(axis=0), spread, 0.0)
    return Changes(values[0], ratio(values[0] - null.mean(axis=0), spread))


def limit_of_z(n_tokens: int, n_draws: int) -> float:
    """Return the |z| that no token of a vocabulary exceeds by chance, at one depth, with a probability of 95 %.

    Bonferroni's limit over the tokens, two-sided, by Student's t, since a spread over few draws is uncertain. Without
    it, many listed tokens would seem to differ, as they are the extremes of a vocabulary.
    """
    return float(t.isf(LEVEL / 2 / max(1, n_tokens), n_draws - 1))


def in_order(of_end: Changes, ids: NDArray[np.int64], *, is_raised: bool) -> NDArray[np.int64]:
    """Return the order of tokens of one end by their change in float64, the end first; of equal ones by id."""
    return np.lexsort((ids, -of_end.change if is_raised else of_end.change))
