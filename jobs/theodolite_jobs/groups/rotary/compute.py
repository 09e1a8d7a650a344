"""The result group `rotary`: the part of scores that rotates in multi-head latent attention, one task for each layer.

The group `heads` leaves this part out of QK, because the norm of keys divides only the part that does not rotate.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite_jobs.groups.rotary.formulas import rotary_singular_values
from theodolite_jobs.models.anatomy import check_circuits
from theodolite_jobs.models.config_numbers import score_scale
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.models.rotary import rotation_of_entries
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import folded, input_norm
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.factors import (
    coverage_rank,
    effective_rank,
    effective_rank_of_gaussian_factors,
    stable_rank,
)
from theodolite_jobs.tasks import run_tasks


class RotaryPart(NamedTuple):
    """One layer's rotary part: query · rotation · keyᵀ of each head, at each offset."""

    query: NDArray[np.float64]
    """(head, d_model, width)"""
    key: NDArray[np.float64]
    """(1, d_model, width): all heads share it."""
    rotations: list[NDArray[np.float64]]
    """s·R(δ) of each offset, (width, width), with the family's score scale s."""


def digest_inputs(context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest."""
    heads, rules = context.spec.heads, {"group": "rotary", "version": GROUPS["rotary"].version}
    return {**rules, "offsets": heads.offsets, "fold_norm": heads.fold_norm}


def compute(context: Context) -> Result:
    """Return the group.

    Raises:
        ModelError: a projection is missing.
        UnsupportedModelError: the heads have no circuits, or a weight is not finite.
    """
    heads, weights = context.spec.heads, context.weights
    check_circuits(weights.anatomy, weights.config.model_type)
    sizes, widths = weights.dimensions, latent_sizes(weights.config)
    width = widths.rotary
    layers = weights.anatomy.attention_layers(sizes.n_layers)
    arguments = [(weights, layer, heads.offsets, heads.fold_norm) for layer in layers]
    values = np.full((len(heads.offsets), sizes.n_layers, sizes.n_heads, width), np.nan)
    with context.tasks():
        for layer, found in zip(
            layers, run_tasks(_values_of_layer, arguments, context.progress, "rotary"), strict=True
        ):
            values[:, layer] = found
    query = (width,) if widths.query_latent is None else (widths.query_latent, width)
    random = effective_rank_of_gaussian_factors(sizes.d_model, query, (width,))
    arrays = {
        "singular_values": values,
        "coverage_99": coverage_rank(np.nan_to_num(values)),
        "effective_rank": effective_rank(values),
        "effective_rank_random": np.array(random),
        "stable_rank": stable_rank(values),
    }
    labels = {"offset": heads.offsets, "layer": range(sizes.n_layers), "head": range(sizes.n_heads)}
    return Result(arrays, {**labels, "rank": range(width)}, {"notes": _notes(weights, heads.fold_norm)})


def read_rotary_part(weights: Weights, layer: int, offsets: Sequence[int], fold_norm: bool) -> RotaryPart:
    """Return one layer's rotary part; `fold_norm` folds the norm before attention into both of its sides.

    Raises:
        ModelError: a projection is missing.
    """
    query, key = (matrix.numpy() for matrix in weights.rotary_part(layer))
    norm = input_norm(weights, layer)
    if fold_norm and norm is not None:
        query, key = folded(query, norm), folded(key, norm)
    scale = score_scale(weights.config, weights.dimensions, layer)
    width = query.shape[2]
    turns = [rotation_of_entries(weights.config, weights.anatomy, layer, offset, width) for offset in offsets]
    return RotaryPart(query, key, [scale * turn for turn in turns])


def _values_of_layer(weights: Weights, layer: int, offsets: Sequence[int], fold_norm: bool) -> NDArray[np.float64]:
    try:
        return rotary_singular_values(*read_rotary_part(weights, layer, offsets, fold_norm))
    except ValueError as error:
        raise UnsupportedModelError(f"layer {layer}, part of queries and keys that rotates: {error}") from error


def _notes(weights: Weights, fold_norm: bool) -> list[str]:
    notes = [f"the norm before attention is {'' if fold_norm else 'not '}folded into the weights"]
    if latent_sizes(weights.config).query_latent is not None:
        notes.append(
            "queries pass through a normalised latent, so the rotary part gives its term of the scores up to a "
            "positive factor of the token that attends"
        )
    return notes
