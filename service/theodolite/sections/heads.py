"""Attention heads: maps of all heads, and those with the largest or smallest numbers."""

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import xarray as xr

from theodolite.figures.heads import head_map
from theodolite.query.heads import head_name, read_heads
from theodolite.sections.parts import Figure, Section
from theodolite.store.runs import Run

_SIDES = {
    "qk_query": "queries that read {}",
    "qk_key": "keys that read {}",
    "vo_read": "values that read {}",
    "vo_write": "outputs that write {}",
}


def sections(run: Run) -> list[Section]:
    """Return one section: maps of all heads; a click on a cell opens that head's card."""
    heads = read_heads(run)
    notes = _texts(heads.attrs["notes"])
    return [Section("Attention heads", list(_facts(heads)), maps=list(_maps(heads)), notes=notes)]


def _maps(heads: xr.Dataset) -> Iterator[Figure]:
    at = heads.sel(offset=0)
    coverage = at["coverage_99"].astype(float).where(at["coverage_99"] >= 0)
    numbers = {
        "leading": ("leading singular value", at["singular_values"].isel(rank=0)),
        "effective_rank": ("effective rank", at["effective_rank"]),
        "coverage_99": ("rank that covers 99 %", coverage),
    }
    for short, (title, values) in numbers.items():
        for circuit in heads["circuit"].values.tolist():
            of_circuit, logarithmic = values.sel(circuit=circuit), short == "leading"
            yield _map(
                f"{circuit}.{short}", f"{circuit.upper()}: {title}", of_circuit, circuit, logarithmic=logarithmic
            )
    for contrast in heads["contrast"].values.tolist():
        for side, title in _SIDES.items():
            values = heads["direction_alignment"].sel(contrast=contrast, side=side)
            if np.isfinite(values).any():
                yield _map(f"{side}.{contrast}", title.format(contrast), values, side[:2])
    if np.isfinite(heads["copying_score"]).any():
        yield _map("vo.copying_score", "VO: copying score", heads["copying_score"], "vo", signed=True)


def _map(name: str, caption: str, values: xr.DataArray, circuit: str, **options: bool) -> Figure:
    return Figure(f"heads.{name}", caption, partial(head_map, values, caption, **options), circuit)


def _facts(heads: xr.Dataset) -> Iterator[str]:
    sizes, at = heads.sizes, heads.sel(offset=0)
    d_model, d_head = sizes["d_model"], sizes["rank"]
    for circuit in heads["circuit"].values.tolist():
        ranks = at["effective_rank"].sel(circuit=circuit)
        least = head_name(*_argument(ranks, largest=False))
        yield (
            f"{circuit.upper()} circuits have an effective rank of {float(ranks.median()):.1f} in the median, "
            f"of at most {d_head}; {least} has the least, {float(ranks.min()):.1f}."
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


def _argument(values: xr.DataArray, *, largest: bool) -> tuple[int, int]:
    """Return layer and head of the largest or least finite value."""
    by_layer = values.transpose("layer", "head")
    found = np.nanargmax(by_layer.values) if largest else np.nanargmin(by_layer.values)
    row, column = np.unravel_index(int(found), by_layer.shape)
    return int(by_layer["layer"][row]), int(by_layer["head"][column])


def _texts(stored: Any) -> list[str]:
    return [stored] if isinstance(stored, str) else list(stored)
