"""What an intervention changes in the next token's distribution and in the stream. Pure, in float64."""

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite_jobs.statistics.next_token import _wide
from theodolite_jobs.statistics.ratio import ratio


def projection(
    vectors: Float[np.ndarray, "... feature"], directions: Float[np.ndarray, "direction feature"]
) -> NDArray[np.float64]:
    """Return the component of vectors along each direction, (…, direction), in units of the vectors.

    The length of a direction does not matter; that of a zero direction gives NaN.
    """
    states, along = _wide(vectors, directions)
    return ratio(states @ along.T, np.linalg.norm(along, axis=-1))


def restored_of_pair(
    changed: Float[np.ndarray, "..."], own: Float[np.ndarray, "..."], other: Float[np.ndarray, "..."]
) -> NDArray[np.float64]:
    """Return the share of the difference between `own` and `other` that a patch restores, (…).

    All three are the same measure: of the patched prompt, of the intact prompt, and of the intact prompt that the patch
    comes from. 0 is no effect, 1 the full difference; NaN where `own` equals `other`.
    """
    after, start, end = _wide(changed, own, other)
    return ratio((after - start) * np.sign(end - start), np.abs(end - start))
