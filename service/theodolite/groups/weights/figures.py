"""Overlap of the directions that matrices write and read: between layers, and between the experts of a layer."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.maps import layer_map
from theodolite.drawing.panels import Line, Panel, panels_figure
from theodolite.drawing.style import MAIN, SECOND, THIRD

_COLOURS = {"down": MAIN, "gate": SECOND, "up": THIRD}


def overlap_map(
    overlap: xr.DataArray,
    title: str,
    axes: tuple[str, str],
    limits: tuple[float, float],
    chance: xr.DataArray | None = None,
) -> go.Figure:
    """Return a map of the overlap of directions of each pair of layers.

    Args:
        overlap: (layer, layer_other), from 0 to 1.
        title: name of the overlap, above the map.
        axes: titles of the vertical and of the horizontal axis.
        limits: both ends of the scale; maps with the same limits can be compared.
        chance: the overlap of random matrices with the same row lengths.
    """
    return layer_map(overlap, title, axes=axes, limits=limits, chance=chance)


def experts_figure(means: xr.DataArray, nulls: xr.DataArray, names: Mapping[str, str]) -> go.Figure:
    """Return the mean overlap of the experts of each layer; dashed lines are random matrices with equal row lengths.

    Args:
        means: mean over pairs of routed experts, (mlp_matrix, layer), from 0 to 1.
        nulls: the same of random matrices.
        names: name of each matrix.
    """
    lines = []
    for matrix, name in names.items():
        mean, null = (values.sel(mlp_matrix=matrix) for values in (means, nulls))
        if np.isfinite(mean).any():
            lines.append(Line(name, mean["layer"], mean, _COLOURS[matrix]))
            of_null = f"{name}, random matrices"
            lines.append(Line(of_null, null["layer"], null, _COLOURS[matrix], "dash", markers=False))
    return panels_figure([Panel("mean overlap of two experts", lines)])
