"""Read the attention heads of a finished run: the atlas of all heads, and one head's circuit."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import xarray as xr
from numpy.typing import NDArray

from theodolite.errors import SiteNotFoundError
from theodolite.query.group_selection import label_list
from theodolite.query.words import read_words
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

TOKEN_COLUMNS = {"side": "str", "vector": "int64", "end": "str", "place": "int64", "token": "str", "token_id": "int64"}
TOKEN_COLUMNS |= {"score": "float64", "against": "str"}
"""The columns of the tokens of one head, with their types."""


@dataclass(frozen=True, eq=False)
class Head:
    """One circuit of one attention head.

    Attributes:
        name: name as in papers, such as `L12H3`.
        circuit: qk (W_Q R W_Kᵀ), ov (W_V W_O), or rotary (W_QR R W_KRᵀ, with multi-head latent attention).
        offset: query position minus key position.
        offsets: all offsets at which the circuit was decomposed.
        singular_values: (rank), in descending order; as many as the head is wide.
        coverage_99: first rank at which the cumulative sum of the singular values exceeds 99 % of their sum.
        effective_rank: exp of the entropy of σ/Σσ.
        stable_rank: Σσ² over the largest σ².
        copying_score: the centred one, near 1 if tokens, on the whole, raise their own logits.
        written: what the head writes by contrast, at the last position: the `share` of the distance of the means, and
            its `z` and `p_family` against permuted labels; empty in a run without `contributions`.
        tokens: the tokens of its leading singular vectors on both sides; empty in a run without `words`.
    """

    name: str
    circuit: str
    offset: int
    offsets: list[int]
    singular_values: NDArray[np.float64] = field(repr=False)
    coverage_99: int
    effective_rank: float
    stable_rank: float
    copying_score: float
    written: dict[str, dict[str, float]]
    tokens: pd.DataFrame = field(repr=False)


def head_name(layer: int, head: int) -> str:
    """Return a head's name as papers write it, such as `L12H3`."""
    return f"L{layer}H{head}"


def attention_layers(heads: xr.Dataset) -> list[int]:
    """Return the layers that have attention heads: those of which some singular value is known.

    In a hybrid, blocks with another mixer than attention have none.
    """
    known = heads["singular_values"].sel(circuit="ov", offset=0).notnull().any(("head", "rank"))
    layers: list[int] = heads["layer"].values[known.values | ~known.values.any()].tolist()
    return layers


def head_atlas(run: Run, circuit: str, offset: int = 0) -> xr.Dataset:
    """Return each head's leading singular value, ranks and alignment, (layer, head); callers must not change it.

    `direction_alignment`, (contrast, side, layer, head), and `direction_alignment_null`, (…, null), have the sides of
    this circuit. `copying_score`, which is the centred one, and `copying_score_random_sd` exist only for ov.

    Raises:
        SiteNotFoundError: the circuit was not decomposed, or not at this offset.
    """
    heads = read_group(run, "heads")
    _check(run, heads, circuit=circuit, offset=offset)
    at = heads.sel(circuit=circuit, offset=offset)
    sides = [side for side in heads["side"].values.tolist() if side.startswith(circuit)]
    atlas = at[["effective_rank", "stable_rank", "coverage_99"]].assign(
        leading_singular_value=at["singular_values"].isel(rank=0, drop=True)
    )
    alignment = heads[["direction_alignment", "direction_alignment_null"]]
    atlas = atlas.assign(alignment.sel(side=sides))
    scores = ["copying_score", "copying_score_random_sd"] if circuit == "ov" else []
    return atlas.assign(heads.sel(centring="centred", drop=True)[scores])


def read_head(run: Run, layer: int, head: int, circuit: str = "qk", offset: int = 0) -> Head:
    """Return one head's spectrum, ranks and tokens; the tokens are empty if the run has no `words`.

    Raises:
        SiteNotFoundError: the model has no such layer or head, the layer has no attention, or the circuit was not
            decomposed at this offset.
    """
    heads = read_group(run, "heads")
    _check(run, heads, circuit=circuit, offset=offset, layer=layer, head=head)
    if layer not in (layers := attention_layers(heads)):
        raise SiteNotFoundError(f"{run.id} has no attention heads in layer {layer}; it has {label_list(layers)}")
    if circuit == "ov" and offset:
        raise SiteNotFoundError(f"{run.id} has OV at offset 0 only, because OV does not depend on the offset")
    at = heads.sel(circuit=circuit, offset=offset, layer=layer, head=head)
    of_head = [("layer", "==", layer), ("head", "==", head), ("circuit", "==", circuit)]
    has_words = "words" in finished_groups(run)
    tokens = read_words(run, "head_tokens", of_head) if has_words else pd.DataFrame(columns=[*TOKEN_COLUMNS])
    values = at["singular_values"].values
    return Head(
        name=head_name(layer, head),
        circuit=circuit,
        offset=offset,
        offsets=[0] if circuit == "ov" else heads["offset"].values.tolist(),
        singular_values=values[np.isfinite(values)],  # other layers may have wider heads
        coverage_99=at["coverage_99"].item(),
        effective_rank=at["effective_rank"].item(),
        stable_rank=at["stable_rank"].item(),
        copying_score=at["copying_score"].sel(centring="centred").item(),
        written=_written(run, layer, head),
        tokens=tokens[[*TOKEN_COLUMNS]].astype(TOKEN_COLUMNS).reset_index(drop=True),
    )


def _written(run: Run, layer: int, head: int) -> dict[str, dict[str, float]]:
    if "contributions" not in finished_groups(run):
        return {}
    at = read_group(run, "contributions").isel(position=-1).sel(layer=layer, head=head)
    shares, tests = at["head_share"], at["head_share_null"].sel(null=["z", "p_family"])
    return {
        name: {"share": float(share), "z": float(z), "p_family": float(p)}
        for name, share, (z, p) in zip(at["contrast"].values.tolist(), shares.values, tests.values, strict=True)
        if np.isfinite(share)
    }


def token_lists(tokens: pd.DataFrame) -> dict[tuple[Any, ...], dict[str, list[str]]]:
    """Return the lists of tokens of each (circuit, layer, head, vector), from rows of `head_tokens`.

    The name of a list consists of the side, the matrix that ranks the tokens, and the end, such as `right embedding
    top`; the best score is first. Models with untied embeddings also have lists of the matrix `unembedding`.
    """
    keys = ["circuit", "layer", "head", "vector", "side", "against", "end"]
    ordered = tokens.sort_values([*keys, "place"], kind="stable")
    lists: dict[tuple[Any, ...], dict[str, list[str]]] = {}
    for (circuit, layer, head, vector, *names), group in ordered.groupby(keys, observed=True)["token"]:
        lists.setdefault((circuit, layer, head, vector), {})[" ".join(map(str, names))] = group.tolist()
    return lists


def _check(run: Run, heads: xr.Dataset, **requested: Any) -> None:
    for dim, label in requested.items():
        labels = heads[dim].values.tolist()
        if label not in labels:
            raise SiteNotFoundError(f"{run.id} has no {dim} {label!r}; it has {label_list(labels)}")
