"""Measure how often the depths that cannot be told from the best one contain the truly best one.

Each cell draws n prompts of P and N many times, at depths whose noise is correlated: `rho` between neighbours, its
square between the next ones, and so on. In the truth `equal`, the least favourable one, all depths are equally good,
and each of them counts in turn as the best. In `near` and `one`, the scores of one depth have means that are farther
apart, by 0.1 and by 1 standard deviation. The statistics are the AUROC, the share of pairs in the right order, and the
debiased cosine of means, whose smallest value is the best. The script prints the grid as a table. The last line is one
JSON object with, for each cell, the share of draws whose set contains the best depth, and the mean share of depths in
it.

Usage: python benchmarks/location.py --help
"""

from collections.abc import Callable
from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm

from theodolite_jobs.groups.curves.formulas import cosine_curve, cosine_terms
from theodolite_jobs.statistics import scores
from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.scatter import mean_dots, scatter

TRUTHS = {"equal": 0.0, "near": 0.1, "one": 1.0}
SAMPLES, CORRELATIONS = (12, 32, 128), (0.5, 0.9, 0.98)
AREAS, COSINES = (0.8, 0.9, 0.95, 0.99), (0.5, 0.9, 0.99)
OF_PAIRS = 0.5
"""Correlation between the noise of a pair's two prompts."""

FEATURES, SIGNAL = 48, 1.0
"""Of the vectors whose cosine is measured: their number of features, and the length of the means; the noise has 1."""

SCORED = {
    "auroc": (scores.auroc, scores.auroc_terms),
    "paired_accuracy": (scores.paired_accuracy, scores.paired_accuracy_terms),
}

Draw = tuple[NDArray[np.float64], NDArray[np.float64]]
"""Estimates, of which the largest is the best, and the terms of their errors."""


def main() -> None:
    options = measuring.read_options(
        "Measure how often the set of depths contains the best one; print a table and JSON.",
        draws=(300, "draws in each cell"),
        depths=(46, "depths"),
        seed=(0, "seed of all draws"),
    )
    rng, shape = np.random.default_rng(options.seed), options.depths
    cells = []
    for name, truth, paired, n, area, rho in product(SCORED, TRUTHS, (False, True), SAMPLES, AREAS, CORRELATIONS):
        if paired or name == "auroc":
            setting = {"statistic": name, "truth": truth, "paired": paired, "n": n, "value": area, "rho": rho}
            one = (rng, name, TRUTHS[truth], paired, n, area, rho, shape)
            cells.append(setting | _coverage(lambda one=one: of_scores(*one), n, truth, options.draws))
    for paired, n, cosine, rho in product((False, True), SAMPLES[1:], COSINES, CORRELATIONS[:2]):
        setting = {"statistic": "cosine", "truth": "equal", "paired": paired, "n": n, "value": cosine, "rho": rho}
        one = (rng, paired, n, cosine, rho, shape)
        cells.append(setting | _coverage(lambda one=one: of_cosines(*one), n, "equal", options.draws // 3))
    for cell in cells:
        measuring.say("  ".join(f"{name} {value}" for name, value in cell.items()))
    measuring.publish({"draws": options.draws, "depths": shape, **_summary(cells), "cells": cells}, options.out)


def _coverage(draw: Callable[[], Draw], n: int, truth: str, n_draws: int) -> dict[str, float]:
    sets = np.stack([location(*draw(), degrees_of_freedom=n - 1) for _ in range(n_draws)])
    best = sets if truth == "equal" else sets[:, sets.shape[1] // 2]
    return {"covered": round(float(np.nanmean(best)), 4), "share_of_depths": round(float(np.nanmean(sets)), 4)}


def _summary(cells: list[dict[str, Any]]) -> dict[str, Any]:
    summary = {}
    for name, truth in dict.fromkeys((cell["statistic"], cell["truth"]) for cell in cells):
        chosen = [cell for cell in cells if (cell["statistic"], cell["truth"]) == (name, truth)]
        covered, sizes = ([cell[key] for cell in chosen] for key in ("covered", "share_of_depths"))
        summary[f"{name}, {truth}"] = {
            "covered": [min(covered), round(float(np.mean(covered)), 4), max(covered)],
            "share_of_depths": [min(sizes), round(float(np.mean(sizes)), 4), max(sizes)],
        }
    return {"least_mean_and_most": summary}


def of_scores(
    rng: np.random.Generator, name: str, better: float, paired: bool, n: int, area: float, rho: float, depths: int
) -> Draw:
    """Return one draw of a statistic of scores; the depth in the middle is better than all others."""
    q, p = (_noise(rng, (n,), rho, depths) for _ in range(2))
    if paired:
        p = OF_PAIRS * q + np.sqrt(1 - OF_PAIRS**2) * p
    distances = np.full(depths, np.sqrt(2) * norm.ppf(area))
    distances[depths // 2] += better
    estimate, terms = SCORED[name]
    return estimate(p + distances, q, paired=paired).value, terms(p + distances, q, paired=paired)


def of_cosines(rng: np.random.Generator, paired: bool, n: int, cosine: float, rho: float, depths: int) -> Draw:
    """Return one draw of negated debiased cosines of means, which are equal at all depths."""
    q = _noise(rng, (n, FEATURES), rho, depths)
    p = _noise(rng, (n, FEATURES), rho, depths)
    if paired:
        p = OF_PAIRS * q + np.sqrt(1 - OF_PAIRS**2) * p
    means = SIGNAL * np.array([[1.0, 0.0], [cosine, np.sqrt(1 - cosine**2)]])
    samples = [np.moveaxis(side, -1, 0) / np.sqrt(FEATURES) for side in (p, q)]  # (depth, prompt, feature)
    values, dots = [], []
    for x, y in zip(*samples, strict=True):
        x[:, :2] += means[0]
        y[:, :2] += means[1]
        a, b = x.mean(axis=0), y.mean(axis=0)
        traces = [np.asarray(side.var(axis=0, ddof=1).sum()) for side in (x, y)]
        known = a, b, *traces, n, n
        value = cosine_curve(*known, scatter(x, y, a, b, paired=paired), paired=paired).debiased.value
        ones = np.ones(n)
        terms = cosine_terms(value, *known, mean_dots(x, a, b, ones), mean_dots(y, b, a, ones), paired=paired)
        values.append(value)
        dots.append(terms)
    return -np.array(values), np.stack(dots, axis=-1)


def _noise(rng: np.random.Generator, shape: tuple[int, ...], rho: float, depths: int) -> NDArray[np.float64]:
    """Return standard normal numbers of a shape at each depth, (*shape, depth)."""
    correlations = rho ** np.abs(np.subtract.outer(np.arange(depths), np.arange(depths)))
    return np.asarray(rng.standard_normal((*shape, depths)) @ np.linalg.cholesky(correlations).T)


if __name__ == "__main__":
    main()
