"""Maps of a number over all attention heads."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.drawing.maps import veil
from theodolite.drawing.style import COLORBAR, DIVERGING, map_layout, round_numbers
from theodolite.query.heads import head_name

_NARROW = 20  # columns of a map of some layers that is as wide as one of all layers


def head_map(
    values: xr.DataArray,
    title: str,
    *,
    signed: bool = False,
    logarithmic: bool = False,
    pale: Sequence[bool] | None = None,
) -> go.Figure:
    """Return a map of a number of each head: layers from left to right, heads from bottom to top.

    Args:
        values: (layer, head).
        title: name of the number, above the map.
        signed: whether the number has both signs; its scale is then centred on zero.
        logarithmic: whether colours follow the number's logarithm.
        pale: for each layer, whether its heads are drawn pale.
    """
    by_head = values.transpose("head", "layer").values
    shown = np.log10(by_head, where=by_head > 0, out=np.full(by_head.shape, np.nan)) if logarithmic else by_head
    layers, heads = (values[name].values.tolist() for name in ("layer", "head"))
    names = [[head_name(layer, head) for layer in layers] for head in heads]
    is_whole = layers == list(range(layers[0], layers[0] + len(layers)))
    columns = layers if is_whole else [str(layer) for layer in layers]  # a layer between two others is not stretched
    largest = float(np.nanmax(np.abs(values.values))) if np.isfinite(values.values).any() else 1.0
    scale = {"colorscale": DIVERGING, "zmin": -largest, "zmax": largest} if signed else {"colorscale": "Viridis"}
    figure = go.Figure(
        go.Heatmap(
            z=shown.tolist(),
            x=columns,
            y=heads,
            customdata=names,
            text=by_head.tolist(),
            hovertemplate="%{customdata}: %{text:.4g}<extra></extra>",
            colorbar=_logarithmic_scale(shown) if logarithmic else _scale(shown),
            xgap=1,
            ygap=1,
            **scale,
        )
    )
    if pale is not None:
        figure.add_traces(veil(np.tile(np.asarray(pale), (len(heads), 1)), columns, heads))
    height = 130 + min(420, max(110, 13 * len(heads)))
    figure.update_layout(map_layout(height, title))
    figure.update_xaxes(title="layer", showgrid=False, zeroline=False)
    if not is_whole:
        figure.update_xaxes(type="category", domain=[0, min(1.0, len(columns) / _NARROW)])
    figure.update_yaxes(title="head", showgrid=False, zeroline=False, dtick=max(1, round(len(heads) / 8)))
    return figure


def _scale(values: NDArray[np.float64]) -> dict[str, Any]:
    """Return a scale whose ticks are integers if all numbers are."""
    finite = values[np.isfinite(values)]
    whole = len(finite) > 0 and bool((finite == finite.round()).all())
    return {**COLORBAR, "dtick": max(1, round(float(np.ptp(finite)) / 5))} if whole else COLORBAR


def _logarithmic_scale(logarithms: NDArray[np.float64]) -> dict[str, Any]:
    """Return a scale with round numbers at their logarithms."""
    if not np.isfinite(logarithms).any():
        return COLORBAR
    ticks = round_numbers(10 ** float(np.nanmin(logarithms)), 10 ** float(np.nanmax(logarithms)))
    shown = ticks[:: max(1, round(len(ticks) / 4))]
    return {**COLORBAR, "tickvals": np.log10(shown).tolist(), "ticktext": [f"{tick:g}" for tick in shown]}
