"""Which directions of the stream the layers' matrices share."""

from collections.abc import Iterator

import numpy as np
import xarray as xr

from theodolite.figures.panels import layer_map
from theodolite.sections.parts import Figure, Section
from theodolite.store.finished import read_group
from theodolite.store.runs import Run

_NAMES = {"o": "W_O", "down": "W_down", "q": "W_Q", "k": "W_K", "v": "W_V", "gate": "W_gate", "up": "W_up"}


def weights_section(run: Run) -> Section:
    """Return what is seen of the subspaces that matrices write and read."""
    weights = read_group(run, "weights")
    rank = int(weights.attrs["rank"])
    maps = [
        _map(f"written.{name}", f"overlap of what {said}", weights["writing_overlap"].sel(writing_matrix=name), 1.0)
        for name, said in (("o", "W_O writes"), ("down", "W_down writes"))
    ]
    between = weights["writer_reader_overlap"].sel(writing_matrix="down")
    highest = float(np.nanmax(weights["writer_reader_overlap"]))
    maps += [
        _map(f"read.{name}", f"what W_down writes and a later {said} reads", between.sel(reading_matrix=name), highest)
        for name, said in (("q", "W_Q"), ("up", "W_up"))
    ]
    title = f"Shared directions of weights: the {rank} leading ones of each matrix"
    return Section(title, list(_facts(weights)), maps=maps)


def _map(name: str, caption: str, values: xr.DataArray, highest: float) -> Figure:
    return Figure(f"weights.{name}", caption, lambda: layer_map(values, caption, limits=(0, highest)))


def _facts(weights: xr.Dataset) -> Iterator[str]:
    random = float(weights["random_overlap"])
    writing = weights["writing_overlap"]
    for name, said in (("o", "W_O"), ("down", "W_down")):
        matrix = writing.sel(writing_matrix=name).values
        neighbours, rest = np.diag(matrix, 1), matrix[np.triu_indices(len(matrix), 2)]
        if not len(rest):
            continue
        yield (
            f"What {said} writes shares {neighbours.mean():.1%} with the next layer's and {rest.mean():.1%} with "
            f"that of layers farther off, on average; random subspaces share {random:.1%}."
        )
    between = weights["writer_reader_overlap"]
    if np.isfinite(between).any():
        means = between.mean(["layer", "layer_other"])
        writer, reader = np.unravel_index(int(np.nanargmax(means.values)), means.shape)
        yield (
            f"Of all writers and later readers, {_NAMES[str(means['writing_matrix'].values[writer])]} and "
            f"{_NAMES[str(means['reading_matrix'].values[reader])]} share most: {float(means[writer, reader]):.1%} "
            f"on average over pairs of layers."
        )
