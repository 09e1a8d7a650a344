"""Directions of the residual stream that the weight matrices of different layers share."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.weights import overlap_map
from theodolite.sections.parts import Figure, Section
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NAMES = {"o": "W_O", "down": "W_down", "q": "W_Q", "k": "W_K", "v": "W_V", "gate": "W_gate", "up": "W_up"}
_WRITTEN = {"o": "overlap of directions that W_O writes", "down": "overlap of directions that W_down writes"}
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
        caption = f"overlap: {_NAMES[writer]} writes, later {_NAMES[reader]} reads"
        maps.append(_map(name, caption, between.sel(writing_matrix=writer, reading_matrix=reader), highest))
    title = f"Weights: overlap of the {rank} leading directions of each matrix"
    return [Section(title, list(_facts(weights)), maps=maps)]


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
            f"Mean overlap of the directions that {_NAMES[name]} writes: {neighbours.mean():.1%} between neighbouring "
            f"layers, {distant.mean():.1%} between other layers, {random:.1%} between random subspaces."
        )
    between = weights["writer_reader_overlap"]
    n_pairs = int(np.isfinite(between.max(["layer", "layer_other"])).sum())
    for writer, reader in _most_shared(between):
        mean = float(between.sel(writing_matrix=writer, reading_matrix=reader).mean())
        yield (
            f"Largest mean overlap of a writer with a reader in a later layer ({n_pairs} pairs of matrices): "
            f"{_NAMES[writer]} and {_NAMES[reader]}, {mean:.1%} (mean over pairs of layers; random subspaces give "
            f"{random:.1%})."
        )


def _most_shared(between: xr.DataArray) -> list[tuple[str, str]]:
    """Return the writer and the reader with the largest mean overlap; an empty list if there is no overlap."""
    if not np.isfinite(between).any():
        return []
    means = between.mean(["layer", "layer_other"]).stack(pair=("writing_matrix", "reading_matrix"))
    writer, reader = means["pair"].values[int(np.nanargmax(means.values))]
    return [(str(writer), str(reader))]
