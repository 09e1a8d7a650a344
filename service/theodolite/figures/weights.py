"""Overlap between layers of the directions that their matrices write and read."""

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import layer_map


def overlap_map(overlap: xr.DataArray, title: str, highest: float) -> go.Figure:
    """Return a map of the overlap of directions of each pair of layers.

    Args:
        overlap: (layer, layer_other), from 0 to 1.
        title: name of the overlap, above the map.
        highest: upper end of the scale; maps with the same value can be compared.
    """
    return layer_map(overlap, title, limits=(0, highest))
