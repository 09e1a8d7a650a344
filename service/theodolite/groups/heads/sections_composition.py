"""Composition of pairs of attention heads: the largest scores, and a map for each kind."""

from collections.abc import Iterator
from functools import partial
from itertools import zip_longest

import numpy as np
import xarray as xr

from theodolite.groups.heads.figures import composition_map
from theodolite.query.heads import head_name
from theodolite.sections.parts import Figure, Section, Table, texts_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_SHOWN_PAIRS = 8

_HOW_TO_READ = (
    "A cell is the largest composition of two heads in two layers, from the weights alone: how much the output of the "
    "earlier head enters the query (Q), the key (K) or the value (V) of the later one. If the later head read the "
    "stream in random directions, the score would be about 1/√d_model."
)


def composition_sections(run: Run, d_model: int) -> list[Section]:
    """Return the section on composition; none if the run has no such group."""
    if "composition" not in finished_groups(run):
        return []
    group = read_group(run, "composition")
    score = group["score"]
    kinds = score["composition"].values.tolist()
    layers = f"{int(score['layer'].min())} to {int(score['layer'].max())}"
    maps = []
    for kind in kinds:
        caption = f"{kind.upper()}-composition: largest score of two layers"
        values = score.sel(composition=kind)
        maps.append(Figure(f"heads.composition.{kind}", caption, partial(composition_map, values, caption)))
    return [
        Section(
            f"Heads: composition in layers {layers}",
            [fact for kind in kinds for fact in _facts(score.sel(composition=kind), kind.upper(), d_model)],
            maps=maps,
            tables=[_largest(score)],
            notes=texts_of(group.attrs.get("notes", [])),
            how_to_read=_HOW_TO_READ,
            headline=_headline(score, d_model),
        )
    ]


def _facts(score: xr.DataArray, kind: str, d_model: int) -> Iterator[str]:
    n = int(np.isfinite(score).sum())
    if n:
        (value, pair), *_ = _ordered(score)
        yield (
            f"Largest {kind}-composition: {value:.3f}, {pair}; median over n = {n} pairs of heads "
            f"{float(np.nanmedian(score)):.3f}; random directions give about {d_model**-0.5:.3f}."
        )


def _headline(score: xr.DataArray, d_model: int) -> str:
    """Return the largest and the median score of each kind beside that of random directions; empty without scores."""
    by_kind = {kind: score.sel(composition=kind).values for kind in score["composition"].values.tolist()}
    known = {kind.upper(): values for kind, values in by_kind.items() if np.isfinite(values).any()}
    if not known:
        return ""
    largest, medians = (
        ", ".join(f"{kind} {float(number(values)):.3f}" for kind, values in known.items())
        for number in (np.nanmax, np.nanmedian)
    )
    random = f"random directions give about {d_model**-0.5:.3f}"
    return f"Largest composition of two heads: {largest}; medians {medians}; {random}."


def _ordered(score: xr.DataArray) -> list[tuple[float, str]]:
    """Return the largest scores of one kind and their pairs of heads, such as `L2H1 into L5H3`."""
    values = score.transpose("layer", "head", "layer_other", "head_other")
    order = np.argsort(np.nan_to_num(-values.values.ravel(), nan=np.inf), kind="stable")[:_SHOWN_PAIRS]
    indices = np.stack(np.unravel_index(order, values.shape), axis=1)
    pairs = []
    for at in indices:
        labels = [int(values[dim][index]) for dim, index in zip(values.dims, at, strict=True)]
        value = float(values.values[tuple(at)])
        if np.isfinite(value):
            pairs.append((value, f"{head_name(*labels[:2])} into {head_name(*labels[2:])}"))
    return pairs


def _largest(score: xr.DataArray) -> Table:
    kinds = score["composition"].values.tolist()
    columns = [[f"{pair}: {value:.3f}" for value, pair in _ordered(score.sel(composition=kind))] for kind in kinds]
    caption = "Pairs of heads with the largest composition: the earlier head writes, the later head reads"
    return Table(
        caption,
        [f"{kind.upper()}-composition" for kind in kinds],
        [list(row) for row in zip_longest(*columns, fillvalue="")],
    )
