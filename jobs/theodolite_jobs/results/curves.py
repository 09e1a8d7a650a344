"""The result group `curves`: cosine between means, variances and norms along depth, raw and on the sphere."""

from typing import Any

import numpy as np

from theodolite.groups.curves import SAMPLE_SIZES
from theodolite_jobs.passes.collect import Arrays, ContrastPasses, SetPasses
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.curves import cosine_curve, variance_curves
from theodolite_jobs.statistics.curves_sample_size import expected_cosines, squared_covariance_trace

SPACES = {"raw": "", "sphere": "on_sphere_"}
"""The prefix of the variables' names in each space."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("curves", context.contrasts)


def compute(context: Context) -> Result:
    """Return the group from both passes over the activations."""
    arrays = context.collected.over_contrasts("curves", _cosines)
    arrays |= context.collected.over_sets("curves", _variances)
    coordinates = {**context.coordinates, "n_prompts": SAMPLE_SIZES}
    return Result(arrays, coordinates, {"contrasts": context.contrasts})


def _cosines(passes: ContrastPasses) -> Arrays:
    assert passes.second is not None
    assert passes.positive.folds is not None
    assert passes.negative.folds is not None
    squares = squared_covariance_trace(passes.positive.folds), squared_covariance_trace(passes.negative.folds)
    arrays = passes.counts
    for space, prefix in SPACES.items():
        positive, negative = passes.positive.moments[space], passes.negative.moments[space]
        estimates = (
            positive.mean,
            negative.mean,
            positive.variance.sum(axis=-1),
            negative.variance.sum(axis=-1),
            positive.count,
            negative.count,
            passes.second.scatter[space],
        )
        kind: dict[str, Any] = {"paired": passes.paired, "groups": passes.groups(space)}
        curve = cosine_curve(*estimates, **kind)
        arrays |= {prefix + name: values for name, values in curve._asdict().items()}
        if space == "raw":  # publications scale no activations
            arrays |= expected_cosines(SAMPLE_SIZES, *estimates, squares, **kind)._asdict()
    return arrays


def _variances(passes: SetPasses) -> Arrays:
    arrays: Arrays = {}
    for space, prefix in SPACES.items():
        mean, largest, feature = variance_curves(passes[space].variance)
        arrays |= {f"{prefix}variance_mean": mean, f"{prefix}variance_max": largest}
        arrays[f"{prefix}variance_max_feature"] = feature
        arrays[f"{prefix}norm_of_mean"] = np.linalg.norm(passes[space].mean, axis=-1)
    return arrays
