"""Maps of a number for each pair of layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import NDArray

from theodolite.drawing.style import COLORBAR, DIVERGING, PLAIN, clear, map_layout

WRITER_READER = ("writer, layer", "reader, layer")
"""Titles of the axes of a map of matrices that write to the stream with matrices that read it."""

_SHARE = 0.02
"""Share of the cells outside the diagonal that lie below the scale, and of those that lie above it."""


def layer_map(
    values: xr.DataArray,
    title: str,
    *,
    axes: tuple[str, str] = ("layer", "layer"),
    limits: tuple[float, float] | None = None,
    chance: xr.DataArray | None = None,
    pale: Sequence[bool] | None = None,
) -> go.Figure:
    """Return a map of a number of each pair of layers: `layer` upwards, `layer_other` to the right.

    Args:
        values: (layer, layer_other).
        title: name of the number, above the map.
        axes: titles of the vertical and of the horizontal axis.
        limits: both ends of the scale, for maps that are compared; None selects them with `scale_limits`.
        chance: what chance gives for each pair, (layer, layer_other); hover labels show it.
        pale: for each layer, whether its row and column are drawn pale.
    """
    by_layer = values.transpose("layer", "layer_other")
    layers = {"x": by_layer["layer_other"].values.tolist(), "y": by_layer["layer"].values.tolist()}
    hover: dict[str, Any] = {"hovertemplate": f"{axes[0]} %{{y}}, {axes[1]} %{{x}}: %{{z:.3f}}"}
    if axes[0] == axes[1]:
        hover["hovertemplate"] = f"{axes[0]}s %{{y}} and %{{x}}: %{{z:.3f}}"
    if chance is not None:
        hover["customdata"] = _chance_texts(chance.transpose("layer", "layer_other").values)
        hover["hovertemplate"] += "%{customdata}"
    figure = pair_map(by_layer.values, title, limits, axes=axes, **hover, **layers)
    if pale is not None:
        figure.add_traces(veil(np.logical_or.outer(pale, pale), figure.data[0].x, figure.data[0].y))
    return figure


def pair_map(
    values: NDArray[np.float64],
    title: str,
    limits: tuple[float, float] | None = None,
    *,
    axes: tuple[str, str],
    **options: Any,
) -> go.Figure:
    """Return a map of a number of each pair of places: the first one upwards, the second one to the right.

    Args:
        values: (place, other place).
        title: name of the number, above the map.
        limits: both ends of the scale; None selects them with `scale_limits`.
        axes: titles of the vertical and of the horizontal axis.
        options: Plotly's properties of the heat map.
    """
    options["hovertemplate"] += "<extra></extra>"
    figure = go.Figure(go.Heatmap(z=values.tolist(), **scale_of(values, limits), **options))
    figure.update_layout(map_layout(400, title))
    figure.update_xaxes(title=axes[1], showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(title=axes[0], showgrid=False, zeroline=False)
    return figure


def scale_limits(*maps: NDArray[np.float64]) -> tuple[float, float]:
    """Return the ends of a scale for the pairs of different places, without the smallest and the largest 2 % of them.

    Several maps get one scale, with which they can be compared.

    The diagonal is left out, since in most maps it compares each place with itself. If the other values have both
    signs, zero is the middle of the scale.
    """
    others = np.concatenate([np.empty(0), *(values[np.eye(*values.shape) == 0] for values in maps)])
    others = others[np.isfinite(others)]
    if not len(others):
        return (0.0, 1.0)
    low, high = (float(end) for end in np.quantile(others, (_SHARE, 1 - _SHARE)))
    if low < 0 < high:
        return (-max(-low, high), max(-low, high))
    return (low, high) if low < high else (low, low + 1e-9 * max(1.0, abs(low)))


def scale_of(values: NDArray[np.float64], limits: tuple[float, float] | None = None) -> dict[str, Any]:
    """Return Plotly's properties of a map's colours; ticks at both ends of the scale say which values it contains."""
    low, high = scale_limits(values) if limits is None else limits
    finite = values[np.isfinite(values)]
    is_cut_below, is_cut_above = bool((finite < low).any()), bool((finite > high).any())
    ticks = [low, *_round_between(low, high), high]
    digits = min(6, max(0, 1 - int(np.floor(np.log10(high - low)))))
    texts = [f"{tick + 0.0:.{digits}f}" for tick in ticks]
    lowest, highest = (f"{end + 0.0:.{digits + 1}f}" for end in (low, high))  # ends are not round numbers
    texts[0], texts[-1] = f"{'≤' if is_cut_below else ''}{lowest}", f"{'≥' if is_cut_above else ''}{highest}"
    bar = {**COLORBAR, "tickvals": ticks, "ticktext": texts}
    return {"colorscale": DIVERGING if low < 0 < high else "Viridis", "zmin": low, "zmax": high, "colorbar": bar}


def _round_between(low: float, high: float) -> list[float]:
    """Return about three round numbers between the ends of a scale, not close to them."""
    largest = (high - low) / 3
    power = 10.0 ** float(np.floor(np.log10(largest)))
    step = power * max((factor for factor in (2, 5) if factor * power <= largest), default=1)
    room = (high - low) / 12
    first, last = int(np.ceil((low + room) / step)), int(np.floor((high - room) / step))
    return [step * multiple for multiple in range(first, last + 1)]


def veil(covered: NDArray[np.bool_], x: Sequence[Any], y: Sequence[Any]) -> list[go.Heatmap]:
    """Return a map that makes the covered cells, (y, x), pale; nothing if no cell is covered."""
    if not covered.any():
        return []
    grey = clear(PLAIN, 0.75)
    shown = [[1 if cell else None for cell in row] for row in covered.tolist()]
    scale = {"colorscale": [[0, grey], [1, grey]], "showscale": False}
    return [go.Heatmap(z=shown, x=x, y=y, hoverinfo="skip", **scale)]


def _chance_texts(chance: NDArray[np.float64]) -> list[list[str]]:
    return [[f", chance {value:.3f}" if np.isfinite(value) else "" for value in row] for row in chance]
