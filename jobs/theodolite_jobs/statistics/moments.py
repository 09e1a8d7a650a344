"""Mergeable count, mean, sum of squared deviations and extremes. Pure, in float64.

Chan, Golub, LeVeque, "Algorithms for computing the sample variance" (1983): parts are merged exactly, so one pass
over each shard is enough and the result does not depend on who computed which shard.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray


@dataclass(frozen=True)
class Moments:
    """Statistics over samples of an array (sample, …); each field has the shape of one sample.

    Attributes:
        count: how many samples.
        mean: their mean; NaN without samples.
        m2: sum of squared deviations from the mean.
        minimum: least value; +inf without samples.
        maximum: largest value; −inf without samples.
    """

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]
    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]

    @property
    def variance(self) -> NDArray[np.float64]:
        """Unbiased variance (n−1); NaN for fewer than two samples."""
        return self.m2 / (self.count - 1) if self.count > 1 else np.full_like(self.m2, np.nan)


def moments(samples: Float64[np.ndarray, "sample ..."]) -> Moments:
    """Return the moments of samples along the first axis."""
    if len(samples) == 0:
        empty = samples.shape[1:]
        return Moments(0, np.full(empty, np.nan), np.zeros(empty), np.full(empty, np.inf), np.full(empty, -np.inf))
    # Shifting by the first sample makes equal samples give their own value and no deviation, to the bit.
    shift = samples[0]
    mean = shift + (samples - shift).mean(axis=0)
    deviations = samples - mean
    return Moments(
        len(samples),
        mean,
        np.square(deviations, out=deviations).sum(axis=0),
        samples.min(axis=0),
        samples.max(axis=0),
    )


def merge(first: Moments, second: Moments) -> Moments:
    """Return the moments of both parts' samples together."""
    if first.count == 0 or second.count == 0:
        return second if first.count == 0 else first
    count = first.count + second.count
    delta = second.mean - first.mean
    return Moments(
        count,
        first.mean + delta * (second.count / count),
        first.m2 + second.m2 + delta**2 * (first.count * second.count / count),
        np.minimum(first.minimum, second.minimum),
        np.maximum(first.maximum, second.maximum),
    )


def on_sphere(
    samples: Float64[np.ndarray, "sample *dims d_model"],
) -> Float64[np.ndarray, "sample *dims d_model"]:
    """Return x/‖x‖·√d_model; a zero vector has no direction and gives NaN."""
    norms = np.linalg.norm(samples, axis=-1, keepdims=True)
    scale = np.divide(np.sqrt(samples.shape[-1]), norms, out=np.full_like(norms, np.nan), where=norms > 0)
    scaled: NDArray[np.float64] = samples * scale
    return scaled
