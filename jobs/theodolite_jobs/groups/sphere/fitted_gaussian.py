"""The spread of the norm that a Gaussian with a set's own mean and covariance has, for each norm layer's input."""

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from theodolite.store.runs import Run
from theodolite_jobs.groups.sphere.formulas_gaussian import fitted_spreads
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.point_clouds import PointCloud, first_usable, read_cloud
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks

SAMPLES = 2048
"""Maximum number of prompts of a set; their dot products must fit into memory."""


def fitted_gaussians(
    context: Context, norms: Sequence[NormLayer]
) -> tuple[NDArray[np.int64], Float64[np.ndarray, "set position norm 2"]]:
    """Return the numbers of prompts, (set, position), and the spreads of the norm and of the squared norm.

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
    spreads = np.full((*counts.shape, len(norms), 2), np.nan)
    for place, pair in zip(places, run_tasks(input_spreads, arguments, context.progress, "spreads"), strict=True):
        spreads[place] = pair
    return counts, spreads


def input_spreads(run: Run, cloud: PointCloud, norm: NormLayer) -> tuple[float, float]:
    """Return the fitted spreads of the norm, and of the squared norm, of the vectors that a norm layer reads."""
    parts = [read_cloud(run, cloud, site, norm.layer_index).astype(np.float64) for site in norm.sites]
    return fitted_spreads(np.sum(parts, axis=0))
