"""Cosines of steps under permutations of the prompts, from the stored samples of each set."""

import numpy as np
from numpy.typing import NDArray

from theodolite.groups.travel.record import NULL, VECTOR_PAIRS
from theodolite.store.runs import Run
from theodolite_jobs.groups.travel.formulas_nulls import PermutedCosine, family_wise_p, permuted_cosine
from theodolite_jobs.passes.collect import Arrays
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.passes.selections import block_states, branches_add
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks

States = list[NDArray[np.float64] | None]


def permuted_cosines(context: Context) -> Arrays:
    """Return the number of tested prompts, and the null and the test of each cosine, by the names of the variables.

    Raises:
        RunDamagedError: a shard differs from its commit record, or contains a number that is not finite.
    """
    run, coordinates = context.run, context.coordinates
    shape = [len(coordinates[dim]) for dim in ("set", "position", "layer")]
    n_tested, null = np.zeros(shape[:2], dtype=np.int64), np.full((*shape, len(VECTOR_PAIRS), len(NULL)), np.nan)
    clouds = context.clouds(context.spec.gram.samples)
    with context.tasks():
        context.check_shards(clouds.values())
        for (name, position), cloud in clouds.items():
            at = coordinates["set"].index(name), coordinates["position"].index(position)
            n_tested[at] = len(cloud.samples)
            if not cloud.samples:
                continue
            arguments = [(run, cloud, layer) for layer in run.record.layers]
            stage = f"permuted steps of {cloud.prompt_set}"
            blocks = run_tasks(_permuted_cosines, arguments, context.progress, stage, rounds=1)
            for pair, tests in enumerate(zip(*blocks, strict=True)):
                p_family = family_wise_p(np.stack([test.z for test in tests], axis=1))
                null[at][:, pair] = np.stack([[test.null_sd for test in tests], p_family], axis=-1)
    return {"n_tested": n_tested, "step_cosine_centred_null": null}


def _permuted_cosines(run: Run, cloud: PointCloud, layer: int) -> list[PermutedCosine]:
    """Return each cosine of a block under permutations of the prompts, in the order of VECTOR_PAIRS."""
    start, middle, end = _states(run, cloud, layer)
    step = _difference(start, end)
    following = None
    if layer + 1 in run.record.layers:
        first, _, last = _states(run, cloud, layer + 1)
        following = _difference(first, last)
    pairs = (
        (step, following),
        (start, step),
        (start, _difference(start, middle)),
        (middle, _difference(middle, end)),
    )
    unknown = np.full((len(cloud.samples), run.record.model.d_model), np.nan)
    return [permuted_cosine(*(unknown if x is None else x for x in pair)) for pair in pairs]


def _states(run: Run, cloud: PointCloud, layer: int) -> States:
    """Return a block's input, middle and output, each (sample, d_model); None where one is not captured or no sum."""
    places = block_states(run, layer)
    if not branches_add(run):
        places[1] = None
    return [None if place is None else read_cloud(run, cloud, *place).astype(np.float64) for place in places]


def _difference(start: NDArray[np.float64] | None, end: NDArray[np.float64] | None) -> NDArray[np.float64] | None:
    return None if start is None or end is None else end - start
