"""Directions of the residual stream that the weight matrices of different layers share."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.weights import overlap_map
from theodolite.sections.parts import Figure, Section, percent
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NAMES = {"o": "W_O", "down": "W_down", "q": "W_Q", "k": "W_K", "v": "W_V", "gate": "W_gate", "up": "W_up"}
_WRITTEN = {
    "o": "overlap of the W_O of two layers",
    "down": "overlap of the W_down of two layers",
}
_HOW_TO_READ = (
    "Overlap is ‖UᵀV‖²/r, with the r leading directions of two matrices as the columns of U and V: 1 if they span the "
    "same subspace, about r/d_model for random subspaces. W_O and W_down write to the residual stream; W_Q, W_K, W_V, "
    "W_gate and W_up read it."
)
_PAIRS = (("down", "q"), ("down", "up"))  # the writers and readers that every run shows


def sections(run: Run) -> list[Section]:
    """Return one section: overlap between layers of the directions that their matrices write and read."""
    weights = read_group(run, "weights")
    rank = int(weights.attrs["rank"])
    writing = weights["writing_overlap"]
    maps = [_map(f"written.{name}", text, writing.sel(writing_matrix=name), 1.0) for name, text in _WRITTEN.items()]
    between = weights["writer_reader_overlap"]
    highest = float(np.nanmax(between))
    for writer, reader in dict.fromkeys([*_PAIRS, *_most_shared(between)]):
        name = f"read.{reader}" if writer == "down" else f"read.{writer}.{reader}"
        caption = f"overlap of {_NAMES[writer]} with {_NAMES[reader]} of later layers"
        maps.append(_map(name, caption, between.sel(writing_matrix=writer, reading_matrix=reader), highest))
    title = f"Weights: overlap of the {rank} leading directions of each matrix"
    return [Section(title, list(_facts(weights)), maps=maps, how_to_read=_HOW_TO_READ)]


def _map(name: str, caption: str, values: xr.DataArray, highest: float) -> Figure:
    return Figure(f"weights.{name}", caption, partial(overlap_map, values, caption, highest))


def _facts(weights: xr.Dataset) -> Iterator[str]:
    random = float(weights["random_overlap"])
    writing = weights["writing_overlap"]
    for name in _WRITTEN:
        matrix = writing.sel(writing_matrix=name).values
        neighbours, distant = np.diag(matrix, 1), matrix[np.triu_indices(len(matrix), 2)]
        if not len(distant):
            continue
        yield (
            f"Mean overlap of the directions that {_NAMES[name]} writes: {percent(neighbours.mean(), 1)} between "
            f"neighbouring layers, {percent(distant.mean(), 1)} between other layers, {percent(random, 1)} between "
            "random subspaces."
        )
    between = weights["writer_reader_overlap"]
    n_pairs = int(np.isfinite(between.max(["layer", "layer_other"])).sum())
    for writer, reader in _most_shared(between):
        mean = float(between.sel(writing_matrix=writer, reading_matrix=reader).mean())
        yield (
            f"Of all {n_pairs} combinations of a writing matrix with a reading matrix of later layers, "
            f"{_NAMES[writer]} with {_NAMES[reader]} has the largest mean overlap: {percent(mean, 1)} over all pairs "
            f"of layers (random subspaces give {percent(random, 1)})."
        )


def _most_shared(between: xr.DataArray) -> list[tuple[str, str]]:
    """Return the writer and the reader with the largest mean overlap; an empty list if there is no overlap."""
    if not np.isfinite(between).any():
        return []
    means = between.mean(["layer", "layer_other"]).stack(pair=("writing_matrix", "reading_matrix"))
    writer, reader = means["pair"].values[int(np.nanargmax(means.values))]
    return [(str(writer), str(reader))]
