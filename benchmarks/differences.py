"""Measure how often the simultaneous band of a difference between two AUROCs contains all true differences.

Each cell draws n prompts of P and N many times: their scores at many depths, whose noise has a correlation of `rho`
between neighbouring depths, and the scores of a control for the same prompts, whose noise has a correlation of 0.5 with
that of each depth. The AUROC of the depths is `value`, and that of the control is `control`. The script prints the grid
as a table. The last line is one JSON object with, for each cell, the share of draws whose band contains the true
difference at all depths, and the share of single intervals that contain it. Paired accuracies have cells of their own.

Usage: python benchmarks/differences.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from location import OF_PAIRS, SCORED
from numpy.typing import NDArray
from scipy.stats import norm

from theodolite_jobs.statistics.refits import Scored
from theodolite_jobs.statistics.score_differences import difference

VALUES = ((0.8, 0.7), (0.9, 0.9), (0.95, 0.9), (0.99, 0.7), (0.99, 0.98))
SAMPLES, CORRELATIONS, WITH_CONTROL = (32, 128), (0.5, 0.95), 0.5


def main() -> None:
    options = measuring.read_options(
        "Measure how often the band of a difference contains all true differences; print a table and JSON.",
        draws=(400, "draws in each cell"),
        depths=(24, "depths"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    cells = []
    for name, paired, n, values, rho in product(SCORED, (False, True), SAMPLES, VALUES, CORRELATIONS):
        if paired or name == "auroc":
            cells.append(cell(rng, options.draws, options.depths, name, paired, n, values, rho))
            measuring.say("  ".join(f"{key} {value}" for key, value in cells[-1].items()))
    summary = {
        f"{name}, n {n}": [min(covered), round(float(np.mean(covered)), 4), max(covered)]
        for name, n in product(SCORED, SAMPLES)
        if (covered := [one["covered"] for one in cells if (one["statistic"], one["n"]) == (name, n)])
    }
    result = {"draws": options.draws, "depths": options.depths, "least_mean_and_most": summary, "cells": cells}
    measuring.publish(result, options.out)


def cell(
    rng: np.random.Generator,
    n_draws: int,
    depths: int,
    name: str,
    paired: bool,
    n: int,
    values: tuple[float, float],
    rho: float,
) -> dict[str, Any]:
    """Return the coverage of one cell's draws."""
    truth, (estimate, terms) = values[0] - values[1], SCORED[name]
    at_once, single = [], []
    for _ in range(n_draws):
        one, band = difference(estimate, terms, *draw(rng, depths, name, paired, n, values, rho))
        at_once.append(bool(((band.low <= truth) & (truth <= band.high)).all()))
        single.append(float(((one.low <= truth) & (truth <= one.high)).mean()))
    covered = {"covered": round(float(np.mean(at_once)), 4), "single": round(float(np.mean(single)), 4)}
    setting = {"statistic": name, "paired": paired, "n": n, "value": values[0], "control": values[1], "rho": rho}
    return setting | covered


def draw(
    rng: np.random.Generator, depths: int, name: str, paired: bool, n: int, values: tuple[float, float], rho: float
) -> list[Scored]:
    """Return the scores of both sets at all depths, and those of the control, each (prompt, depth)."""
    root = np.linalg.cholesky(rho ** np.abs(np.subtract.outer(range(depths), range(depths))))
    control = _sides(rng.standard_normal((2, n, 1)), paired)
    own = _sides(rng.standard_normal((2, n, depths)) @ root.T, paired)
    own = [WITH_CONTROL * c + np.sqrt(1 - WITH_CONTROL**2) * o for c, o in zip(control, own, strict=True)]
    # The standard deviation of the difference of two prompts, of other pairs or of one.
    spread = np.sqrt(2 * (1 - OF_PAIRS)) if name == "paired_accuracy" else np.sqrt(2)
    shifts = [spread * norm.ppf(value) for value in values]
    controls = (np.broadcast_to(control[0] + shifts[1], own[0].shape), np.broadcast_to(control[1], own[1].shape))
    no_fits = np.zeros((n if paired else 2 * n, depths))
    return [Scored(*sides, no_fits, paired) for sides in ((own[0] + shifts[0], own[1]), controls)]


def _sides(noise: NDArray[np.float64], paired: bool) -> list[NDArray[np.float64]]:
    """Return the noise of P and N; that of the two prompts of a pair is correlated."""
    first, second = noise
    return [OF_PAIRS * second + np.sqrt(1 - OF_PAIRS**2) * first if paired else first, second]


if __name__ == "__main__":
    main()
