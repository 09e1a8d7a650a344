"""The result group `moments`: count, mean, sum of squared deviations and extremes of each feature."""

from functools import partial
from typing import Any

import numpy as np

from theodolite_jobs.results.arrays import into_all_positions, set_counts
from theodolite_jobs.results.context import Context, Result


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("moments", {})


def compute(context: Context) -> Result:
    """Return the group from the first pass over the activations."""
    sets, n_positions = context.collected.sets, len(context.coordinates["position"])
    over_sets = partial(into_all_positions, sets, n_positions)
    raw, extremes = [passes["raw"] for passes in sets], [passes.first.extremes["raw"] for passes in sets]
    on_sphere = [passes["sphere"].mean for passes in sets]
    arrays = {
        "count": set_counts(sets, n_positions),
        "mean": over_sets([part.mean for part in raw]),
        "m2": over_sets([part.m2 for part in raw]),
        "minimum": over_sets([part.minimum for part in extremes]),
        "maximum": over_sets([part.maximum for part in extremes]),
        "norm_mean": over_sets([passes["norm"].mean for passes in sets]),
        "norm_std": over_sets([np.sqrt(passes["norm"].variance) for passes in sets]),
        # Vectors on the sphere have norm √d_model, so this is the norm of the mean of unit vectors.
        "unit_mean_length": over_sets([np.linalg.norm(mean, axis=-1) / np.sqrt(mean.shape[-1]) for mean in on_sphere]),
    }
    return Result(arrays, context.coordinates)
