"""Comparisons of next-token distributions, from logits. Pure, in float64."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import logsumexp


def kl_divergence(
    intact: Float[np.ndarray, "... token"], changed: Float[np.ndarray, "... token"]
) -> NDArray[np.float64]:
    """Return KL(intact ‖ changed) of two next-token distributions in nats, (…), from their logits.

    A constant added to all logits changes nothing. Equal logits give exactly 0, and rounding never gives less than 0.
    A token with the logit −∞ has the probability 0. The divergence is ∞ if the change makes a possible token
    impossible, or moves a logit by 700.
    """
    before, after = (logits - logits.max(axis=-1, keepdims=True) for logits in _wide(intact, changed))
    total = logsumexp(before, axis=-1, keepdims=True)
    p = np.exp(before - total)
    shape = np.broadcast_shapes(p.shape, after.shape)
    possible = np.broadcast_to(p > 0, shape)
    # With moves d of the logits and their mean under p, KL = ln Σ p exp(d − mean). Unlike a difference of two
    # logarithms, this has no rounding errors of the size of ln p, which would hide small effects.
    moves = np.subtract(after, before, out=np.zeros(shape), where=possible)
    with np.errstate(over="ignore", invalid="ignore"):
        mean = _products(moves, p)[..., None]
        moves -= mean
        grown = _products(np.expm1(moves, out=moves), p)
        if not possible.all():
            grown += np.exp(after - total - mean, where=~possible, out=np.zeros(shape)).sum(axis=-1)
        divergence = np.log1p(grown)
    is_excluded = ((after == -np.inf) & possible).any(axis=-1)
    return np.asarray(np.where(is_excluded, np.inf, np.maximum(divergence, 0.0)))


def _products(x: NDArray[np.float64], y: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return Σ x·y over the last axis, in this thread: the threads of `vecdot` wait for each other on busy cores."""
    return np.asarray(np.einsum("...i,...i->...", x, y))


def _wide(*arrays: NDArray[np.floating]) -> list[NDArray[np.float64]]:
    return [np.asarray(array, dtype=np.float64) for array in arrays]


def log_odds(
    logits: Float[np.ndarray, "... token"], first: Sequence[int], second: Sequence[int]
) -> NDArray[np.float64]:
    """Return ln(P(first) / P(second)), (…): the log-odds between two groups of next tokens.

    Raises:
        ValueError: a group is empty, or both contain the same token.
    """
    both = sorted(set(first) & set(second))
    if not first or not second or both:
        problem = f"token {both[0]} is in both" if both else "one is empty"
        raise ValueError(f"log-odds need two separate groups of tokens, but {problem}; give each group its own tokens")
    odds = [logsumexp(*_wide(logits[..., sorted(set(group))]), axis=-1) for group in (first, second)]
    return np.asarray(odds[0] - odds[1])


def group_probability(logits: Float[np.ndarray, "... token"], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return the probability that the next token is one of `tokens`, (…)."""
    (wide,) = _wide(logits)
    return np.asarray(np.exp(logsumexp(wide[..., sorted(set(tokens))], axis=-1) - logsumexp(wide, axis=-1)))
