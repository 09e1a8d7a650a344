"""The analysis `weights`: overlaps of the leading directions that the layers' matrices write and read."""

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite.groups import GROUPS
from theodolite.groups.weights.record import FORMS
from theodolite.sites import Site
from theodolite_jobs.groups.weights.experts import (
    ExpertBases,
    ExpertOverlaps,
    expert_arrays,
    expert_attributes,
    expert_coordinates,
    expert_notes,
)
from theodolite_jobs.groups.weights.formulas import (
    folded_reader,
    folded_writer,
    leading_basis,
    overlap,
    random_overlap,
    random_square,
    with_row_lengths,
)
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.context import Context, Result
from theodolite_jobs.statistics.norms import Norm
from theodolite_jobs.tasks import run_tasks

RANK = 32
"""Number of leading directions of each matrix; d_head if that is smaller."""

_COLUMNS = 4096  # of a matrix in one product, in float64

WRITING, READING = ("o", "down"), ("q", "k", "v", "gate", "up")

Bases = dict[str, NDArray[np.float64]]
"""Leading directions of each matrix, (d_model, rank), by the matrix's name."""


class LayerBases(NamedTuple):
    """Leading directions of a layer.

    Attributes:
        forms: those of its matrices in each of FORMS.
        random: those of random matrices with the row lengths of the matrices in each form.
        experts: the overlaps of its experts with each other.
    """

    forms: dict[str, Bases]
    random: dict[str, Bases]
    experts: ExpertOverlaps | None


_NORMS = {"q": "attention", "k": "attention", "v": "attention", "gate": "mlp", "up": "mlp"}
_NORMS |= {"o": "attention_output", "down": "mlp_output"}  # in post-norm blocks these follow the sum with the stream


def digest_inputs(_context: Context) -> dict[str, Any]:
    """Return the contents of the group's digest; a run has one model, so they are constant."""
    return {"group": "weights", "version": GROUPS["weights"].version}


def compute(context: Context) -> Result:
    """Return the group, one task for each layer.

    Raises:
        ModelError: a tensor is missing, or a weight is not finite.
    """
    weights = context.weights
    arguments = [(weights, layer) for layer in range(weights.dimensions.n_layers)]
    with context.tasks():
        of_layers = list(run_tasks(layer_bases, arguments, context.progress, "weight matrices", rounds=1))
    rank = _rank(weights)
    overlaps = [
        [_overlaps(weights, [of_layer[form] for of_layer in bases]) for form in FORMS]
        for bases in ([one.forms for one in of_layers], [one.random for one in of_layers])  # as MATRICES
    ]
    values = {name: np.array([[one[name] for one in of_forms] for of_forms in overlaps]) for name in overlaps[0][0]}
    values["random_overlap"] = np.array(random_overlap(rank, weights.dimensions.d_model))
    layers = range(weights.dimensions.n_layers)
    coordinates = {"writing_matrix": WRITING, "reading_matrix": READING, "layer": layers, "layer_other": layers}
    experts = [of_layer.experts for of_layer in of_layers]
    coordinates |= expert_coordinates(experts)
    values |= expert_arrays(experts)
    notes = [*_notes(weights), *expert_notes(experts, rank)]
    attributes = {"rank": rank, **expert_attributes(experts)} | ({"notes": notes} if notes else {})
    return Result(values, coordinates, attributes)


def _notes(weights: Weights) -> Iterator[str]:
    """Yield which matrices layers share with other layers."""
    anatomy, n_layers = weights.anatomy, weights.dimensions.n_layers
    if anatomy.block_of:
        blocks = len(set(anatomy.block_of.values()))
        yield (
            f"the {n_layers} layers share the weights of {blocks} block{'s' * (blocks > 1)}; the directions of layers "
            "with the same block are equal, so they overlap completely"
        )
    if anatomy.keys_of:
        layers = ", ".join(map(str, anatomy.keys_of))
        yield f"layers {layers} use the keys and values of another layer, so they have no W_K and W_V"


def layer_bases(weights: Weights, layer: int) -> LayerBases:
    """Return the leading directions of the stream that each of a layer's matrices writes or reads, in each form.

    A matrix covers all heads, or all experts. A layer that uses the keys and values of another layer has none of its
    own. `folded` has the scale of the norm before a reader and after a writer folded into the matrix; where there is no
    such norm, it is equal to `stored`. A random matrix is Gaussian and seeded. It has the shape of the matrix, and each
    of its rows (a feature of the stream) has the length of the matrix's row.

    Raises:
        UnsupportedModelError: a weight is not finite.
    """
    rank = _rank(weights)
    forms: dict[str, Bases] = {form: {} for form in FORMS}
    of_random: dict[str, Bases] = {form: {} for form in FORMS}
    experts = ExpertBases(layer, rank, weights.experts(layer))
    for index, (name, square, columns) in enumerate(_squares(weights, layer, experts)):
        if not np.isfinite(square).all():
            raise UnsupportedModelError(f"layer {layer}: the matrix {name} has a weight that is not finite")
        random = random_square(columns, np.random.default_rng([layer, index]), len(square))
        forms["stored"][name] = forms["folded"][name] = leading_basis(square, rank)
        of_random["stored"][name] = of_random["folded"][name] = leading_basis(with_row_lengths(random, square), rank)
        norm = _norm(weights, layer, name)
        if norm is not None:
            folded = (folded_reader if name in READING else folded_writer)(square, norm)
            forms["folded"][name] = leading_basis(folded, rank)
            of_random["folded"][name] = leading_basis(with_row_lengths(random, folded), rank)
    return LayerBases(forms, of_random, experts.overlaps())


