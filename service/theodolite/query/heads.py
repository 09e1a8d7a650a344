"""Attention heads of a finished run: the atlas, and one head's card."""

from typing import Any

import pandas as pd
import xarray as xr

from theodolite.errors import SiteNotFoundError
from theodolite.query.words import read_words
from theodolite.store.complete import finished_groups
from theodolite.store.results import read_group
from theodolite.store.runs import Run

_TOKENS = ["side", "vector", "end", "place", "token", "token_id", "score", "against"]


def head_name(layer: int, head: int) -> str:
    """Return how the field writes a head: `L12H3`."""
    return f"L{layer}H{head}"


def read_heads(run: Run) -> xr.Dataset:
    """Return the result group `heads`, but its vectors; raises RunDamagedError where it is not there."""
    return read_group(run, "heads")


def head_card(run: Run, layer: int, head: int, circuit: str, offset: int = 0) -> dict[str, Any]:
    """Return one circuit's spectrum, ranks, and the tokens of its leading vectors; no tokens without `words`.

    Raises:
        SiteNotFoundError: the model has no such layer or head, or the circuit was not decomposed at this offset.
    """
    heads = read_heads(run)
    for dim, label in {"circuit": circuit, "offset": offset, "layer": layer, "head": head}.items():
        labels = heads[dim].values.tolist()
        if label not in labels:
            raise SiteNotFoundError(f"{run.id} has no {dim} {label!r}; it has {_said(labels)}")
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


def _said(labels: list[Any]) -> str:
    whole = all(isinstance(label, int) for label in labels) and labels == list(range(labels[0], labels[-1] + 1))
    return f"{labels[0]} to {labels[-1]}" if whole and len(labels) > 2 else ", ".join(map(str, labels))
