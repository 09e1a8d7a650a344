"""The spread of the norm that a Gaussian with a set's own mean and covariance has, for each norm layer's input."""

from collections.abc import Sequence

import numpy as np

from theodolite.store.runs import Run
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.point_clouds import PointCloud, first_usable, read_cloud
from theodolite_jobs.results.context import Context
from theodolite_jobs.statistics.sphere_gaussian import fitted_spreads
from theodolite_jobs.tasks import run_tasks

SAMPLES = 2048
"""Maximum number of prompts of a set; their dot products must fit into memory."""

_NAMES = ("relative_spread_gaussian_fitted", "relative_spread_squared_gaussian_fitted")


def fitted_gaussians(context: Context, norms: Sequence[NormLayer]) -> Arrays:
    """Return the spreads, (set, position, norm), and the numbers of prompts, (set, position).

    A spread is NaN if the norm layer's input was not captured.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    run, sets, positions = context.run, context.coordinates["set"], context.coordinates["position"]
    clouds = {
        (row, positions.index(position)): first_usable(run, name, position, context.commits[name], SAMPLES)
        for row, name in enumerate(sets)
        for position in run.record.sets[name].positions
    }
    context.check_shards(clouds.values())
    counts = np.zeros((len(sets), len(positions)), dtype=np.int64)
    for at, cloud in clouds.items():
        counts[at] = len(cloud.samples)
    places = [
        (*at, index)
        for at, cloud in clouds.items()
        for index, norm in enumerate(norms)
        if cloud.samples and norm.sites and norm.reads
    ]
    arguments = [(run, clouds[row, column], norms[index]) for row, column, index in places]
    spreads = np.full((len(_NAMES), *counts.shape, len(norms)), np.nan)
    for place, pair in zip(places, run_tasks(input_spreads, arguments, context.progress, "spreads"), strict=True):
        spreads[(slice(None), *place)] = pair
    return {"n_fitted": counts, **dict(zip(_NAMES, spreads, strict=True))}


def input_spreads(run: Run, cloud: PointCloud, norm: NormLayer) -> tuple[float, float]:
    """Return the fitted spreads of the norm, and of the squared norm, of the vectors that a norm layer reads."""
    parts = [read_cloud(run, cloud, site, norm.layer_index).astype(np.float64) for site in norm.sites]
    return fitted_spreads(np.sum(parts, axis=0))
