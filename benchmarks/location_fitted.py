"""Measure the coverage of the depths that may be best, and of differences, with fitted directions.

`location.py` draws scores. This script draws vectors at depths whose noise has a correlation of `rho` between
neighbours, fits both classifiers in five folds, and scores held-out vectors, as `permutations` does. The noise is equal
in all features, or its variance falls as 1/k, or one feature has most of it, as in activations. All depths have the
same distribution, so they are equally good, and each of them counts in turn as the best. As many further depths are a
control: the band of the difference should contain 0 at all depths. The script prints the grid as a table. The last line
is one JSON object with, for each cell, the mean AUROC, the share of draws whose set contains the best depth, that of
the scored prompts' error alone, and the share of draws whose band contains 0 at all depths.

Usage: python benchmarks/location_fitted.py --help
"""

from itertools import product
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np

from theodolite_jobs.statistics import permutations
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.statistics.held_out import held_out_ridge_scores, held_out_scores
from theodolite_jobs.statistics.location import location
from theodolite_jobs.statistics.refits import Scored, refitted, stacked
from theodolite_jobs.statistics.score_differences import difference
from theodolite_jobs.statistics.scores import auroc, auroc_terms

CLASSIFIERS = {"difference of means": held_out_scores, "ridge regression": held_out_ridge_scores}
SETTINGS = (
    ("equal", 16, 0.8),
    ("equal", 16, 1.5),
    ("equal", 16, 2.6),
    ("equal", 64, 1.5),
    ("equal", 64, 2.6),
    ("falling", 256, 4.0),
    ("falling", 256, 9.0),
    ("one large", 32, 4.0),
)
"""Variances, number of features, and Mahalanobis distance of the true means."""


def main() -> None:
    options = measuring.read_options(
        "Measure the coverage of best depths and of differences with fitted directions; print a table and JSON.",
        draws=(200, "draws in each cell"),
        depths=(8, "depths, and as many of the control"),
        prompts=(128, "prompts in each set"),
        rho=(0.9, "correlation between the noise of neighbouring depths"),
        seed=(0, "seed of all draws"),
    )
    rng = np.random.default_rng(options.seed)
    cells = [_cell(rng, options, *setting) for setting in product(CLASSIFIERS, SETTINGS)]
    facts = {name: getattr(options, name) for name in ("draws", "depths", "prompts", "rho")}
    measuring.publish(facts | {"cells": cells}, options.out)


def _cell(rng: np.random.Generator, options: Any, classifier: str, setting: tuple[str, int, float]) -> dict[str, Any]:
    (variances, features, distance), n, depths = setting, options.prompts, options.depths
    labels, folds = np.arange(2 * n) < n, np.tile(np.arange(n) % FOLDS, 2)
    scales = np.arange(1, features + 1) ** -0.5 if variances == "falling" else np.ones(features)
    scales[0] *= 10 if variances == "one large" else 1
    root = np.linalg.cholesky(options.rho ** np.abs(np.subtract.outer(range(2 * depths), range(2 * depths))))
    found = []
    for _ in range(options.draws):
        vectors = (rng.standard_normal((2 * n, features, 2 * depths)) @ root.T).transpose(2, 0, 1) * scales
        shift = rng.standard_normal(features) * np.sqrt(scales)
        vectors[:, :n] += shift * distance / np.linalg.norm(shift / scales)
        places = [_scored(CLASSIFIERS[classifier], x - x.mean(axis=0), labels, folds) for x in vectors]
        own, control = stacked(places[:depths], (depths,)), stacked(places[depths:], (depths,))
        value = auroc(own.positive, own.negative, paired=False).value
        alone = auroc_terms(own.positive, own.negative, paired=False)
        _, band = difference(auroc, auroc_terms, own, control)
        located = [location(value, terms, n - 1.0).mean() for terms in (own.terms(auroc_terms), alone)]
        found.append((value.mean(), *located, ((band.low <= 0) & (band.high >= 0)).all()))
    names = ("auroc", "covered", "covered_by_scores_alone", "difference_covered")
    means = {name: round(float(mean), 4) for name, mean in zip(names, np.mean(found, axis=0), strict=True)}
    facts = {"variances": variances, "features": features, "distance": distance}
    cell = {"classifier": classifier} | facts | means
    measuring.say("  ".join(f"{name} {value}" for name, value in cell.items()))
    return cell


def _scored(scores: Any, samples: np.ndarray, labels: np.ndarray, folds: np.ndarray) -> Scored:
    gram = samples @ samples.T
    after = refitted(scores, gram, labels, folds, paired=False)
    areas = permutations.auroc(after, np.broadcast_to(labels, after.shape))
    positive, negative = np.split(scores(gram, labels[None], folds)[0], 2)
    return Scored(positive, negative, areas, paired=False)


if __name__ == "__main__":
    main()
