"""Measure the coverage of the intervals of R² of maps, and the bias of stretches, over a grid of simulated layers.

Each cell draws inputs x and outputs y = xA + noise many times. The inputs have a power-law spectrum. They are Gaussian,
or have the longer tails of Student's t with 5 degrees of freedom. A is the identity plus a random matrix. The noise has
a tenth of the variance of the inputs, or as much. The true R² is the mean over the draws, for maps that are fitted to
four fifths of the samples. The script prints the grid as a table. The last line is one JSON object with, for each cell,
the share of draws whose interval contains the true R², and the errors of the mean stretch and isometry defect.

Usage: python benchmarks/maps.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from numpy.typing import NDArray

from theodolite.groups.basis.record import QUANTILES
from theodolite_jobs.groups.basis.formulas import pair_grams, r_squared
from theodolite_jobs.groups.basis.formulas_spectrum import Stretch, isometry_defect, stretch
from theodolite_jobs.statistics.folds import FOLDS

D_MODEL = 192
DEGREES = 5
"""Degrees of freedom of Student's t."""

GRID = list(product((20, 64, 256), ("normal", "t"), (0.1, 1.0)))
"""n, the tails of the inputs, and the noise of each cell."""

NAMES = ("affine", "orthogonal", "identity", "step")


def main() -> None:
    options = measuring.read_options(
        "Measure the coverage of the intervals of R² of maps; print a table and JSON.",
        draws=(200, "draws in each cell"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    linear = np.eye(D_MODEL) + 0.5 * rng.normal(size=(D_MODEL, D_MODEL)) / np.sqrt(D_MODEL)
    cells = [cell(rng, options.draws, linear, *parameters) for parameters in GRID]
    for one in cells:
        shares = "  ".join(f"{name} {one['r_squared'][name]:.3f} ({one['covered'][name]:.3f})" for name in NAMES)
        measuring.say(
            f"n {one['n']:>3}  {one['tails']:>6}  noise {one['noise']:.1f}   R² (covered): {shares}   permuted "
            f"{one['permuted']:+.4f}   errors of stretch and defect {one['stretch_median_error']} "
            f"{one['defect_error']} ({one['draws_with_several_directions']} draws)"
        )
    covered = [one["covered"][name] for one in cells for name in NAMES]
    result = {
        "draws": options.draws,
        "d_model": D_MODEL,
        "covered_least": min(covered),
        "covered_most": max(covered),
        "largest_permuted": max(one["permuted"] for one in cells),
        "largest_error_of_stretch_median": max(abs(one["stretch_median_error"] or 0.0) for one in cells),
        "largest_error_of_defect": max(abs(one["defect_error"] or 0.0) for one in cells),
        "cells": cells,
    }
    measuring.publish(result, options.out)


def cell(
    rng: np.random.Generator, n_draws: int, linear: NDArray[np.float64], n: int, tails: str, noise: float
) -> dict[str, Any]:
    """Return R², coverage and errors of one cell's draws."""
    estimates, errors = [], []
    for _ in range(n_draws):
        x, y = draw(rng, linear, n, tails, noise)
        grams = pair_grams(x, y)
        estimates.append(r_squared(grams, np.arange(n) % FOLDS))
        errors.append(stretch_errors(x, linear, stretch(grams, D_MODEL)))
    truth = {name: float(np.mean([one[name].value for one in estimates])) for name in (*NAMES, "permuted")}
    covered = {
        name: float(np.mean([one[name].low <= truth[name] <= one[name].high for one in estimates])) for name in NAMES
    }
    known = [both for both in errors if np.isfinite(both).all()]
    median_error, defect_error = np.mean(known, axis=0).tolist() if known else (None, None)
    return {
        "n": n,
        "tails": tails,
        "noise": noise,
        "r_squared": {name: truth[name] for name in NAMES},
        "covered": covered,
        "permuted": truth["permuted"],
        "draws_with_several_directions": len(known),
        "stretch_median_error": median_error,
        "defect_error": defect_error,
    }


def draw(
    rng: np.random.Generator, linear: NDArray[np.float64], n: int, tails: str, noise: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return inputs and outputs of one draw, each (n, d_model); the variance of the inputs is about 1."""
    variances = 1.0 / np.arange(1, D_MODEL + 1)
    x = rng.normal(size=(n, D_MODEL)) * np.sqrt(variances / variances.sum())
    if tails == "t":
        x /= np.sqrt(rng.chisquare(DEGREES, size=(n, 1)) / DEGREES)
    return x, x @ linear + rng.normal(size=(n, D_MODEL)) * np.sqrt(noise / D_MODEL)


def stretch_errors(x: NDArray[np.float64], linear: NDArray[np.float64], measured: Stretch) -> tuple[float, float]:
    """Return the errors of the median stretch and of the isometry defect on the measured directions of the inputs."""
    if not measured.dimension:
        return float("nan"), float("nan")
    directions = np.linalg.svd(x - x.mean(axis=0), full_matrices=False)[2][: measured.dimension]
    singular = np.linalg.svd(directions @ linear, compute_uv=False)
    median = measured.stretch[QUANTILES.index(0.5)]
    return median - float(np.median(singular)), measured.isometry_defect - isometry_defect(singular)


if __name__ == "__main__":
    main()
