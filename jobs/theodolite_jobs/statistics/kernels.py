"""Loops over samples that Numba compiles to machine code. Pure: float32 samples, sums in float64.

NumPy makes an array for each operation; these loops read the samples once, while they are in the processor's cache.
"""

import math
from collections.abc import Callable
from typing import Any, no_type_check

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64

_COLUMNS = 256
"""Features in one round over the samples: their sums stay in the first cache."""


def row_lengths(samples: Float[np.ndarray, "sample d_model"]) -> Float64[np.ndarray, " sample"]:
    """Return the Euclidean norm of each sample."""
    norms = np.empty(len(samples))
    _row_lengths(np.ascontiguousarray(samples), norms)
    return norms


def step_lengths(
    start: Float[np.ndarray, "sample d_model"], end: Float[np.ndarray, "sample d_model"]
) -> Float64[np.ndarray, " sample"]:
    """Return ‖end − start‖ of each sample."""
    return np.asarray(np.sqrt(step_dots(start, end, start, end)))


def step_dots(
    start: Float[np.ndarray, "sample d_model"],
    end: Float[np.ndarray, "sample d_model"],
    other_start: Float[np.ndarray, "sample d_model"],
    other_end: Float[np.ndarray, "sample d_model"],
) -> Float64[np.ndarray, " sample"]:
    """Return (end − start)·(other_end − other_start) of each sample."""
    dots = np.empty(len(start))
    _step_dots(*(np.ascontiguousarray(one) for one in (start, end, other_start, other_end)), dots)
    return dots


def row_sums(
    samples: Float[np.ndarray, "sample d_model"], centres: Float64[np.ndarray, " sample"]
) -> tuple[Float64[np.ndarray, " sample"], Float64[np.ndarray, " sample"]]:
    """Return the sum over features of x − c, and of (x − c)², for each sample with its own centre c."""
    sums, squares = np.empty((2, len(samples)))
    _row_sums(np.ascontiguousarray(samples), centres, sums, squares)
    return sums, squares


def scaled_sums(
    samples: Float[np.ndarray, "sample d_model"], factors: Float64[np.ndarray, " sample"]
) -> tuple[Float64[np.ndarray, " d_model"], Float64[np.ndarray, " d_model"]]:
    """Return the mean and the sum of squared deviations of xᵢ·fᵢ over samples xᵢ with factors fᵢ; at least one sample.

    With c = x₀·f₀ and uᵢ = xᵢ·fᵢ − c, the sum is Σu² − (Σu)²/n. It loses at most log₂ n bits: the deviation of c is
    one of the n deviations, so (Σu)²/n is at most n times the sum. Equal samples give exactly their own value, and 0.
    """
    mean, m2 = np.empty((2, samples.shape[1]))
    _scaled_sums(np.ascontiguousarray(samples), factors, mean, m2)
    return mean, m2


def deviation_dots(
    samples: Float[np.ndarray, "sample d_model"],
    factors: Float64[np.ndarray, " sample"],
    centre: Float64[np.ndarray, " d_model"],
    first: Float64[np.ndarray, " d_model"],
    second: Float64[np.ndarray, " d_model"],
) -> Float64[np.ndarray, "sample 2"]:
    """Return (xᵢ·fᵢ − centre)·first and (xᵢ·fᵢ − centre)·second for each sample."""
    dots = np.empty((len(samples), 2))
    _deviation_dots(np.ascontiguousarray(samples), factors, centre, first, second, dots)
    return dots


def pair_trace(
    first: Float[np.ndarray, "sample d_model"],
    second: Float[np.ndarray, "sample d_model"],
    factors: tuple[Float64[np.ndarray, " sample"], Float64[np.ndarray, " sample"]],
    centres: tuple[Float64[np.ndarray, " d_model"], Float64[np.ndarray, " d_model"]],
) -> float:
    """Return Σᵢ (xᵢ·fᵢ − a)·(yᵢ·gᵢ − b) over the pairs of samples, with factors f and g and centres a and b."""
    return float(_pair_trace(np.ascontiguousarray(first), np.ascontiguousarray(second), *factors, *centres))


