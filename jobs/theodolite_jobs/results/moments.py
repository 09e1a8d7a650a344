"""The result group `moments`: count, mean, sum of squared deviations and extremes of each feature."""

from typing import Any

import numpy as np

from theodolite_jobs.results.arrays import Placer, set_counts
from theodolite_jobs.results.context import Context, Result


def rests_on(context: Context) -> dict[str, Any]:
    """Return what the group's digest covers."""
    return context.rests_on_captured("moments", {})


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations."""
    sets, n_positions = context.collected.sets, len(context.coordinates["position"])
    place = Placer(sets, n_positions)
    raw, extremes = [subject["raw"] for subject in sets], [subject.first.extremes["raw"] for subject in sets]
    on_sphere = [subject["sphere"].mean for subject in sets]
    arrays = {
        "count": set_counts(sets, n_positions),
        "mean": place([part.mean for part in raw]),
        "m2": place([part.m2 for part in raw]),
        "minimum": place([part.minimum for part in extremes]),
        "maximum": place([part.maximum for part in extremes]),
        "norm_mean": place([subject["norm"].mean for subject in sets]),
        "norm_std": place([np.sqrt(subject["norm"].variance) for subject in sets]),
        # Vectors on the sphere have length √d_model, so this is the length of the mean of unit vectors.
        "unit_mean_length": place([np.linalg.norm(mean, axis=-1) / np.sqrt(mean.shape[-1]) for mean in on_sphere]),
    }
    return Result(arrays, context.coordinates)
