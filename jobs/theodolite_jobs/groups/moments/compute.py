"""The analysis `moments`: count, mean, sum of squared deviations and extremes of each feature."""

from typing import Any

import numpy as np

from theodolite_jobs.passes.collect import Arrays, SetPasses
from theodolite_jobs.results.context import Context, Result


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("moments", {})


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations."""
    return Result(context.collected.over_sets("moments", _statistics), context.coordinates)


def _statistics(passes: SetPasses) -> Arrays:
    raw, norm, on_sphere, bounds = passes["raw"], passes["norm"], passes["sphere"].mean, passes.first.extremes["raw"]
    return {
        "count": passes.counts,
        "mean": raw.mean,
        "m2": raw.m2,
        "minimum": bounds.minimum,
        "maximum": bounds.maximum,
        "norm_mean": norm.mean,
        "norm_std": np.sqrt(norm.variance),
        # Vectors on the sphere have norm √d_model, so this is the norm of the mean of unit vectors.
        "unit_mean_length": np.linalg.norm(on_sphere, axis=-1) / np.sqrt(on_sphere.shape[-1]),
    }
