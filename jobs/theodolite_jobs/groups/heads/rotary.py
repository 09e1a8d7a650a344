"""The rotary part of scores in multi-head latent attention, s·W_QR R(δ) W_KRᵀ of each head, as a circuit of `heads`.

QK leaves this part out, because the norm of keys divides only the part that does not rotate.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.groups.heads.formulas_rotary import rotary_singular_values
from theodolite_jobs.models.config_numbers import score_scale
from theodolite_jobs.models.latent import latent_sizes
from theodolite_jobs.models.rotary import rotations_of_entries
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import folded, input_norm


class RotaryPart(NamedTuple):
    """One layer's rotary part: query · rotation · keyᵀ of each head, at each offset."""

    query: NDArray[np.float64]
    """(head, d_model, width)"""
    key: NDArray[np.float64]
    """(1, d_model, width): all heads share it."""
    rotations: NDArray[np.float64]
    """s·R(δ), (offset, width, width), with the family's score scale s."""


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
    turns = rotations_of_entries(weights.config, weights.anatomy, layer, offsets, query.shape[2])
    return RotaryPart(query, key, scale * turns)


def rotary_values(
    weights: Weights, layer: int, offsets: Sequence[int], fold_norm: bool
) -> Float[np.ndarray, "offset head width"]:
    """Return the singular values of one layer's rotary part, in descending order.

    Raises:
        ModelError: a projection is missing.
        UnsupportedModelError: a weight is not finite.
    """
    try:
        return rotary_singular_values(*read_rotary_part(weights, layer, offsets, fold_norm))
    except ValueError as error:
        raise UnsupportedModelError(f"layer {layer}, part of queries and keys that rotates: {error}") from error


def rotary_notes(weights: Weights, fold_norm: bool) -> list[str]:
    """Return notes on the rotary part."""
    notes = [f"the norm before attention is {'' if fold_norm else 'not '}folded into the weights"]
    if latent_sizes(weights.config).query_latent is not None:
        notes.append(
            "queries pass through a normalised latent, so the rotary part gives its term of the scores up to a "
            "positive factor of the token that attends"
        )
    return notes
