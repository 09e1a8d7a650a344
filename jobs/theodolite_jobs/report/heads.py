"""The cards of attention heads in the report: each circuit's spectrum, and the tokens of its leading vectors."""

from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.query.heads import head_name, token_lists
from theodolite.query.words import read_words
from theodolite.store.runs import Run

CARDS = 400
"""Heads that have a card in the report, at most; of a larger model those that stand out."""

_VECTORS, _TOKENS = 5, 8  # of a card's lists


def heads_with_cards(heads: xr.Dataset) -> list[tuple[int, int]]:
    """Return (layer, head) of those that get a card: all, or those with the largest values of some map."""
    everything = [(layer, head) for layer in heads["layer"].values.tolist() for head in heads["head"].values.tolist()]
    if len(everything) <= CARDS:
        return everything
    leading = heads["singular_values"].sel(offset=0).isel(rank=0)
    rankings = [leading.sel(circuit=circuit) for circuit in heads["circuit"].values]
    alignment = heads["direction_alignment"]
    rankings += [one for of_contrast in alignment for one in of_contrast if np.isfinite(one).any()]
    kept: dict[tuple[int, int], None] = {}
    orders = [np.argsort(-np.nan_to_num(one.values, nan=-np.inf), axis=None, kind="stable") for one in rankings]
    for places in zip(*orders, strict=True):
        kept.update((everything[int(place)], None) for place in places)
        if len(kept) >= CARDS:
            break
    return sorted(list(kept)[:CARDS])


def head_cards(run: Run, heads: xr.Dataset, shown: list[tuple[int, int]], *, words: bool) -> dict[str, Any]:
    """Return spectrum and tokens by circuit, then `L12H3`; `words` says whether there are tokens."""
    lists = {}
    if words:
        leading = [("vector", "<", _VECTORS), ("place", "<", _TOKENS)]
        lists = token_lists(read_words(run, "head_tokens", leading))
    values = heads["singular_values"].sel(offset=0)
    return {
        circuit: {
            head_name(layer, head): {
                "values": _rounded(values.sel(circuit=circuit, layer=layer, head=head).values),
                "tokens": [
                    {
                        f"{side} {end}": lists.get((circuit, layer, head, side, vector, end), [])
                        for side in ("left", "right")
                        for end in ("top", "bottom")
                    }
                    for vector in range(min(_VECTORS, heads.sizes["vector"]) if words else 0)
                ],
            }
            for layer, head in shown
        }
        for circuit in heads["circuit"].values.tolist()
    }


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]
