"""The result group `curves`: cosine between means, variances and norms along depth, raw and on the sphere."""

from typing import Any

import numpy as np

from theodolite_jobs.passes.collect import Arrays, ContrastPasses, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.bands import simultaneous_quantile
from theodolite_jobs.statistics.curves import (
    cosine_curve,
    cosine_quantile,
    cosine_terms,
    degrees_of_freedom,
    top_share,
    variance_curves,
)

SPACES = {"raw": "", "sphere": "on_sphere_"}
"""The prefix of the variables' names in each space."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("curves", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    arrays = context.collected.over_contrasts("curves", _cosines)
    arrays |= context.collected.over_sets("curves", _variances)
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _cosines(passes: ContrastPasses) -> Arrays:
    assert passes.second is not None
    arrays = passes.counts
    for space, prefix in SPACES.items():
        positive, negative = passes.positive.moments[space], passes.negative.moments[space]
        traces = positive.variance.sum(axis=-1), negative.variance.sum(axis=-1)
        known = positive.mean, negative.mean, *traces, positive.count, negative.count
        groups, sums = passes.groups(space), passes.second.scatter[space]
        curve = cosine_curve(*known, sums, paired=passes.paired, groups=groups)
        arrays |= {prefix + name: values for name, values in curve._asdict().items()}
        dots = (np.concatenate(side) for side in passes.second.dots[space])
        terms = cosine_terms(curve.cosine_of_means_debiased, *known, *dots, paired=passes.paired)
        half = (curve.cosine_of_means_high - curve.cosine_of_means_debiased) / cosine_quantile(groups)
        for index in range(len(passes.positions)):  # a band covers all sites and layers of a position
            quantile = simultaneous_quantile(terms[:, :, index], degrees_of_freedom=degrees_of_freedom(groups))
            half[:, index] *= quantile
        arrays[f"{prefix}cosine_of_means_band_low"] = curve.cosine_of_means_debiased - half
        arrays[f"{prefix}cosine_of_means_band_high"] = curve.cosine_of_means_debiased + half
    return arrays


def _variances(passes: SetPasses) -> Arrays:
    arrays: Arrays = {}
    for space, prefix in SPACES.items():
        mean, largest, feature = variance_curves(passes[space].variance)
        arrays |= {f"{prefix}variance_mean": mean, f"{prefix}variance_max": largest}
        arrays[f"{prefix}variance_max_feature"] = feature
        arrays[f"{prefix}variance_top3_share"] = top_share(passes[space].variance, 3)
        arrays[f"{prefix}norm_of_mean"] = np.linalg.norm(passes[space].mean, axis=-1)
    return arrays
