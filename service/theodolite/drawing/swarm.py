"""Place points that would cover each other: a beeswarm."""

import numpy as np
from numpy.typing import NDArray


def swarm(
    scores: NDArray[np.float64], ends: tuple[float, float], bins: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the column of each point along an axis, and its place in the column, one on the other from 0.

    Args:
        scores: the positions of the points; those beyond the ends stand in the first or the last column.
        ends: the ends of the axis.
        bins: number of columns.
    """
    low, high = ends
    column = np.clip((scores - low) / (high - low) * bins, 0, bins - 1).astype(np.int64)  # a score may be infinite
    height = np.zeros(bins, dtype=np.int64)
    places = np.empty(len(scores), dtype=np.int64)
    for index, of_point in enumerate(column):
        places[index] = height[of_point]
        height[of_point] += 1
    return column, places
