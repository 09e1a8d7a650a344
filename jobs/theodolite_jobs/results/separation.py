"""The result group `separation`: cross-validated AUROC, accuracy and Fisher ratio along a contrast's direction."""

from functools import partial
from typing import Any

import numpy as np

from theodolite_jobs.passes.collect import ContrastPasses
from theodolite_jobs.results.arrays import contrast_counts, into_all_positions
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.separation import Estimate, accuracy, auroc, fisher_ratio


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("separation", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    contrasts, n_positions = context.collected.contrasts, len(context.coordinates["position"])
    over_contrasts = partial(into_all_positions, contrasts, n_positions)
    arrays = contrast_counts(contrasts, n_positions)
    estimates = [_estimates(contrast) for contrast in contrasts]
    for name in ("auroc", "accuracy", "fisher_ratio"):
        for suffix, field in (("", "value"), ("_low", "low"), ("_high", "high")):
            arrays[name + suffix] = over_contrasts([getattr(one[name], field) for one in estimates])
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _estimates(contrast: ContrastPasses) -> dict[str, Estimate]:
    """Return each statistic of a contrast with its interval, (site, position, layer)."""
    assert contrast.second is not None
    positive, negative = (np.concatenate(scores) for scores in (contrast.second.positive, contrast.second.negative))
    assert contrast.positive.folds is not None
    assert contrast.negative.folds is not None
    return {
        "auroc": auroc(positive, negative),
        "accuracy": accuracy(positive, negative),
        "fisher_ratio": fisher_ratio(contrast.positive.folds, contrast.negative.folds),
    }
