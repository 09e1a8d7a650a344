"""Loops over samples that Numba compiles to machine code. Pure: float32 samples, sums in float64.

NumPy makes an array for each operation; these loops read the samples once, while they are in the processor's cache.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, no_type_check

import numba
import numpy as np
from jaxtyping import Float, Float64, Int64

_COLUMNS = 512
"""Features in one round over the samples: their sums stay in the first cache."""


def row_lengths(samples: Float[np.ndarray, "sample d_model"]) -> Float64[np.ndarray, " sample"]:
    """Return the Euclidean norm of each sample."""
    norms = np.empty(len(samples))
    _row_lengths(np.ascontiguousarray(samples), norms)
    return norms


def position_means(
    samples: Float[np.ndarray, "sample d_model"], n_positions: int
) -> Float64[np.ndarray, "position d_model"]:
    """Return the mean of each position; sample i has the position i mod n_positions. NaN without samples.

    Equal samples give exactly their own value.
    """
    means = np.full((n_positions, samples.shape[1]), np.nan)
    if len(samples):
        _position_means(np.ascontiguousarray(samples), means)
    return means


def block_products(
    states: Sequence[Float[np.ndarray, "sample d_model"]],
    centres: Sequence[Float64[np.ndarray, "position d_model"]],
) -> tuple[Float64[np.ndarray, "sample 3 4"], Float64[np.ndarray, "sample 3 4"]]:
    """Return products of the steps between three states x, m and y, and of their deviations from the centres.

    The steps are x to m, m to y, and x to y. For a start s, a step Δ and an end e, the products are ‖s‖², s·Δ, ‖Δ‖² and
    ‖e‖². In the second array, x, m and y are without their centres; sample i has those of position i mod n_positions.
    """
    products, deviations = np.empty((2, len(states[0]), 3, 4))
    _block_products(*(np.ascontiguousarray(one) for one in (*states, *centres)), products, deviations)
    return products, deviations


def step_dots(
    start: Float[np.ndarray, "sample d_model"],
    end: Float[np.ndarray, "sample d_model"],
    other_start: Float[np.ndarray, "sample d_model"],
    other_end: Float[np.ndarray, "sample d_model"],
    centres: Float64[np.ndarray, "position d_model"],
    other_centres: Float64[np.ndarray, "position d_model"],
) -> tuple[Float64[np.ndarray, " sample"], Float64[np.ndarray, " sample"]]:
    """Return the product of the steps end − start and other_end − other_start, and that of their deviations.

    The deviations are from the centres of the two steps; sample i has those of position i mod n_positions.
    """
    dots, deviations = np.empty((2, len(start)))
    vectors = (start, end, other_start, other_end, centres, other_centres)
    _step_dots(*(np.ascontiguousarray(one) for one in vectors), dots, deviations)
    return dots, deviations


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


@_compiled()
@no_type_check
def _position_means(samples, means):
    n_positions, d_model = means.shape
    for position in range(n_positions):
        for start in range(0, d_model, _COLUMNS):
            stop = min(start + _COLUMNS, d_model)
            first, totals = samples[position, start:stop], means[position, start:stop]
            totals[:] = 0.0
            for i in range(position + n_positions, samples.shape[0], n_positions):
                row = samples[i, start:stop]
                for j in range(stop - start):
                    totals[j] += np.float64(row[j]) - np.float64(first[j])
            for j in range(stop - start):
                totals[j] = first[j] + totals[j] / (samples.shape[0] // n_positions)


@_by_rows
@no_type_check
def _put_block_products(into, xx, xa, aa, mm, mb, bb, xs, ss, yy):
    into[0, 0], into[0, 1], into[0, 2], into[0, 3] = xx, xa, aa, mm
    into[1, 0], into[1, 1], into[1, 2], into[1, 3] = mm, mb, bb, yy
    into[2, 0], into[2, 1], into[2, 2], into[2, 3] = xx, xs, ss, yy


@_by_rows
@no_type_check
def _block_products(x, m, y, x_centres, m_centres, y_centres, products, deviations):
    for i in range(x.shape[0]):
        xx = xa = aa = mm = mb = bb = xs = ss = yy = 0.0
        for j in range(x.shape[1]):
            u, v, w = np.float64(x[i, j]), np.float64(m[i, j]), np.float64(y[i, j])
            a, b, s = v - u, w - v, w - u
            xx += u * u
            xa += u * a
            aa += a * a
            mm += v * v
            mb += v * b
            bb += b * b
            xs += u * s
            ss += s * s
            yy += w * w
        _put_block_products(products[i], xx, xa, aa, mm, mb, bb, xs, ss, yy)
        p = i % x_centres.shape[0]
        xx = xa = aa = mm = mb = bb = xs = ss = yy = 0.0
        for j in range(x.shape[1]):
            u, v, w = x[i, j] - x_centres[p, j], m[i, j] - m_centres[p, j], y[i, j] - y_centres[p, j]
            a, b, s = v - u, w - v, w - u
            xx += u * u
            xa += u * a
            aa += a * a
            mm += v * v
            mb += v * b
            bb += b * b
            xs += u * s
            ss += s * s
            yy += w * w
        _put_block_products(deviations[i], xx, xa, aa, mm, mb, bb, xs, ss, yy)


@_by_rows
@no_type_check
def _step_dots(start, end, other_start, other_end, centres, other_centres, dots, deviations):
    dots[:] = 0.0
    deviations[:] = 0.0
    for first in range(0, start.shape[1], _COLUMNS):
        last = min(first + _COLUMNS, start.shape[1])
        for i in range(start.shape[0]):
            position = i % centres.shape[0]
            x, y = start[i, first:last], end[i, first:last]
            other_x, other_y = other_start[i, first:last], other_end[i, first:last]
            a, b = centres[position, first:last], other_centres[position, first:last]
            total = deviation = 0.0
            for j in range(last - first):
                step = np.float64(y[j]) - np.float64(x[j])
                other = np.float64(other_y[j]) - np.float64(other_x[j])
                total += step * other
                deviation += (step - a[j]) * (other - b[j])
            dots[i] += total
            deviations[i] += deviation


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
