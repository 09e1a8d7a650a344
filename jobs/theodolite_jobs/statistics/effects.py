"""What an intervention changes in the next token's distribution and in the stream. Pure, in float64."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray
from scipy.special import log_softmax, logsumexp

from theodolite_jobs.statistics.ratio import ratio


def kl_divergence(
    intact: Float[np.ndarray, "... token"], changed: Float[np.ndarray, "... token"]
) -> NDArray[np.float64]:
    """Return KL(intact ‖ changed) of two next-token distributions in nats, (…), from their logits.

    A constant added to all logits changes nothing. Equal logits give exactly 0, and rounding never gives less than 0.
    A token with the logit −∞ has the probability 0.
    """
    log_p = log_softmax(np.asarray(intact, dtype=np.float64), axis=-1)
    log_q = log_softmax(np.asarray(changed, dtype=np.float64), axis=-1)
    p = np.exp(log_p)
    difference = np.subtract(log_p, log_q, out=np.zeros(np.broadcast_shapes(p.shape, log_q.shape)), where=p > 0)
    return np.asarray(np.maximum((p * difference).sum(axis=-1), 0.0))


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
    wide = np.asarray(logits, dtype=np.float64)
    odds = [logsumexp(wide[..., sorted(set(group))], axis=-1) for group in (first, second)]
    return np.asarray(odds[0] - odds[1])


def projection(
    vectors: Float[np.ndarray, "... feature"], directions: Float[np.ndarray, "direction feature"]
) -> NDArray[np.float64]:
    """Return the component of vectors along each direction, (…, direction), in units of the vectors.

    The length of a direction does not matter; that of a zero direction gives NaN.
    """
    wide = np.asarray(directions, dtype=np.float64)
    return ratio(np.asarray(vectors, dtype=np.float64) @ wide.T, np.linalg.norm(wide, axis=-1))


def restored_share(
    changed: Float[np.ndarray, "..."], own: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."]
) -> NDArray[np.float64]:
    """Return the share of the difference between `own` and `other` that a patch restores, (…).

    All three are the same measure: of the patched prompt, of the intact prompt, and of the intact prompt that the patch
    comes from. 0 is no effect, 1 the full difference; NaN where `own` equals `other`.
    """
    start = np.asarray(own, dtype=np.float64)
    difference = np.asarray(other, dtype=np.float64) - start
    return ratio((np.asarray(changed, dtype=np.float64) - start) * np.sign(difference), np.abs(difference))
