"""Shares of prompts that use an expert, differences of shares, and active units of an expert. Pure, in float64.

Sources: Wilson (1927) for the interval of a share; Newcombe (1998), Statistics in Medicine 17, for the interval of a
difference of independent shares (p. 873, method 10) and of paired shares (p. 2635, method 10).
"""

import numpy as np
from jaxtyping import Bool, Float, Float64, Int16
from numpy.typing import NDArray

from theodolite_jobs.statistics.estimates import Estimate
from theodolite_jobs.statistics.norms import Norm, normalised
from theodolite_jobs.statistics.ratio import ratio

Floats = NDArray[np.float64]

_ROWS = 1024  # tokens in one product with an expert's matrix

_Z = 1.959963984540054  # the 97.5 % quantile of the normal distribution


def used_experts(chosen: Int16[np.ndarray, "sample choice"], n_experts: int) -> Bool[np.ndarray, "sample {n_experts}"]:
    """Return which experts each token uses; a choice of -1 is no expert."""
    used = np.zeros((len(chosen), n_experts + 1), dtype=np.bool_)
    np.put_along_axis(used, chosen.astype(np.int64), True, axis=1)  # -1 is the last column
    return used[:, :n_experts]


def shares(used: Bool[np.ndarray, "sample expert"]) -> Estimate:
    """Return the share of tokens that use each expert, (expert,), with its interval; NaN without tokens."""
    return _wilson(used.sum(axis=0).astype(np.float64), len(used))


def differences(
    positive: Bool[np.ndarray, "positive expert"], negative: Bool[np.ndarray, "negative expert"], *, paired: bool
) -> Estimate:
    """Return the difference of both sets' shares of tokens that use each expert, (expert,), with its interval.

    If `paired`, token i of one set matches token i of the other. The interval of paired shares contains the
    correlation inside the pairs, with a correction if it is positive.
    """
    first, second = shares(positive), shares(negative)
    phi = _correlation(positive, negative) if paired else np.zeros(positive.shape[1])
    value = first.value - second.value
    low = _distance(first.value - first.low, second.high - second.value, phi)
    high = _distance(first.high - first.value, second.value - second.low, phi)
    return Estimate(value, value - low, value + high)


def absolute_differences(
    used: Bool[np.ndarray, "sample expert"], labels: Bool[np.ndarray, "draw sample"]
) -> Float64[np.ndarray, "draw expert"]:
    """Return the absolute difference of both sets' shares under each draw of the labels.

    It follows from counts, which have no rounding error: an expert that all tokens use has exactly equal shares.
    """
    positive = labels.astype(np.float64) @ used
    n_positive = labels.sum(axis=1, keepdims=True)
    return np.abs(ratio(positive, n_positive) - ratio(used.sum(axis=0) - positive, len(used) - n_positive))


def active_share(
    states: Float[np.ndarray, "sample d_model"],
    norm: Norm,
    matrix: Float64[np.ndarray, "d_model unit"],
    bias: Float64[np.ndarray, " unit"] | None,
) -> float:
    """Return the share of an expert's hidden units that are active, mean over at least one sample.

    A unit is active if the input of the activation function, norm(x) W + b, is positive; x is the state before the norm
    (`states`), and W the matrix whose output enters the function.
    """
    n_active = 0
    for start in range(0, len(states), _ROWS):
        inputs = normalised(states[start : start + _ROWS].astype(np.float64), norm) @ matrix
        n_active += int((inputs + (0.0 if bias is None else bias) > 0).sum())
    return float(n_active / (len(states) * matrix.shape[1]))


def _wilson(counts: Floats, n: int) -> Estimate:
    value = ratio(counts, np.float64(n))
    with np.errstate(divide="ignore", invalid="ignore"):
        middle = (counts + _Z**2 / 2) / (n + _Z**2)
        half = _Z / (n + _Z**2) * np.sqrt(counts * (1 - value) + _Z**2 / 4)
    # Rounding must not move the end of an interval past a share of 0 or 1.
    return Estimate(value, np.minimum(middle - half, value), np.maximum(middle + half, value))


def _correlation(first: NDArray[np.bool_], second: NDArray[np.bool_]) -> Floats:
    """Return Newcombe's φ of the pairs for each expert; 0 if one of the two sets has the same choice in all pairs."""
    n = len(first)
    both, neither = (first & second).sum(axis=0), (~first & ~second).sum(axis=0)
    only_first, only_second = (first & ~second).sum(axis=0), (~first & second).sum(axis=0)
    product = (both * neither - only_first * only_second).astype(np.float64)
    product = np.where(product > 0, np.maximum(product - n / 2, 0), product)
    margins = (both + only_first) * (neither + only_second) * (both + only_second) * (neither + only_first)
    return np.nan_to_num(ratio(product, np.sqrt(margins.astype(np.float64))))


def _distance(one: Floats, other: Floats, phi: Floats) -> Floats:
    return np.sqrt(np.maximum(one**2 - 2 * phi * one * other + other**2, 0))
