"""A statistic with its interval."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Estimate(NamedTuple):
    """A statistic and the ends of its 95 % interval or band, each of shape (…)."""

    value: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]

    def widened(self, error: NDArray[np.float64]) -> "Estimate":
        """Return the estimate with a further error, an independent one, in its interval.

        Args:
            error: the quantile of the interval times the standard error.
        """
        low, high = np.hypot(self.value - self.low, error), np.hypot(self.high - self.value, error)
        return Estimate(self.value, np.asarray(self.value - low), np.asarray(self.value + high))

    def stacked(self) -> NDArray[np.float64]:
        """Return the value and both ends, (…, estimate)."""
        return np.stack(self, axis=-1)

    def with_band(self, band: "Estimate | None" = None) -> NDArray[np.float64]:
        """Return the value, both ends, and those of the simultaneous band, NaN without a band: (…, estimate)."""
        ends = np.full((2, *np.shape(self.value)), np.nan) if band is None else band[1:]
        return np.stack([*self, *ends], axis=-1)


NORMAL_QUANTILE = 1.959963984540054
"""Two-sided 95 % of the normal distribution."""
