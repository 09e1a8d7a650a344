"""Directions of the residual stream that the experts of one layer share."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.groups.weights.figures import experts_figure
from theodolite.sections.parts import Figure, listed, percent

_NAMES = {"down": "W_down", "gate": "W_gate", "up": "W_up"}
_SHARED = "shared"


def expert_facts(weights: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the overlap of experts; nothing for a model without experts."""
    if not _has_experts(weights):
        return
    overlaps = weights["expert_overlap"]
    routed = _of_pairs(weights)
    nulls = weights["expert_overlap_null"].mean("layer")
    means = routed.mean(["pair", "layer"])
    texts = {
        name: f"{percent(means.sel(mlp_matrix=matrix), 1)} ({percent(nulls.sel(mlp_matrix=matrix), 1)})"
        for matrix, name in _NAMES.items()
        if np.isfinite(means.sel(mlp_matrix=matrix))
    }
    if not texts:
        return
    yield (
        "Mean overlap of two routed experts of a layer, over pairs and layers (in brackets: random matrices with the "
        f"same row lengths{_random(weights)}): {listed(texts)}."
    )
    places = routed.stack(place=("mlp_matrix", "layer", "pair"))
    top = places.isel(place=int(np.nanargmax(places.values)))
    yield (
        f"Largest overlap of two routed experts: experts {top['first'].item()} and {top['second'].item()} of layer "
        f"{int(top['layer'])}, {_NAMES[str(top['mlp_matrix'].item())]}, {percent(top, 1)} (the largest of "
        f"{int(np.isfinite(places).sum()):,} overlaps, so it is biased upwards{_below_chance(weights, top)})."
    )
    if _SHARED in overlaps["expert_or_shared"].values:
        with_shared = overlaps.sel(expert_or_shared=_SHARED).drop_sel(expert_or_shared_other=_SHARED)
        of_shared = with_shared.mean(["layer", "expert_or_shared_other"])
        known = {name: of_shared.sel(mlp_matrix=matrix) for matrix, name in _NAMES.items() if name in texts}
        yield (
            "Mean overlap of the shared expert with the routed experts of its layer: "
            f"{listed({name: percent(mean, 1) for name, mean in known.items()})}."
        )


def _below_chance(weights: xr.Dataset, largest: xr.DataArray) -> str:
    """Return a remark if the random matrices of the layer have as large an overlap."""
    of_layer = {"mlp_matrix": largest["mlp_matrix"], "layer": largest["layer"]}
    null = weights["expert_overlap_null"].sel(of_layer)
    return f"; it is not above chance: random matrices give {percent(null, 1)} there" if largest <= null else ""


def expert_figures(weights: xr.Dataset) -> Iterator[Figure]:
    """Yield the figure of the mean overlap of experts by layer; nothing without experts."""
    if _has_experts(weights):
        means = _of_pairs(weights).mean("pair")
        nulls = weights["expert_overlap_null"]
        caption = "Mean overlap of the directions that two routed experts of a layer write or read"
        yield Figure("weights.experts", caption, partial(experts_figure, means, nulls, _NAMES))


def _has_experts(weights: xr.Dataset) -> bool:
    return weights.sizes["expert_or_shared"] > 1


def _of_pairs(weights: xr.Dataset) -> xr.DataArray:
    """Return the overlaps of each pair of routed experts once, (mlp_matrix, layer, pair)."""
    overlaps = weights["expert_overlap"]
    names = [name for name in overlaps["expert_or_shared"].values.tolist() if name != _SHARED]
    rows, columns = np.triu_indices(len(names), 1)
    labels = np.array(names)
    return xr.DataArray(
        overlaps.values[:, :, rows, columns],
        {
            "mlp_matrix": overlaps["mlp_matrix"],
            "layer": overlaps["layer"],
            "first": ("pair", labels[rows]),
            "second": ("pair", labels[columns]),
        },
        ("mlp_matrix", "layer", "pair"),
    )


def _random(weights: xr.Dataset) -> str:
    """Return what random subspaces give, unless experts are compared in fewer directions than other matrices."""
    if weights.attrs.get("expert_rank") != weights.attrs["rank"]:
        return ""
    mean, sd = weights["random_overlap"].values
    return f"; random subspaces give {percent(mean, 1)}, ± {100 * sd:.1f} % for a single pair"
