"""The analysis `composition`: Q-, K- and V-composition of pairs of attention heads."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite_jobs.groups.composition.formulas import KINDS, composition
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.tasks import run_tasks

_NOTE = (
    "some layers use the keys and values of an earlier layer, which read the stream there; heads from that layer on do "
    "not write into this stream, so their K- and V-composition with heads of these layers is missing"
)


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    heads, rules = context.spec.heads, {"group": "composition", "version": GROUPS["composition"].version}
    return {**rules, "layers": heads.composition, "fold_norm": heads.fold_norm}


def compute(context: Context) -> Result:
    """Return the group, one task for each pair of layers.

    Raises:
        ModelError: a projection is missing.
        UnsupportedModelError: a weight is not finite.
    """
    heads, weights = context.spec.heads, context.weights
    assert heads.composition is not None
    layers = list(range(heads.composition[0], heads.composition[1] + 1))
    n_heads = weights.dimensions.n_heads
    score = np.full((len(KINDS), len(layers), n_heads, len(layers), n_heads), np.nan)
    other = weights.anatomy.layers_without_attention  # their heads do not exist, so their scores are NaN
    pairs = [
        (first, second)
        for second in range(len(layers))
        for first in range(second)
        if layers[first] not in other and layers[second] not in other
    ]
    arguments = [(weights, layers[first], layers[second], heads.fold_norm) for first, second in pairs]
    with context.tasks():
        scores = run_tasks(_pair_composition, arguments, context.progress, "composition", rounds=1)
        for (first, second), values in zip(pairs, scores, strict=True):
            score[:, first, :, second] = values
    coordinates = {"composition": KINDS, "layer": layers, "head": range(n_heads)}
    coordinates |= {"layer_other": layers, "head_other": range(n_heads)}
    attributes: dict[str, Any] = {"fold_norm": int(heads.fold_norm), "layers": list(heads.composition)}
    if not weights.anatomy.keys_of.keys().isdisjoint(layers):
        attributes["notes"] = [_NOTE]
    return Result({"score": score}, coordinates, attributes)


def _pair_composition(weights: Weights, writer: int, reader: int, fold_norm: bool) -> NDArray[np.float64]:
    circuits = [read_circuits(weights, layer, fold_norm=fold_norm) for layer in (writer, reader)]
    try:
        scores = composition(*circuits)
    except ValueError as error:
        raise UnsupportedModelError(f"layer {writer} or layer {reader}: {error}") from error
    # Keys and values of an earlier layer read the stream there, which does not contain later outputs.
    if writer >= weights.anatomy.keys_of.get(reader, reader):
        scores[1:] = np.nan
    return scores