def fold_dots(
    samples: Float[np.ndarray, "sample d_model"],
    units: Float64[np.ndarray, "fold d_model"],
    folds: Int64[np.ndarray, " sample"],
) -> Float64[np.ndarray, " sample"]:
    """Return the product of each sample and the vector of its fold."""
    dots = np.empty(len(samples))
    _fold_dots(np.ascontiguousarray(samples), np.ascontiguousarray(units), folds, dots)
    return dots


def _compiled(**options: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Return a decorator that compiles a loop at its first call, and keeps the code on disk if a folder is writable."""

    def compile_later(loop: Callable[..., None]) -> Callable[..., None]:
        try:
            return numba.njit(loop, nogil=True, cache=True, **options)  # type: ignore[no-any-return]
        except RuntimeError:
            return numba.njit(loop, nogil=True, **options)  # type: ignore[no-any-return]

    return compile_later


_by_rows = _compiled(fastmath={"reassoc", "contract"})  # else the additions of a row wait for each other


@_by_rows
@no_type_check
def _row_lengths(samples, norms):
    for i in range(samples.shape[0]):
        total = 0.0
        for j in range(samples.shape[1]):
            value = np.float64(samples[i, j])
            total += value * value
        norms[i] = math.sqrt(total)


@_by_rows
@no_type_check
def _step_dots(start, end, other_start, other_end, dots):
    for i in range(start.shape[0]):
        total = 0.0
        for j in range(start.shape[1]):
            change = np.float64(end[i, j]) - np.float64(start[i, j])
            total += change * (np.float64(other_end[i, j]) - np.float64(other_start[i, j]))
        dots[i] = total


@_by_rows
@no_type_check
def _row_sums(samples, centres, sums, squares):
    for i in range(samples.shape[0]):
        total = square = 0.0
        for j in range(samples.shape[1]):
            change = np.float64(samples[i, j]) - centres[i]
            total += change
            square += change * change
        sums[i], squares[i] = total, square


@_compiled()
@no_type_check
def _scaled_sums(samples, factors, mean, m2):
    n, d_model = samples.shape
    for start in range(0, d_model, _COLUMNS):
        stop = min(start + _COLUMNS, d_model)
        first, totals, squares = samples[0, start:stop], mean[start:stop], m2[start:stop]
        totals[:] = 0.0
        squares[:] = 0.0
        for i in range(1, n):
            row = samples[i, start:stop]
            for j in range(stop - start):
                change = row[j] * factors[i] - first[j] * factors[0]
                totals[j] += change
                squares[j] += change * change
        for j in range(stop - start):
            squares[j] -= totals[j] * totals[j] / n
            if squares[j] < 0.0:
                squares[j] = 0.0
            totals[j] = first[j] * factors[0] + totals[j] / n


@_by_rows
@no_type_check
def _deviation_dots(samples, factors, centre, first, second, dots):
    for i in range(samples.shape[0]):
        along_first = along_second = 0.0
        for j in range(samples.shape[1]):
            change = samples[i, j] * factors[i] - centre[j]
            along_first += change * first[j]
            along_second += change * second[j]
        dots[i, 0], dots[i, 1] = along_first, along_second


@_by_rows
@no_type_check
def _pair_trace(first, second, first_factors, second_factors, first_centre, second_centre):
    trace = 0.0
    for i in range(first.shape[0]):
        for j in range(first.shape[1]):
            change = first[i, j] * first_factors[i] - first_centre[j]
            trace += change * (second[i, j] * second_factors[i] - second_centre[j])
    return trace


@_by_rows
@no_type_check
def _fold_dots(samples, units, folds, dots):
    for i in range(samples.shape[0]):
        unit, total = units[folds[i]], 0.0
        for j in range(samples.shape[1]):
            total += samples[i, j] * unit[j]
        dots[i] = total
