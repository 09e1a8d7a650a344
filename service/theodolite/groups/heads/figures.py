"""Maps of a number over all attention heads."""

import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.maps import WRITER_READER, layer_map


def composition_map(score: xr.DataArray, title: str) -> go.Figure:
    """Return a map of the largest composition of heads of two layers: the writer's upwards, the reader's to the right.

    Args:
        score: (layer, head, layer_other, head_other).
        title: name of the number, above the map.
    """
    return layer_map(score.max(("head", "head_other")), title, axes=WRITER_READER)
