"""Mergeable count, mean, sum of squared deviations and extremes. Pure, in float64.

Source: Chan, Golub, LeVeque, "Algorithms for computing the sample variance" (1983). Moments of parts merge by an exact
formula, so one pass over each shard is enough, and the result does not depend on which process computed which shard.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics import kernels
from theodolite_jobs.statistics.ratio import ratio


@dataclass(frozen=True)
class Moments:
    """Statistics over samples of an array (sample, …); each field has the shape of one sample.

    Attributes:
        count: number of samples.
        mean: mean over samples; NaN without samples.
        m2: sum over samples of squared deviations from the mean.
    """

    count: int
    mean: NDArray[np.float64]
    m2: NDArray[np.float64]

    @property
    def variance(self) -> NDArray[np.float64]:
        """Unbiased variance (n−1); NaN for fewer than two samples."""
        return self.m2 / (self.count - 1) if self.count > 1 else np.full_like(self.m2, np.nan)


@dataclass(frozen=True)
class Extremes:
    """Minimum and maximum over samples; +inf and −inf without samples."""

    minimum: NDArray[np.float64]
    maximum: NDArray[np.float64]


def moments(samples: Float64[np.ndarray, "sample ..."]) -> Moments:
    """Return the moments of samples along the first axis."""
    if len(samples) == 0:
        return Moments(0, np.full(samples.shape[1:], np.nan), np.zeros(samples.shape[1:]))
    # After subtraction of the first sample, equal samples give exactly their own value as mean, and no deviation.
    deviations = samples - samples[0]
    means = deviations.mean(axis=0)
    deviations -= means
    return Moments(len(samples), samples[0] + means, np.square(deviations, out=deviations).sum(axis=0))


def scaled_moments(samples: Float[np.ndarray, "sample d_model"], factors: Float64[np.ndarray, " sample"]) -> Moments:
    """Return the moments of xᵢ·fᵢ over samples xᵢ with factors fᵢ; float32 samples need no copy in float64."""
    if len(samples) == 0:
        return Moments(0, np.full(samples.shape[1], np.nan), np.zeros(samples.shape[1]))
    return Moments(len(samples), *kernels.scaled_sums(samples, factors))


def extremes(samples: Float[np.ndarray, "sample ..."]) -> Extremes:
    """Return the minimum and maximum of samples along the first axis, in float64."""
    minimum = samples.min(axis=0, initial=np.inf).astype(np.float64)
    return Extremes(minimum, samples.max(axis=0, initial=-np.inf).astype(np.float64))


def merge(first: Moments, second: Moments) -> Moments:
    """Return the moments of the union of two disjoint sets of samples."""
    if first.count == 0 or second.count == 0:
        return second if first.count == 0 else first
    count = first.count + second.count
    delta = second.mean - first.mean
    return Moments(
        count,
        first.mean + delta * (second.count / count),
        first.m2 + second.m2 + delta**2 * (first.count * second.count / count),
    )


def merge_extremes(first: Extremes, second: Extremes) -> Extremes:
    """Return the extremes of the union of two sets of samples."""
    return Extremes(np.minimum(first.minimum, second.minimum), np.maximum(first.maximum, second.maximum))


def lengths(vectors: Float64[np.ndarray, "*dims d_model"]) -> Float64[np.ndarray, "*dims"]:
    """Return Euclidean norms, three times as fast as np.linalg.norm along an axis."""
    norms: NDArray[np.float64] = np.sqrt(np.vecdot(vectors, vectors))
    return norms


def sphere_factors(norms: Float64[np.ndarray, " sample"], d_model: int) -> Float64[np.ndarray, " sample"]:
    """Return √d_model/‖x‖, which scales x to the sphere; NaN for a zero vector."""
    return ratio(np.full(len(norms), np.sqrt(d_model)), norms)


def on_sphere(samples: Float64[np.ndarray, "sample *dims d_model"]) -> Float64[np.ndarray, "sample *dims d_model"]:
    """Return x/‖x‖·√d_model, NaN for a zero vector."""
    norms = lengths(samples)[..., None]
    return np.asarray(samples * ratio(np.sqrt(samples.shape[-1]), norms))
