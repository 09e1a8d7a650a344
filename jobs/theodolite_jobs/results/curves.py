"""The result group `curves`: cosine between means, variances and norms along depth, raw and on the sphere."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from theodolite_jobs.passes.collect import ContrastPasses
from theodolite_jobs.results.arrays import contrast_counts, into_all_positions
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.curves import CosineCurve, cosine_curve, variance_curves

_COSINE_FIELDS: Mapping[str, str] = {
    "cosine_of_means": "plain",
    "cosine_of_means_debiased": "debiased",
    "cosine_of_means_low": "low",
    "cosine_of_means_high": "high",
    "difference_norm": "difference_norm",
}


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("curves", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    sets, contrasts = context.collected.sets, context.collected.contrasts
    n_positions = len(context.coordinates["position"])
    over_sets = partial(into_all_positions, sets, n_positions)
    over_contrasts = partial(into_all_positions, contrasts, n_positions)
    arrays = contrast_counts(contrasts, n_positions)
    for space, prefix in (("raw", ""), ("sphere", "on_sphere_")):
        cosines = [_cosine(contrast, space) for contrast in contrasts]
        for name, field in _COSINE_FIELDS.items():
            arrays[prefix + name] = over_contrasts([getattr(cosine, field) for cosine in cosines])
        parts = [passes[space] for passes in sets]
        variances = [variance_curves(part.variance) for part in parts]
        arrays[f"{prefix}variance_mean"] = over_sets([mean for mean, _, _ in variances])
        arrays[f"{prefix}variance_max"] = over_sets([largest for _, largest, _ in variances])
        arrays[f"{prefix}variance_max_feature"] = over_sets([feature for _, _, feature in variances], fill=-1)
        arrays[f"{prefix}norm_of_mean"] = over_sets([np.linalg.norm(part.mean, axis=-1) for part in parts])
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _cosine(contrast: ContrastPasses, space: str) -> CosineCurve:
    """Return the cosine of a contrast's means in one space, with its interval."""
    positive, negative = contrast.positive.moments[space], contrast.negative.moments[space]
    assert contrast.second is not None
    return cosine_curve(
        positive.mean,
        negative.mean,
        positive.variance.sum(axis=-1),
        negative.variance.sum(axis=-1),
        positive.count,
        negative.count,
        contrast.second.scatter[space],
        paired=contrast.paired,
    )
