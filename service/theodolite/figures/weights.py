"""Overlap between layers of the directions that their matrices write and read."""

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.maps import layer_map


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
