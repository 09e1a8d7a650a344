"""Measure the coverage of the depths that may be best if directions are fitted, as `separation` and `permutations` do.

`location.py` draws scores. This script draws vectors at depths whose noise has a correlation of `rho` between
neighbours, fits both classifiers in five folds, and scores held-out vectors. All depths have the same distribution, so
they are equally good, and each of them counts in turn as the best. The script prints the grid as a table. The last line
is one JSON object with, for each cell, the mean AUROC and the share of draws whose set contains the best depth.

Usage: python benchmarks/location_fitted.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np

from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.permutations import held_out_ridge_scores, held_out_scores
from theodolite_jobs.statistics.separation import FOLDS
from theodolite_jobs.statistics.separation_scores import auroc, auroc_terms

CLASSIFIERS = {"difference of means": held_out_scores, "ridge regression": held_out_ridge_scores}
SETTINGS = ((16, 0.8), (16, 1.5), (16, 2.6), (64, 1.5), (64, 2.6))
"""Number of features, and distance of the true means in standard deviations of a feature."""


def main() -> None:
    options = measuring.read_options(
        "Measure the coverage of the set of best depths with fitted directions; print a table and JSON.",
        draws=(300, "draws in each cell"),
        depths=(10, "depths"),
        prompts=(128, "prompts in each set"),
        rho=(0.9, "correlation between the noise of neighbouring depths"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    cells = [_cell(rng, options, *setting) for setting in product(CLASSIFIERS, SETTINGS)]
    facts = {name: getattr(options, name) for name in ("draws", "depths", "prompts", "rho")}
    measuring.publish(facts | {"cells": cells}, options.out)


def _cell(rng: np.random.Generator, options: Any, classifier: str, setting: tuple[int, float]) -> dict[str, Any]:
    (features, distance), n = setting, options.prompts
    folds, labels = np.tile(np.arange(n) % FOLDS, 2), (np.arange(2 * n) < n)[None]
    root = np.linalg.cholesky(options.rho ** np.abs(np.subtract.outer(range(options.depths), range(options.depths))))
    areas, covered = [], []
    for _ in range(options.draws):
        vectors = (rng.standard_normal((2 * n, features, options.depths)) @ root.T).transpose(2, 0, 1)
        vectors[:, :n] += distance / np.sqrt(features)
        scores = [CLASSIFIERS[classifier](x @ x.T, labels, folds)[0] for x in vectors - vectors.mean(axis=1)[:, None]]
        sides = np.split(np.stack(scores, axis=1), 2)
        value = auroc(*sides, paired=False).value
        areas.append(value.mean())
        covered.append(location(value, auroc_terms(*sides, paired=False), n - 1.0).mean())
    found = {"auroc": round(float(np.mean(areas)), 3), "covered": round(float(np.mean(covered)), 4)}
    cell = {"classifier": classifier, "features": features, "distance": distance, **found}
    measuring.say("  ".join(f"{name} {value}" for name, value in cell.items()))
    return cell


if __name__ == "__main__":
    main()
