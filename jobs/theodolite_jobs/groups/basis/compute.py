"""The analysis `basis`: how well affine and orthogonal maps predict the output of each sublayer from its input."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.basis.record import MAPS
from theodolite.groups.schema import ENDS, SUBLAYERS
from theodolite.store.runs import Run
from theodolite_jobs.groups.basis.formulas import MIN_SAMPLES, pair_grams, r_squared
from theodolite_jobs.groups.basis.formulas_spectrum import stretch
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.passes.selections import block_states
from theodolite_jobs.results.context import Context, Result, missing_arrays
from theodolite_jobs.statistics.folds import FOLDS
from theodolite_jobs.tasks import run_tasks

SAMPLES = 1024
"""Maximum number of prompts of a set; the time of a map grows with the cube, to 33 seconds of a core for 2,048."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    return context.digest_inputs("basis", {}, samples=_samples(context))


def _samples(context: Context) -> int:
    return min(SAMPLES, context.spec.gram.samples)


def compute(context: Context) -> Result:
    """Return the group from the first usable samples of each set, layer by layer.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    run, coordinates = context.run, context.coordinates
    arrays = missing_arrays("basis", coordinates)
    clouds = context.clouds(_samples(context))
    with context.tasks():
        context.check_shards(clouds.values())
        for (name, position), cloud in clouds.items():
            place = coordinates["set"].index(name), coordinates["position"].index(position)
            arrays["n_samples"][place] = len(cloud.samples)
            if len(cloud.samples) < MIN_SAMPLES:
                continue
            arguments = [(run, cloud, layer) for layer in run.record.layers]
            maps = run_tasks(_maps_of_layer, arguments, context.progress, f"linear maps of {name}", rounds=1)
            for index, values in enumerate(maps):
                for sublayer, statistics in values.items():
                    for variable, value in statistics.items():
                        arrays[variable][(*place, index, sublayer)] = value
    return Result(arrays, coordinates, {"options": context.spec.gram.model_dump()})


def _maps_of_layer(run: Run, cloud: PointCloud, layer: int) -> dict[int, Arrays]:
    """Return the statistics of each sublayer whose input and output were captured, by the sublayer's index."""
    samples = [None if place is None else read_cloud(run, cloud, *place) for place in block_states(run, layer)]
    folds = np.array(cloud.samples) % FOLDS
    maps = {}
    for index, sublayer in enumerate(SUBLAYERS):
        x, y = (samples[end] for end in ENDS[sublayer])
        if x is not None and y is not None:
            maps[index] = _maps(x, y, folds)
    return maps


def _maps(x: NDArray[np.float32], y: NDArray[np.float32], folds: NDArray[np.int64]) -> Arrays:
    """Return the statistics of one sublayer from its inputs and outputs."""
    grams = pair_grams(x, y)
    found = {name: estimate.stacked() for name, estimate in r_squared(grams, folds).items()}
    return {
        "r_squared": np.stack([found[name] for name in MAPS]),
        **{f"r_squared_{name}": found[name] for name in ("gain", "step", "permuted")},
        **{name: np.asarray(value) for name, value in stretch(grams, x.shape[1])._asdict().items()},
    }
