"""Attention heads of a finished run: the atlas, and one head's card."""

from typing import Any

import pandas as pd
import xarray as xr

from theodolite.errors import SiteNotFoundError
from theodolite.query.group_selection import said
from theodolite.query.words import read_words
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_TOKENS = ["side", "vector", "end", "place", "token", "token_id", "score", "against"]


def head_name(layer: int, head: int) -> str:
    """Return how the field writes a head: `L12H3`."""
    return f"L{layer}H{head}"


def read_heads(run: Run) -> xr.Dataset:
    """Return the result group `heads`, but its vectors; raises RunDamagedError where it is not there."""
    return read_group(run, "heads")


def head_atlas(run: Run, circuit: str, offset: int = 0) -> xr.Dataset:
    """Return what each head's circuit is like, (layer, head): leading singular value, ranks, and what contrasts say.

    `direction_alignment` has the sides of this circuit, (contrast, side, layer, head); `copying_score` is of vo alone.

    Raises:
        SiteNotFoundError: the circuit was not decomposed, or not at this offset.
    """
    heads = read_heads(run)
    _check(run, heads, {"circuit": circuit, "offset": offset})
    at = heads.sel(circuit=circuit, offset=offset)
    atlas = at[["effective_rank", "stable_rank", "coverage_99"]]
    leading = at["singular_values"].isel(rank=0, drop=True)
    sides = [side for side in heads["side"].values.tolist() if side.startswith(circuit)]
    atlas = atlas.assign(
        leading_singular_value=leading, direction_alignment=heads["direction_alignment"].sel(side=sides)
    )
    return atlas.assign(copying_score=heads["copying_score"]) if circuit == "vo" else atlas


def head_card(run: Run, layer: int, head: int, circuit: str, offset: int = 0) -> dict[str, Any]:
    """Return one circuit's spectrum, ranks, and the tokens of its leading vectors; no tokens without `words`.

    Raises:
        SiteNotFoundError: the model has no such layer or head, or the circuit was not decomposed at this offset.
    """
    heads = read_heads(run)
    _check(run, heads, {"circuit": circuit, "offset": offset, "layer": layer, "head": head})
    at = heads.sel(circuit=circuit, offset=offset, layer=layer, head=head)
    wanted = [("layer", "==", layer), ("head", "==", head), ("circuit", "==", circuit)]
    words = "words" in finished_groups(run)
    tokens = read_words(run, "head_tokens", wanted) if words else pd.DataFrame(columns=_TOKENS)
    return {
        "name": head_name(layer, head),
        "circuit": circuit,
        "offset": offset,
        "singular_values": at["singular_values"].values,
        **{name: at[name].item() for name in ("coverage_99", "effective_rank", "stable_rank", "copying_score")},
        "tokens": tokens[_TOKENS],
    }


def token_lists(tokens: pd.DataFrame) -> dict[tuple[Any, ...], list[str]]:
    """Return the lists of tokens by (circuit, layer, head, side, vector, end), best first.

    What an untied model writes is decoded twice; here by the embedding, as in the paper.

    Args:
        tokens: rows of the table `head_tokens`.
    """
    keys = ["circuit", "layer", "head", "side", "vector", "end"]
    ordered = tokens[tokens["against"] != "unembedding"].sort_values([*keys, "place"], kind="stable")
    return {key: group.tolist() for key, group in ordered.groupby(keys, observed=True)["token"]}


def _check(run: Run, heads: xr.Dataset, asked: dict[str, Any]) -> None:
    for dim, label in asked.items():
        labels = heads[dim].values.tolist()
        if label not in labels:
            raise SiteNotFoundError(f"{run.id} has no {dim} {label!r}; it has {said(labels)}")
