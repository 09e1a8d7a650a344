"""The analysis `separation`: cross-validated AUROC, accuracy and Fisher ratio along a contrast's direction."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite_jobs.groups.separation.formulas import fisher_ratio
from theodolite_jobs.groups.separation.scores import score_tables
from theodolite_jobs.passes.collect import Arrays, ContrastPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics import scores


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("separation", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    arrays = context.collected.over_contrasts("separation", _statistics)
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts}, tables=score_tables(context))


def _statistics(passes: ContrastPasses) -> Arrays:
    assert passes.second is not None
    positive, negative = (np.concatenate(side) for side in (passes.second.positive, passes.second.negative))
    assert passes.positive.folds is not None
    assert passes.negative.folds is not None
    # Of the stored activations alone, which may be fewer than those that were captured.
    arrays: Arrays = {"n_used": np.array([[len(positive), len(negative)]] * len(passes.positions))}
    for name, (estimate, terms) in scores.OF_SCORES.items():
        value = estimate(positive, negative, paired=passes.paired)
        quantiles = _band_quantiles(terms(positive, negative, paired=passes.paired))
        band = estimate(positive, negative, paired=passes.paired, quantile=quantiles)
        arrays[name] = value.with_band(band)
        if name == "auroc":
            arrays["auroc_band_limit"] = scores.bound_of_one(min(len(positive), len(negative)), quantiles.ravel())
    return arrays | {"fisher_ratio": fisher_ratio(passes.positive.folds, passes.negative.folds).with_band()}


def _band_quantiles(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the quantile of the band over all sites and layers of each position, (1, position, 1).

    Args:
        terms: (row, site, position, layer).
    """
    return np.array([simultaneous_quantile(one) for one in np.moveaxis(terms, 2, 0)])[None, :, None]
