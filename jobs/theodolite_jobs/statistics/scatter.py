"""Sums over samples for the cosine between two means and its interval. Pure, in float64.

The formulas of the curves use these sums, which one pass over the activations collects.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Float64
from numpy.typing import NDArray

from theodolite_jobs.statistics.kernels import deviation_dots, pair_trace


@dataclass(frozen=True)
class Scatter:
    """Sums over samples that the interval needs; the leading dimensions of each array are those of one curve.

    With a = mean(P), b = mean(N) and z = (p·a, p·b, q·b, q·a) for the deviations p = x − a and q = y − b:

    Attributes:
        positive: Σ z zᵀ of the first two entries, (…, 2, 2).
        negative: Σ z zᵀ of the last two entries, (…, 2, 2).
        cross: Σ over pairs of the first two entries times the last two, (…, 2, 2); zero if the sets are independent.
        cross_trace: Σ p·q over pairs, (…); zero if the sets are independent.
    """

    positive: NDArray[np.float64]
    negative: NDArray[np.float64]
    cross: NDArray[np.float64]
    cross_trace: NDArray[np.float64]

    def __add__(self, other: "Scatter") -> "Scatter":
        return Scatter(
            self.positive + other.positive,
            self.negative + other.negative,
            self.cross + other.cross,
            self.cross_trace + other.cross_trace,
        )

    def put(self, at: tuple[int | slice, ...], part: "Scatter") -> None:
        """Fill in the sums of one curve, or of several."""
        for name in ("positive", "negative", "cross", "cross_trace"):
            getattr(self, name)[at] = getattr(part, name)


def no_sums(shape: tuple[int, ...]) -> Scatter:
    """Return sums over no samples for curves of a shape."""
    outer = (*shape, 2, 2)
    return Scatter(np.zeros(outer), np.zeros(outer), np.zeros(outer), np.zeros(shape))


class Groups(NamedTuple):
    """Groups of samples of which only the mean and the size are known; every other sample is a group of one."""

    n_p: int  # the number of groups of P
    n_q: int  # likewise of N
    known_p: NDArray[np.float64]  # Σ‖x − a‖² over the samples of P in `Scatter.cross_trace`
    known_q: NDArray[np.float64]  # likewise of N


def scatter(
    positive: Float[np.ndarray, "p d_model"],
    negative: Float[np.ndarray, "q d_model"],
    a: Float64[np.ndarray, " d_model"],
    b: Float64[np.ndarray, " d_model"],
    *,
    paired: bool,
    factors: tuple[Float64[np.ndarray, " p"], Float64[np.ndarray, " q"]] | None = None,
) -> Scatter:
    """Return the sums over one shard's samples of P and N, given the means a and b over all shards.

    If paired, row i of `positive` belongs to row i of `negative`. `factors` multiply the samples.
    """
    f, g = factors or (np.ones(len(positive)), np.ones(len(negative)))
    z_p, z_q = mean_dots(positive, a, b, f), mean_dots(negative, b, a, g)
    cross = z_p.T @ z_q if paired else np.zeros((2, 2))
    cross_trace = pair_trace(positive, negative, (f, g), (a, b)) if paired else 0.0
    return Scatter(z_p.T @ z_p, z_q.T @ z_q, cross, np.asarray(cross_trace))


def mean_dots(
    samples: Float[np.ndarray, "sample d_model"],
    own: Float64[np.ndarray, " d_model"],
    other: Float64[np.ndarray, " d_model"],
    factors: Float64[np.ndarray, " sample"],
) -> Float64[np.ndarray, "sample 2"]:
    """Return (x − own)·own and (x − own)·other of each sample x, multiplied by its factor, for two means."""
    return deviation_dots(samples, factors, own, own, other)


def pair_noise(
    sums: Scatter,
    trace_p: Float64[np.ndarray, "*dims"],
    trace_q: Float64[np.ndarray, "*dims"],
    n: int,
    groups: Groups | None,
) -> Float64[np.ndarray, "*dims"]:
    """Return tr Σ_PN/n, the expected product of the noise of both means of n pairs; see `cosine_curve`."""
    if groups is None:
        return np.asarray(sums.cross_trace / (n - 1) / n if n > 1 else np.zeros(sums.cross_trace.shape))
    both = np.sqrt(trace_p * trace_q)
    with np.errstate(invalid="ignore", divide="ignore"):
        correlation = sums.cross_trace / np.sqrt(groups.known_p * groups.known_q)
    return np.where(both == 0, 0.0, correlation * both) / n  # a set that does not vary has no correlation
