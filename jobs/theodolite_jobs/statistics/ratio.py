"""Division where the denominator may be zero. Pure, in float64."""

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ratio(numerator: ArrayLike, denominator: ArrayLike) -> NDArray[np.float64]:
    """Return numerator / denominator with broadcasting; NaN where the denominator is not positive."""
    shape = np.broadcast_shapes(np.shape(numerator), np.shape(denominator))
    positive = np.asarray(denominator) > 0
    return np.asarray(np.divide(numerator, denominator, out=np.full(shape, np.nan), where=positive))
