"""The cards of attention heads in the report: spectrum and leading tokens of each circuit."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups.heads.record import CIRCUITS
from theodolite.query.heads import attention_layers, head_name, token_lists
from theodolite.query.words import read_words
from theodolite.store.runs import Run

CARDS = 400
"""Maximum number of heads with a card in the report; a larger model has cards for the heads with the largest values."""

_VECTORS, _TOKENS = 5, 8  # singular vectors and tokens of each list of a card


def heads_with_cards(heads: xr.Dataset) -> list[tuple[int, int]]:
    """Return (layer, head) of each head with a card: all heads, or the heads with the largest values of the maps."""
    everything = [(layer, head) for layer in attention_layers(heads) for head in heads["head"].values.tolist()]
    if len(everything) <= CARDS:
        return everything
    heads = heads.sel(layer=attention_layers(heads))
    leading = heads["singular_values"].sel(offset=0).isel(rank=0)
    rankings = [leading.sel(circuit=circuit) for circuit in CIRCUITS]
    alignment = heads["direction_alignment"]
    rankings += [values for contrast in alignment for values in contrast if np.isfinite(values).any()]
    chosen: dict[tuple[int, int], None] = {}
    orders = [np.argsort(-np.nan_to_num(values.values, nan=-np.inf), axis=None, kind="stable") for values in rankings]
    for indices in zip(*orders, strict=True):
        chosen.update((everything[int(index)], None) for index in indices)
        if len(chosen) >= CARDS:
            break
    return sorted(list(chosen)[:CARDS])


def head_cards(run: Run, heads: xr.Dataset, shown: list[tuple[int, int]], *, words: bool) -> dict[str, Any]:
    """Return the spectrum and the tokens of each circuit and head name, such as `L12H3`; no tokens if not `words`."""
    lists: dict[Any, dict[str, list[str]]] = {}
    if words:
        leading = [("vector", "<", _VECTORS), ("place", "<", _TOKENS)]
        lists = token_lists(read_words(run, "head_tokens", leading))
    values = heads["singular_values"].sel(offset=0)
    return {
        circuit: {
            head_name(layer, head): {
                "values": _rounded(values.sel(circuit=circuit, layer=layer, head=head).values),
                "tokens": [
                    lists.get((circuit, layer, head, vector), {})
                    for vector in range(min(_VECTORS, heads.sizes["vector"]) if words else 0)
                ],
            }
            for layer, head in shown
        }
        for circuit in CIRCUITS
    }


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.4g}") for value in values if np.isfinite(value)]  # other layers may have wider heads
