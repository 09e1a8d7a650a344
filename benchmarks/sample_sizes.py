"""Measure how often the plain cosine of a second sample falls into the interval that a first sample predicts.

Each cell draws n prompts of P and N many times from the Gaussians of `intervals.py`, predicts the plain cosine of m
other prompts in each set, and draws those. The second sample is never paired. The script prints the grid as a table.
The last line is one JSON object with, for each cell, the share of draws inside the interval, and the mean of the drawn
minus the predicted cosine.

Usage: python benchmarks/sample_sizes.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from intervals import CORRELATION, D_MODEL
from numpy.typing import NDArray

from theodolite_jobs.groups.curves.formulas_sample_size import expected_cosines, squared_covariance_trace
from theodolite_jobs.statistics.folds import FOLDS, Folds, fold_moments
from theodolite_jobs.statistics.scatter import scatter

SAMPLES = ((64, 16), (256, 16), (64, 64), (64, 128), (256, 128))
"""n and m of each cell."""

GRID = list(product(("flat", "power law"), (False, True), SAMPLES, (0.5, 0.9, 0.99), (1.0, 1 / 3)))
"""The spectrum, whether the first sample is paired, n and m, cosine and signal of each cell."""

_BOUNDS = (0.92, 0.99)


def main() -> None:
    options = measuring.read_options(
        "Measure the coverage of the predicted plain cosine; print a table and JSON.",
        draws=(400, "draws in each cell"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    cells = [cell(rng, options.draws, *parameters) for parameters in GRID]
    for one in cells:
        measuring.say(
            f"{one['spectrum']:>9}  {'paired' if one['paired'] else 'independent':>11}  n {one['n']:>3}  m "
            f"{one['m']:>3}  cosine {one['cosine']:.2f}  |mean| {one['signal']:.2f}   inside {one['inside']:.3f}   "
            f"error {one['error']:+.4f}"
        )
    inside = [one["inside"] for one in cells]
    result = {
        "draws": options.draws,
        "inside_least": min(inside),
        "inside_most": max(inside),
        "inside_mean": float(np.mean(inside)),
        "cells_outside_of_92_to_99_percent": sum(not _BOUNDS[0] <= share <= _BOUNDS[1] for share in inside),
        "largest_error": max(abs(one["error"]) for one in cells),
        "cells": cells,
    }
    measuring.publish(result, options.out)


def cell(
    rng: np.random.Generator,
    n_draws: int,
    spectrum: str,
    paired: bool,
    sizes: tuple[int, int],
    cosine: float,
    signal: float,
) -> dict[str, Any]:
    """Return the share of one cell's draws whose second sample falls inside, and the mean error of the prediction."""
    n, m = sizes
    inside, errors = [], []
    variances = np.ones(D_MODEL) if spectrum == "flat" else 1.0 / np.arange(1, D_MODEL + 1)
    deviations = np.sqrt(variances / variances.sum())
    for _ in range(n_draws):
        basis = np.linalg.qr(rng.normal(size=(D_MODEL, 2)))[0].T
        a, b = signal * basis[0], signal * (cosine * basis[0] + np.sqrt(1 - cosine**2) * basis[1])
        p, q = rng.normal(size=(2, n, D_MODEL)) * deviations
        if paired:
            q = CORRELATION * p + np.sqrt(1 - CORRELATION**2) * q
        value, low, high = predict(a + p, b + q, m, paired)
        # The mean of m prompts has the noise of one prompt over the root of m.
        noise = rng.normal(size=(2, D_MODEL)) * deviations / np.sqrt(m)
        second_a, second_b = a + noise[0], b + noise[1]
        second = second_a @ second_b / np.linalg.norm(second_a) / np.linalg.norm(second_b)
        inside.append(bool(low <= second <= high))
        errors.append(second - value)
    return {
        "spectrum": spectrum,
        "paired": paired,
        "n": n,
        "m": m,
        "cosine": cosine,
        "signal": signal,
        "inside": float(np.mean(inside)),
        "error": float(np.mean(errors)),
    }


def predict(p: NDArray[np.float64], q: NDArray[np.float64], m: int, paired: bool) -> tuple[float, float, float]:
    """Return the expected plain cosine of m prompts in each set, and its interval."""
    a, b = p.mean(axis=0), q.mean(axis=0)
    traces = [np.asarray(side.var(axis=0, ddof=1).sum()) for side in (p, q)]
    folds = [np.arange(len(side)) % FOLDS for side in (p, q)]
    squares = [
        squared_covariance_trace(Folds(np.bincount(fold), *fold_moments(side, fold)))
        for side, fold in zip((p, q), folds, strict=True)
    ]
    sums = scatter(p, q, a, b, paired=paired)
    found = expected_cosines((m,), a, b, *traces, len(p), len(q), sums, (squares[0], squares[1]), paired=paired)
    value, low, high = (float(end[0]) for end in found)
    return value, low, high


if __name__ == "__main__":
    main()
