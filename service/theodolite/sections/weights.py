"""Which directions of the stream the layers' matrices share."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.weights import overlap_map
from theodolite.sections.parts import Figure, Section
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_NAMES = {"o": "W_O", "down": "W_down", "q": "W_Q", "k": "W_K", "v": "W_V", "gate": "W_gate", "up": "W_up"}
_PAIRS = (("down", "q"), ("down", "up"))  # writers and readers that are always shown


def sections(run: Run) -> list[Section]:
    """Return one section: how much of the subspaces that matrices write and read the layers share."""
    weights = read_group(run, "weights")
    rank = int(weights.attrs["rank"])
    maps = [
        _map(f"written.{name}", f"overlap of what {said}", weights["writing_overlap"].sel(writing_matrix=name), 1.0)
        for name, said in (("o", "W_O writes"), ("down", "W_down writes"))
    ]
    between = weights["writer_reader_overlap"]
    highest = float(np.nanmax(between))
    for writer, reader in dict.fromkeys([*_PAIRS, *_most_shared(between)]):
        name = f"read.{reader}" if writer == "down" else f"read.{writer}.{reader}"
        caption = f"what {_NAMES[writer]} writes and a later {_NAMES[reader]} reads"
        maps.append(_map(name, caption, between.sel(writing_matrix=writer, reading_matrix=reader), highest))
    title = f"Shared directions of weights: the {rank} leading ones of each matrix"
    return [Section(title, list(_facts(weights)), maps=maps)]


def _map(name: str, caption: str, values: xr.DataArray, highest: float) -> Figure:
    return Figure(f"weights.{name}", caption, partial(overlap_map, values, caption, highest))


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
    for writer, reader in _most_shared(between):
        mean = float(between.sel(writing_matrix=writer, reading_matrix=reader).mean())
        yield (
            f"Of all writers and later readers, {_NAMES[writer]} and {_NAMES[reader]} share most: {mean:.1%} "
            f"on average over pairs of layers."
        )


def _most_shared(between: xr.DataArray) -> list[tuple[str, str]]:
    """Return the writer and the reader that share most on average over pairs of layers, if any share at all."""
    if not np.isfinite(between).any():
        return []
    means = between.mean(["layer", "layer_other"]).stack(pair=("writing_matrix", "reading_matrix"))
    writer, reader = means["pair"].values[int(np.nanargmax(means.values))]
    return [(str(writer), str(reader))]
