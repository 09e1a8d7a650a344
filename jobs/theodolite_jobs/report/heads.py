"""The report's part on attention heads: maps of all of them, and a card of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.figures.heads import head_map, spectrum_figure
from theodolite.query.heads import head_name, read_heads, token_lists
from theodolite.query.words import read_words
from theodolite.store.runs import Run

CARDS = 400
"""Heads that have a card in the report, at most; of a larger model those that stand out."""

_VECTORS, _TOKENS = 5, 8  # of a card's lists
_CIRCUITS = {"qk": "QK", "vo": "VO"}
_SIDES = {
    "qk_query": "queries that read {}",
    "qk_key": "keys that read {}",
    "vo_read": "values that read {}",
    "vo_write": "outputs that write {}",
}


@dataclass(frozen=True)
class HeadMap:
    """One map, and which circuit's card a click on it opens."""

    circuit: str
    figure: Any


@dataclass(frozen=True)
class HeadsSection:
    """What the report says of heads.

    Attributes:
        facts: sentences.
        notes: conventions.
        maps: numbers over all heads.
        cards: by circuit, then `L12H3`: spectrum and tokens.
        spectrum: the figure of a card, to be filled.
        left_out: heads without a card.
    """

    facts: list[str]
    notes: list[str]
    maps: list[HeadMap]
    cards: dict[str, Any]
    spectrum: Any
    left_out: int


def heads_section(run: Run, *, words: bool) -> HeadsSection:
    """Return the part on heads from the stored results; `words` says whether there are tokens."""
    heads = read_heads(run)
    shown = _heads_with_cards(heads)
    first = heads["singular_values"].isel(circuit=0, offset=0, layer=0, head=0).values
    return HeadsSection(
        facts=list(_facts(heads)),
        notes=_texts(heads.attrs["notes"]),
        maps=list(_maps(heads)),
        cards=_cards(run, heads, shown, words=words),
        spectrum=spectrum_figure(first),
        left_out=heads.sizes["layer"] * heads.sizes["head"] - len(shown),
    )


def _maps(heads: xr.Dataset) -> Iterator[HeadMap]:
    at = heads.sel(offset=0)
    coverage = at["coverage_99"].astype(float).where(at["coverage_99"] >= 0)
    numbers = {"leading singular value": at["singular_values"].isel(rank=0), "effective rank": at["effective_rank"]}
    numbers["rank that covers 99 %"] = coverage
    for title, values in numbers.items():
        for circuit, name in _CIRCUITS.items():
            leading = title.startswith("leading")
            figure = head_map(values.sel(circuit=circuit), f"{name}: {title}", logarithmic=leading)
            yield HeadMap(circuit, figure)
    for contrast in heads["contrast"].values.tolist():
        for side, title in _SIDES.items():
            values = heads["direction_alignment"].sel(contrast=contrast, side=side)
            if np.isfinite(values).any():
                yield HeadMap(side[:2], head_map(values, title.format(contrast)))
    if np.isfinite(heads["copying_score"]).any():
        yield HeadMap("vo", head_map(heads["copying_score"], "VO: copying score", signed=True))


def _facts(heads: xr.Dataset) -> Iterator[str]:
    sizes, at = heads.sizes, heads.sel(offset=0)
    d_model, d_head = sizes["d_model"], sizes["rank"]
    for circuit, name in _CIRCUITS.items():
        ranks = at["effective_rank"].sel(circuit=circuit)
        least = head_name(*_argument(ranks, largest=False))
        yield (
            f"{name} circuits have an effective rank of {float(ranks.median()):.1f} in the median, of at most "
            f"{d_head}; {least} has the least, {float(ranks.min()):.1f}."
        )
    copying = heads["copying_score"]
    if np.isfinite(copying).any():
        yield (
            f"{int((copying > 0.9).sum())} of {copying.size} heads copy (score above 0.9), and "
            f"{int((copying < -0.9).sum())} suppress what they read (below -0.9)."
        )
    for contrast in heads["contrast"].values.tolist():
        for side, title in _SIDES.items():
            values = heads["direction_alignment"].sel(contrast=contrast, side=side)
            if not np.isfinite(values).any():
                continue
            layer, head = _argument(values, largest=True)
            rank = float(at["stable_rank"].sel(circuit=side[:2], layer=layer, head=head))
            yield (
                f"Of {title.format(contrast + chr(39) + 's direction')}, {head_name(layer, head)} stands out: "
                f"{float(values.max()):.2f} of what its leading vector would, where a random direction has "
                f"{np.sqrt(rank / d_model):.2f}."
            )
    unseen = heads["null_variance"]
    if np.isfinite(unseen).any():
        counts = heads["n_samples"].values
        dimension = int(heads["null_dimension"].median())
        yield (
            f"In the median a head does not see {dimension} of {d_model} dimensions, {dimension / d_model:.1%}; of the "
            f"variance of what attention reads {float(unseen.sel(projection='query').median()):.1%} lies there for "
            f"queries and "
            f"{float(unseen.sel(projection='key').median()):.1%} for keys in the median over heads "
            f"(n = {int(counts[counts > 0].min())} to {int(counts.max())} prompts of a set)."
        )


def _heads_with_cards(heads: xr.Dataset) -> list[tuple[int, int]]:
    """Return (layer, head) of those that get a card: all, or those with the largest values of some map."""
    everything = [(layer, head) for layer in heads["layer"].values.tolist() for head in heads["head"].values.tolist()]
    if len(everything) <= CARDS:
        return everything
    leading = heads["singular_values"].sel(offset=0).isel(rank=0)
    rankings = [leading.sel(circuit=circuit) for circuit in _CIRCUITS]
    alignment = heads["direction_alignment"]
    rankings += [one for of_contrast in alignment for one in of_contrast if np.isfinite(one).any()]
    kept: dict[tuple[int, int], None] = {}
    orders = [np.argsort(-np.nan_to_num(one.values, nan=-np.inf), axis=None, kind="stable") for one in rankings]
    for places in zip(*orders, strict=True):
        kept.update((everything[int(place)], None) for place in places)
        if len(kept) >= CARDS:
            break
    return sorted(list(kept)[:CARDS])


def _cards(run: Run, heads: xr.Dataset, shown: list[tuple[int, int]], *, words: bool) -> dict[str, Any]:
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
        for circuit in _CIRCUITS
    }


def _argument(values: xr.DataArray, *, largest: bool) -> tuple[int, int]:
    """Return layer and head of the largest or least finite value."""
    by_layer = values.transpose("layer", "head")
    found = np.nanargmax(by_layer.values) if largest else np.nanargmin(by_layer.values)
    row, column = np.unravel_index(int(found), by_layer.shape)
    return int(by_layer["layer"][row]), int(by_layer["head"][column])


def _rounded(values: NDArray[np.float64]) -> list[float]:
    return [float(f"{value:.4g}") for value in values]


def _texts(stored: Any) -> list[str]:
    return [stored] if isinstance(stored, str) else list(stored)
