"""The worth of a finding: the order in which the conclusion states findings."""

from typing import NamedTuple

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups.schema import LEVEL, VALUE_AND_BAND
from theodolite.query.curves import along_depth

_MOST_TESTS = 10  # 1/201, the smallest p of 200 permutations, is at most LEVEL/10

_NORMAL = 1.96  # standard errors from the middle of a 95 % interval to its ends


class Worth(NamedTuple):
    """What a finding is worth.

    Attributes:
        passed: whether its test passes at one place or more.
        z: the largest distance from its null, in standard deviations of the null, of the places that pass.
    """

    passed: bool = False
    z: float = 0.0


UNTESTED = Worth()


def worth_of(*tests: tuple[xr.DataArray, xr.DataArray]) -> Worth:
    """Return the worth of a finding from its tests, each as p and z of all places; p is corrected for the places.

    Bonferroni's correction for several tests is added, for at most as many as the smallest p of a permutation test
    could pass.
    """
    tests = tuple(test for test in tests if np.isfinite(test[0]).any())
    if not tests:
        return UNTESTED
    p, z = (np.concatenate([np.ravel(test[part].values) for test in tests]) for part in (0, 1))
    return _worth(min(len(tests), _MOST_TESTS) * p <= LEVEL, np.abs(z))


def worth_below(values: xr.Dataset, statistic: str, null: float) -> Worth:
    """Return the worth of a finding from its band along depth: it passes if the band lies below the null somewhere.

    Args:
        values: statistics of one contrast at one position, (site, layer).
        statistic: name of the statistic.
        null: its value if the sets do not differ.
    """
    value, low, high = (along_depth(values[statistic], end).values for end in VALUE_AND_BAND)
    errors = np.where(high > low, high - low, np.nan) / (2 * _NORMAL)
    return _worth(high < null, (null - value) / errors)


def _worth(passed: NDArray[np.bool_], z: NDArray[np.float64]) -> Worth:
    counted = z[passed & np.isfinite(z)] if passed.any() else z[np.isfinite(z)]
    return Worth(bool(passed.any()), float(counted.max(initial=0)))
