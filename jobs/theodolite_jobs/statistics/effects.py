"""What an intervention changes in the next token's distribution and in the stream. Pure, in float64."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import logsumexp

from theodolite_jobs.statistics.ratio import ratio


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
        mean = np.vecdot(moves, p)[..., None]
        moves -= mean
        grown = np.vecdot(np.expm1(moves, out=moves), p)
        if not possible.all():
            grown += np.exp(after - total - mean, where=~possible, out=np.zeros(shape)).sum(axis=-1)
        divergence = np.log1p(grown)
    is_excluded = ((after == -np.inf) & possible).any(axis=-1)
    return np.asarray(np.where(is_excluded, np.inf, np.maximum(divergence, 0.0)))


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
    (wide,) = _wide(logits)
    odds = [logsumexp(wide[..., sorted(set(group))], axis=-1) for group in (first, second)]
    return np.asarray(odds[0] - odds[1])


def group_probability(logits: Float[np.ndarray, "... token"], tokens: Sequence[int]) -> NDArray[np.float64]:
    """Return the probability that the next token is one of `tokens`, (…)."""
    (wide,) = _wide(logits)
    return np.asarray(np.exp(logsumexp(wide[..., sorted(set(tokens))], axis=-1) - logsumexp(wide, axis=-1)))


def projection(
    vectors: Float[np.ndarray, "... feature"], directions: Float[np.ndarray, "direction feature"]
) -> NDArray[np.float64]:
    """Return the component of vectors along each direction, (…, direction), in units of the vectors.

    The length of a direction does not matter; that of a zero direction gives NaN.
    """
    states, along = _wide(vectors, directions)
    return ratio(states @ along.T, np.linalg.norm(along, axis=-1))


def restored_share(
    changed: Float[np.ndarray, "..."], own: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."]
) -> NDArray[np.float64]:
    """Return the share of the difference between `own` and `other` that a patch restores, (…).

    All three are the same measure: of the patched prompt, of the intact prompt, and of the intact prompt that the patch
    comes from. 0 is no effect, 1 the full difference; NaN where `own` equals `other`.
    """
    after, start, end = _wide(changed, own, other)
    return ratio((after - start) * np.sign(end - start), np.abs(end - start))
