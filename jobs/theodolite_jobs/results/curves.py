"""The result group `curves`: cosine between means, variances and norms along depth, raw and on the sphere."""

from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.bands import simultaneous_quantile
from theodolite.groups.curves import SAMPLE_SIZES
from theodolite_jobs.passes.collect import Arrays, ContrastPasses, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.results.locations import locations
from theodolite_jobs.statistics.curves import (
    CosineCurve,
    Groups,
    cosine_curve,
    cosine_quantile,
    cosine_terms,
    degrees_of_freedom,
    top_share,
    variance_curves,
)
from theodolite_jobs.statistics.curves_sample_size import expected_cosines, squared_covariance_trace

SPACES = {"raw": "", "sphere": "on_sphere_"}
"""The prefix of the variables' names in each space."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("curves", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    cosines = partial(_cosines, sites=context.coordinates["site"])
    arrays = context.collected.over_contrasts("curves", cosines)
    arrays |= context.collected.over_sets("curves", _variances)
    coordinates = {**context.coordinates, "n_prompts": SAMPLE_SIZES}
    return Result(arrays, coordinates, {"contrasts": context.contrasts})


def _cosines(passes: ContrastPasses, sites: Sequence[str]) -> Arrays:
    assert passes.second is not None
    assert passes.positive.folds is not None
    assert passes.negative.folds is not None
    squares = squared_covariance_trace(passes.positive.folds), squared_covariance_trace(passes.negative.folds)
    arrays = passes.counts
    for space, prefix in SPACES.items():
        positive, negative = passes.positive.moments[space], passes.negative.moments[space]
        traces = positive.variance.sum(axis=-1), negative.variance.sum(axis=-1)
        known = positive.mean, negative.mean, *traces, positive.count, negative.count
        groups, sums = passes.groups(space), passes.second.scatter[space]
        curve = cosine_curve(*known, sums, paired=passes.paired, groups=groups)
        arrays |= {prefix + name: values for name, values in curve._asdict().items()}
        if space == "raw":  # publications scale no activations
            kind: dict[str, Any] = {"paired": passes.paired, "groups": groups}
            arrays |= expected_cosines(SAMPLE_SIZES, *known, sums, squares, **kind)._asdict()
        p, q = (np.concatenate(side) for side in passes.second.dots[space])
        terms = cosine_terms(curve.cosine_of_means_debiased, *known, p, q, paired=passes.paired)
        half = _half_band(curve, terms, groups)
        arrays[f"{prefix}cosine_of_means_band_low"] = curve.cosine_of_means_debiased - half
        arrays[f"{prefix}cosine_of_means_band_high"] = curve.cosine_of_means_debiased + half
        free = min(degrees_of_freedom(groups), len(p) - 1, len(q) - 1)
        smallest = locations(sites, -curve.cosine_of_means_debiased, terms, free)
        arrays[f"{prefix}cosine_of_means_location"] = smallest
    return arrays


def _half_band(curve: CosineCurve, terms: NDArray[np.float64], groups: Groups | None) -> NDArray[np.float64]:
    """Return half the width of the band over all sites and layers of each position, (site, position, layer).

    Args:
        curve: arrays of (site, position, layer).
        terms: the terms of the cosine's error, (row, site, position, layer).
        groups: what is known of the samples.
    """
    errors = (curve.cosine_of_means_high - curve.cosine_of_means_debiased) / cosine_quantile(groups)
    free = degrees_of_freedom(groups)
    quantiles = [simultaneous_quantile(one, degrees_of_freedom=free) for one in np.moveaxis(terms, 2, 0)]
    return np.asarray(errors * np.array(quantiles)[:, None])


def _variances(passes: SetPasses) -> Arrays:
    arrays: Arrays = {}
    for space, prefix in SPACES.items():
        mean, largest, feature = variance_curves(passes[space].variance)
        arrays |= {f"{prefix}variance_mean": mean, f"{prefix}variance_max": largest}
        arrays[f"{prefix}variance_max_feature"] = feature
        arrays[f"{prefix}variance_top3_share"] = top_share(passes[space].variance, 3)
        arrays[f"{prefix}norm_of_mean"] = np.linalg.norm(passes[space].mean, axis=-1)
    return arrays
