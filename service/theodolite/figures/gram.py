"""Shape of each set's point cloud along depth, and similarity of layers from block to block."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, layer_map, panels_figure
from theodolite.query.curves import along_depth


def shape_figure(gram: xr.Dataset, position: int, site: str, colours: Mapping[str, str]) -> go.Figure:
    """Draw the shape of each set's point cloud at one site along depth: anisotropy and three measures of dimension.

    Args:
        gram: the result group.
        position: which position.
        site: which site.
        colours: by set.
    """
    at = gram.sel(position=position)
    panels = []
    names = {
        "mean_cosine": "mean cosine",
        "participation_ratio": "participation ratio",
        "effective_rank": "effective rank",
        "intrinsic_dimension": "TwoNN dimension",
    }
    depths: list[int] = []
    for name, said in names.items():
        lines = []
        for prefix, dash in (("", "solid"), ("standardised_", "dot")):
            for of_set, colour in colours.items():
                curve = along_depth(at[prefix + name].sel(set=of_set, site=[site]))
                depths = curve["depth"].values.tolist()
                suffix = ", features standardised" if prefix else ""
                lines.append(Line(of_set + suffix, depths, curve.values.tolist(), colour, dash))
        panels.append(Panel(said, lines, logarithmic=name != "mean_cosine"))
    return panels_figure(panels, **depth_axis(depths))


def blocks_figure(gram: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Draw CKA through attention, MLP and block, and the share of the MLP's hidden units that are positive.

    Args:
        gram: the result group.
        position: which position.
        colours: by set.
    """
    at = gram.sel(position=position)
    layers = at["layer"].values.tolist()
    panels = []
    groups = {
        "debiased CKA": {"cka_attention": "attention", "cka_mlp": "MLP", "cka_block": "block"},
        "MLP units": {"orthant_occupancy": "positive", "orthant_overlap": "sign shared by two prompts"},
    }
    for title, names in groups.items():
        lines = [
            Line(f"{of_set}, {said}", layers, at[name].sel(set=of_set).values.tolist(), colour, dash)
            for (name, said), dash in zip(names.items(), ("solid", "dot", "dash"), strict=False)
            for of_set, colour in colours.items()
            if np.isfinite(at[name].sel(set=of_set)).any()
        ]
        if lines:
            panels.append(Panel(title, lines))
    return panels_figure(panels, x_title="layer", ticks={})


def similarity_map(similarity: xr.DataArray, title: str) -> go.Figure:
    """Draw the similarity (CKA) of each pair of layers as a map, on a scale from 0 to 1.

    Args:
        similarity: (layer, layer_other).
        title: what the number is; stands above the map.
    """
    return layer_map(similarity, title, limits=(0, 1))