def _rank(weights: Weights) -> int:
    return min(RANK, weights.dimensions.d_head, weights.dimensions.d_model)


def _norm(weights: Weights, layer: int, matrix: str) -> Norm | None:
    """Return the norm between the stream and a matrix, or None if the matrix reads or writes the stream directly."""
    anatomy = weights.anatomy
    return None if anatomy.post_norm or _NORMS[matrix] not in anatomy.norms else weights.norm(layer, _NORMS[matrix])


def _squares(weights: Weights, layer: int, experts: ExpertBases) -> Iterator[tuple[str, NDArray[np.float64], int]]:
    """Yield MMᵀ of each matrix M that reads or writes the stream, (d_model, d_model), and M's number of columns.

    M = W for a reader and Wᵀ for a writer. The matrices of single experts are added to `experts`.
    """
    if layer not in weights.anatomy.layers_without_attention:
        yield from _squares_of_attention(weights, layer)
    sums: dict[str, NDArray[np.float64]] = {}
    columns: dict[str, int] = {}
    for expert in weights.experts(layer):
        mlp = weights.mlp(layer, expert)
        for name, part in (("gate", mlp.gate), ("up", mlp.up), ("down", mlp.down.T)):
            if part is not None:
                square = _square(part)
                sums[name] = sums.get(name, 0.0) + square
                columns[name] = columns.get(name, 0) + part.shape[1]
                if expert is not None:
                    experts.add(name, expert, part.double().numpy(), square)
    yield from ((name, square, columns[name]) for name, square in sums.items())


def _squares_of_attention(weights: Weights, layer: int) -> Iterator[tuple[str, NDArray[np.float64], int]]:
    attention = weights.attention(layer)
    readers = [heads.transpose(0, 1).flatten(1) for heads in (attention.q, attention.k, attention.v)]
    for index, rotary in enumerate((attention.q_rotary, attention.k_rotary)):
        if rotary is not None:  # a part of queries and keys apart
            readers[index] = torch.cat([readers[index], rotary.transpose(0, 1).flatten(1)], dim=1)
    for name, matrix in zip("qkvo", (*readers, attention.o.flatten(0, 1).T), strict=True):
        if name in "kv" and layer in weights.anatomy.keys_of:
            continue
        yield name, _square(matrix), matrix.shape[1]


def _square(matrix: torch.Tensor) -> NDArray[np.float64]:
    """Return MMᵀ of a matrix M, (d_model, …)."""
    square = np.zeros((matrix.shape[0], matrix.shape[0]))
    for columns in matrix.split(_COLUMNS, dim=1):
        block = columns.double().numpy()
        square += block @ block.T
    return square


def _overlaps(weights: Weights, bases: Sequence[Bases]) -> dict[str, NDArray[np.float64]]:
    """Return the overlaps between the matrices of all pairs of layers, from the bases of each layer."""
    n_layers = weights.dimensions.n_layers
    layers = range(n_layers)
    writing, reading = (np.full((len(names), n_layers, n_layers), np.nan) for names in (WRITING, READING))
    between = np.full((len(WRITING), len(READING), n_layers, n_layers), np.nan)
    for first, second in product(layers, layers):
        for names, overlaps in ((WRITING, writing), (READING, reading)):
            for row, name in enumerate(names):
                if name in bases[first] and name in bases[second]:
                    overlaps[row, first, second] = overlap(bases[first][name], bases[second][name])
        for (row, writer), (column, reader) in product(enumerate(WRITING), enumerate(READING)):
            if (
                writer in bases[first]
                and reader in bases[second]
                and _comes_later(weights, writer, first, reader, second)
            ):
                between[row, column, first, second] = overlap(bases[first][writer], bases[second][reader])
    return {"writing_overlap": writing, "reading_overlap": reading, "writer_reader_overlap": between}


def _comes_later(weights: Weights, writer: str, layer: int, reader: str, other: int) -> bool:
    """Return whether a reader comes after a writer; within a block, the MLP reads what attention writes."""
    in_block = writer == "o" and reader in ("gate", "up") and Site.RESID_MID in weights.anatomy.taps
    return other > layer or (other == layer and in_block)
