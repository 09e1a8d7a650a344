"""Measure the coverage of the debiased cosine's 95 % interval over a grid of simulated contrasts.

Each cell draws P and N many times from Gaussians. The means have a known cosine and norm 1 or 1/3; the noise covariance
has trace 1 and a flat or a power-law spectrum. The noise of the two prompts of a pair has correlation 0.9. The script
prints the grid as a table. The last line is one JSON object with, for each cell, the share of draws whose interval
contains the true cosine, and the errors of the mean debiased and the mean plain cosine.

Usage: python benchmarks/intervals.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from numpy.typing import NDArray

from theodolite_jobs.groups.curves.formulas import CosineCurve, cosine_curve
from theodolite_jobs.statistics.scatter import scatter

D_MODEL = 576
SAMPLES = (16, 64, 256)
COSINES = (0.5, 0.9, 0.99)
SIGNALS = (1.0, 1 / 3)
CORRELATION = 0.9
"""Correlation between the noise of a pair's two prompts."""

GRID = list(product(("flat", "power law"), (False, True), SAMPLES, COSINES, SIGNALS))
"""The spectrum, paired, n, cosine and signal of each cell."""

_BOUNDS = (0.92, 0.99)


def main() -> None:
    options = measuring.read_options(
        "Measure the coverage of the debiased cosine's interval; print a table and JSON.",
        draws=(4000, "draws in each cell"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    cells = [cell(rng, options.draws, *parameters) for parameters in GRID]
    for one in cells:
        measuring.say(
            f"{one['spectrum']:>9}  {'paired' if one['paired'] else 'independent':>11}  n {one['n']:>3}  cosine "
            f"{one['cosine']:.2f}  |mean| {one['signal']:.2f}   covered {one['covered']:.3f}   debiased "
            f"{one['debiased_error']:+.4f}   plain {one['plain_error']:+.4f}   unresolved {one['unresolved']}"
        )
    covered = [one["covered"] for one in cells]
    large = [abs(one["debiased_error"]) for one in cells if one["n"] >= 64]
    result = {
        "draws": options.draws,
        "covered_least": min(covered),
        "covered_most": max(covered),
        "cells_outside_of_92_to_99_percent": sum(not _BOUNDS[0] <= share <= _BOUNDS[1] for share in covered),
        "largest_error_of_debiased_mean_at_64_or_more": max(large),
        "cells": cells,
    }
    measuring.publish(result, options.out)


def cell(
    rng: np.random.Generator, n_draws: int, spectrum: str, paired: bool, n: int, cosine: float, signal: float
) -> dict[str, Any]:
    """Return the coverage and errors of one cell's draws."""
    curves = [curve_of(*draw(rng, spectrum, paired, n, cosine, signal), paired) for _ in range(n_draws)]
    resolved = [curve for curve in curves if np.isfinite(curve.debiased.value)]
    covered = [bool(curve.debiased.low <= cosine <= curve.debiased.high) for curve in resolved]
    return {
        "spectrum": spectrum,
        "paired": paired,
        "n": n,
        "cosine": cosine,
        "signal": signal,
        "covered": float(np.mean(covered)),
        "debiased_error": float(np.mean([curve.debiased.value for curve in resolved]) - cosine),
        "plain_error": float(np.mean([curve.plain for curve in curves]) - cosine),
        "unresolved": n_draws - len(resolved),
    }


def draw(
    rng: np.random.Generator, spectrum: str, paired: bool, n: int, cosine: float, signal: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return one draw of P and N, each (n, d_model)."""
    variances = np.ones(D_MODEL) if spectrum == "flat" else 1.0 / np.arange(1, D_MODEL + 1)
    deviations = np.sqrt(variances / variances.sum())
    basis = np.linalg.qr(rng.normal(size=(D_MODEL, 2)))[0].T
    a, b = signal * basis[0], signal * (cosine * basis[0] + np.sqrt(1 - cosine**2) * basis[1])
    p, q = rng.normal(size=(2, n, D_MODEL)) * deviations
    if paired:
        q = CORRELATION * p + np.sqrt(1 - CORRELATION**2) * q
    return a + p, b + q


def curve_of(p: NDArray[np.float64], q: NDArray[np.float64], paired: bool) -> CosineCurve:
    """Return the cosine of the means of one draw, with its interval."""
    a, b = p.mean(axis=0), q.mean(axis=0)
    traces = [side.var(axis=0, ddof=1).sum() for side in (p, q)]
    return cosine_curve(
        a, b, *map(np.asarray, traces), len(p), len(q), scatter(p, q, a, b, paired=paired), paired=paired
    )


if __name__ == "__main__":
    main()
