"""The part of the analysis `routing` about hidden units: the share of each expert's units that are active.

It is computed from the stored state before the MLP and from the weights, since the capture records no hidden units of
experts.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import ModelError, SpecError
from theodolite.sites import Site
from theodolite.store.runs import Run
from theodolite_jobs.groups.routing.formulas import active_share, used_experts
from theodolite_jobs.models.anatomy import Anatomy
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.point_clouds import PointCloud, read_cloud
from theodolite_jobs.results.context import Context
from theodolite_jobs.tasks import run_tasks

Floats = NDArray[np.float64]
Chosen = NDArray[np.int16]


class Use(NamedTuple):
    """The usable prompts of a set at one position, and their experts.

    Attributes:
        row: index of the set in the arrays of the group.
        position: index of the position in these arrays.
        cloud: the prompts.
        chosen: the experts that their tokens use, (sample, layer, choice).
    """

    row: int
    position: int
    cloud: PointCloud
    chosen: Chosen


def active_units(context: Context, uses: Sequence[Use], shape: Sequence[int]) -> tuple[Floats, list[str]]:
    """Return the share of active hidden units of each expert, (set, position, layer, expert), and notes.

    All shares are NaN if they cannot be computed for this run; the note then says why.

    Raises:
        RunDamagedError: a shard differs from its commit record.
    """
    shares = np.full(shape, np.nan)
    uses = [use for use in uses if use.cloud.samples]
    if Site.RESID_MID not in context.run.record.spec.capture.sites:
        return shares, [_missing("the run did not capture resid_mid, from which they are computed")]
    try:
        if reason := _reason(context.weights.anatomy):
            return shares, [_missing(reason)]
        context.check_shards([use.cloud for use in uses])
        layers = sorted({int(layer) for use in uses for layer in np.flatnonzero((use.chosen >= 0).any(axis=(0, 2)))})
        arguments = [
            (context.run, context.weights, layer, shape[-1], [(use.cloud, use.chosen[:, layer]) for use in uses])
            for layer in layers
        ]
        with context.tasks():
            of_layers = list(run_tasks(_of_layer, arguments, context.progress, "units of experts", rounds=1))
    except (ModelError, SpecError) as error:  # a deployment may not allow the model's own code
        return shares, [_missing(str(error))]
    for layer, of_layer in zip(layers, of_layers, strict=True):
        for use, values in zip(uses, of_layer, strict=True):
            shares[use.row, use.position, layer] = values
    return shares, []


def _missing(reason: str) -> str:
    return f"active hidden units of experts are missing: {reason}"


def _reason(anatomy: Anatomy) -> str:
    """Return why the input of a family's experts is not the norm of resid_mid; empty if it is."""
    reads_norm = Site.RESID_MID in anatomy.taps and "mlp" in anatomy.norms and not anatomy.post_norm
    return "" if reads_norm else "the experts of this family read something else than the MLP's norm of resid_mid"


def _of_layer(
    run: Run, weights: Weights, index: int, n_experts: int, uses: Sequence[tuple[PointCloud, Chosen]]
) -> Floats:
    """Return the shares in one of the run's layers, (use, expert); each expert is read once."""
    layer = run.record.layers[index]
    shares = np.full((len(uses), n_experts), np.nan)
    norm = weights.norm(layer, "mlp")
    assert norm is not None
    states = [read_cloud(run, cloud, Site.RESID_MID, index) for cloud, _ in uses]
    used = [used_experts(chosen, n_experts) for _, chosen in uses]
    for expert in np.flatnonzero(np.any([own.any(axis=0) for own in used], axis=0)):
        mlp = weights.mlp(layer, int(expert))
        into, bias = (mlp.up, mlp.up_bias) if mlp.gate is None else (mlp.gate, mlp.gate_bias)
        matrix, offset = into.double().numpy(), None if bias is None else bias.double().numpy()
        for row, own in enumerate(used):
            if own[:, expert].any():
                shares[row, expert] = active_share(states[row][own[:, expert]], norm, matrix, offset)
    return shares
