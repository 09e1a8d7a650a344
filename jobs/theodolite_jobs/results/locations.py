"""The depths that cannot be told from the depth of the extreme value, for several groups."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from theodolite.sites import HALF_BLOCKS
from theodolite_jobs.statistics.location import location


def locations(
    sites: Sequence[str], estimates: NDArray[np.float64], terms: NDArray[np.float64], degrees_of_freedom: float
) -> NDArray[np.float64]:
    """Return what `statistics.location` returns over all depths of each position, (site, position, layer).

    The depths are those of the curves, pre and mid, or those of all sites if neither was captured; other sites are NaN,
    since they repeat a depth or are no state of the stream.

    Args:
        sites: names of the sites.
        estimates: a statistic whose largest value is located, (site, position, layer).
        terms: terms of its errors, (row, site, position, layer).
        degrees_of_freedom: those of the estimated errors.
    """
    rows = [row for row, site in enumerate(sites) if site in HALF_BLOCKS] or list(range(len(sites)))
    result = np.full(estimates.shape, np.nan)
    free = float(degrees_of_freedom)
    for position in range(estimates.shape[1]):
        result[rows, position] = location(estimates[rows, position], terms[:, rows, position], free)
    return result
