"""The analysis `directions`: unit vectors from negative to positive means, and cosines between layers."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.schema import SPACES
from theodolite_jobs.groups.directions.formulas import contrast_cosines, direction, direction_cosines
from theodolite_jobs.groups.directions.formulas_reliability import (
    noise_share,
    reliability,
    samples_of_half,
    split_half_cosine,
)
from theodolite_jobs.passes.collect import Arrays, ContrastPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.scatter import pair_noise


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("directions", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations."""
    arrays = context.collected.over_contrasts("directions", _directions)
    if "direction" in arrays:  # (contrast, site, position, layer, space, d_model)
        arrays["contrast_cosine"] = contrast_cosines(arrays["direction"][..., SPACES.index("raw"), :])
    return Result(arrays, context.coordinates, {"contrasts": context.contrasts})


def _directions(passes: ContrastPasses) -> Arrays:
    p, q = passes.positive.moments["raw"], passes.negative.moments["raw"]
    units, difference = direction(p.mean, q.mean), p.mean - q.mean
    on_sphere = direction(*(side.moments["sphere"].mean for side in (passes.positive, passes.negative)))
    directions = {
        "direction": np.stack([units, on_sphere], axis=-2),  # as SPACES
        "on_sphere_direction_cosine": np.vecdot(units, on_sphere),
        "direction_cosine": direction_cosines(units),
    }
    return {**passes.counts, **directions, **_noise(passes, difference)}


def _noise(passes: ContrastPasses, difference: NDArray[np.float64]) -> Arrays:
    """Return how much of a difference of means is noise, and how well its direction would repeat."""
    assert passes.second is not None
    p, q = passes.positive.moments["raw"], passes.negative.moments["raw"]
    traces = p.variance.sum(axis=-1), q.variance.sum(axis=-1)
    squared = np.vecdot(difference, difference)
    sums = passes.second.scatter["raw"]
    pairs = pair_noise(sums, *traces, p.count, passes.groups("raw")) if passes.paired else np.zeros(squared.shape)
    share = noise_share(squared, *traces, p.count, q.count, pairs)
    positive, negative = passes.positive.folds, passes.negative.folds
    assert positive is not None
    assert negative is not None
    cosine = split_half_cosine(positive, negative)
    repeated = reliability(cosine, samples_of_half(positive, negative), (p.count, q.count))
    if passes.groups("raw") is not None:  # the halves have stored prompts alone, too few to extrapolate from
        repeated = np.maximum(1 - share, 0)
    return {
        "noise_share": share,
        "difference_norm_debiased": np.sqrt(np.where(share < 1, squared * (1 - share), np.nan)),
        "split_half_cosine": cosine,
        "reliability": repeated,
    }
