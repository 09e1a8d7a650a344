"""The result group `separation`: cross-validated AUROC, accuracy and Fisher ratio along a contrast's direction."""

from typing import Any

import numpy as np

from theodolite_jobs.passes.collect import Arrays, ContrastPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.separation import accuracy, auroc, fisher_ratio


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("separation", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    arrays = context.collected.over_contrasts("separation", _statistics)
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _statistics(passes: ContrastPasses) -> Arrays:
    assert passes.second is not None
    positive, negative = (np.concatenate(scores) for scores in (passes.second.positive, passes.second.negative))
    assert passes.positive.folds is not None
    assert passes.negative.folds is not None
    estimates = {
        "auroc": auroc(positive, negative),
        "accuracy": accuracy(positive, negative),
        "fisher_ratio": fisher_ratio(passes.positive.folds, passes.negative.folds),
    }
    # Of the stored activations alone, which may be fewer than those that were captured.
    sides = {"n_positive": positive, "n_negative": negative}
    arrays: Arrays = {name: np.full(len(passes.positions), len(scores)) for name, scores in sides.items()}
    for name, estimate in estimates.items():
        arrays |= {name: estimate.value, f"{name}_low": estimate.low, f"{name}_high": estimate.high}
    return arrays
