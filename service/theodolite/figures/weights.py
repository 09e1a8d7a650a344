"""How much of what matrices write and read the layers share."""

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import layer_map


def overlap_map(overlap: xr.DataArray, title: str, highest: float) -> go.Figure:
    """Draw the share of directions that each pair of layers has in common, as a map.

    Args:
        overlap: (layer, layer_other), from 0 to 1.
        title: what is shared; stands above the map.
        highest: upper end of the scale; maps with the same one can be compared.
    """
    return layer_map(overlap, title, limits=(0, highest))
