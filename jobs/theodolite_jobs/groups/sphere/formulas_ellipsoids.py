"""How similar the ellipsoids of norm layers are: scales, ranges of features, normals of planes. Pure, in float64."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Float64

from theodolite_jobs.statistics.norms import Norm, unit
from theodolite_jobs.statistics.ratio import ratio

_PERMUTATIONS = 10  # with hundreds of features, the mean overlap of one permutation is within a few percent already
_SEED = 0

Scales = Float[np.ndarray, "norm d_model"]
Pairs = Float64[np.ndarray, "norm norm_other"]


def plane_normal(norm: Norm) -> Float64[np.ndarray, " d_model"]:
    """Return the unit normal of the hyperplane in which the outputs of a layer norm lie.

    The outputs before scale and bias are orthogonal to 1, so Σ (y − β)/γ = 0. NaN for the `rms` kind, and if a γ is 0.
    """
    scale = norm.scale.astype(np.float64)
    if norm.kind == "rms" or not scale.all():
        return np.full(len(scale), np.nan)
    return unit(1 / scale)


def scale_cosines(scales: Scales) -> Pairs:
    """Return the cosine between the scales γ of two norm layers; NaN for a scale of zeros."""
    units = unit(scales.astype(np.float64))
    return np.asarray(units @ units.T)


def scale_correlations(scales: Scales) -> Pairs:
    """Return the correlation over features between the scales γ of two norm layers; NaN for a constant scale."""
    shifted = scales.astype(np.float64) - scales[:, :1]  # equal components then have exactly no variance
    return scale_cosines(shifted - shifted.mean(axis=1, keepdims=True))


def ellipsoid_overlaps(norms: Sequence[Norm]) -> tuple[Pairs, Pairs]:
    """Return the overlap of two ellipsoids feature by feature, and its mean with permuted features of the second one.

    The outputs of a norm have the range β ± √d|γ| along a feature, which is exact for RMS norms. The overlap is the
    mean over features of the length of the intersection of two ranges over that of their union: 1 for equal ranges, 0
    for disjoint ones. A feature with the same single point in both norm layers counts as 1.
    """
    radii = np.stack([np.sqrt(len(norm.scale)) * np.abs(norm.scale.astype(np.float64)) for norm in norms])
    centres = np.stack([norm.bias.astype(np.float64) for norm in norms])
    low, high = centres - radii, centres + radii
    random = np.random.default_rng(_SEED)
    orders = [random.permutation(radii.shape[1]) for _ in range(_PERMUTATIONS)]
    permuted = np.mean([_overlaps(low, high, low[:, order], high[:, order]) for order in orders], axis=0)
    return _overlaps(low, high, low, high), permuted


def _overlaps(low: Scales, high: Scales, low_other: Scales, high_other: Scales) -> Pairs:
    rows = []
    for bottom, top in zip(low, high, strict=True):
        shared = np.maximum(np.minimum(top, high_other) - np.maximum(bottom, low_other), 0)
        whole = np.maximum(top, high_other) - np.minimum(bottom, low_other)
        rows.append(np.where(whole > 0, ratio(shared, whole), 1.0).mean(axis=1))
    return np.stack(rows)
