"""The worth of a finding from several tests."""

import numpy as np
import xarray as xr
from support.each import each

from theodolite.sections.worth import UNTESTED, Worth, worth_of


def outcome(p):
    return xr.DataArray([p, 1.0 if np.isfinite(p) else np.nan]), xr.DataArray([3.0, 0.0])


@each(
    "tests, expected",
    [
        ([outcome(0.04)], Worth(True, 3.0)),
        ([outcome(0.04), outcome(0.9)], Worth(False, 3.0)),
        ([outcome(0.025), outcome(0.9)], Worth(True, 3.0)),
        ([outcome(0.04), outcome(np.nan)], Worth(True, 3.0)),
        ([outcome(1 / 201)] * 30, Worth(True, 3.0)),
        ([], UNTESTED),
    ],
)
def test_several_tests_share_the_error_rate(tests, expected):
    assert worth_of(*tests) == expected
