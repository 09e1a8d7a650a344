"""Curves in panels over one shared axis, and maps of a number for each pair of layers."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from theodolite.figures.style import (
    COLORBAR,
    DEPTH,
    PLAIN,
    bare_layout,
    clear,
    depth_ticks,
    logarithmic_axis,
    map_layout,
    sides_by_side,
)
from theodolite.sites import depth_label

_PANEL, _MARGINS, _LEGEND = 235, 130, 72  # pixels; a legend may take two rows


@dataclass(frozen=True)
class Line:
    """One curve of a panel, with a band if it has an interval."""

    name: str
    x: ArrayLike
    y: ArrayLike
    colour: str
    dash: str = "solid"
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    markers: bool = True


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its curves, and whether its axis is logarithmic."""

    title: str
    lines: Sequence[Line]
    logarithmic: bool = False


def panels_figure(
    panels: Sequence[Panel], *, x_title: str, ticks: Mapping[str, Any], labels: Mapping[float, str] | None = None
) -> go.Figure:
    """Return a figure of panels over one shared axis.

    Curves with the same name in several panels have one legend entry, in the first panel. A panel without curves is
    left out.

    Args:
        panels: panels from top to bottom.
        x_title: title of the axis.
        ticks: Plotly's properties of the axis ticks.
        labels: hover label of each point of the axis.
    """
    panels = [panel for panel in panels if panel.lines] or [Panel("", [])]
    height = _PANEL * len(panels) + _MARGINS
    figure = make_subplots(rows=len(panels), cols=1, shared_xaxes=True, vertical_spacing=_LEGEND / height)
    known: dict[str, int] = {}
    for row, panel in enumerate(panels, start=1):
        colours = list(dict.fromkeys(line.colour for line in panel.lines if line.markers))
        for line in panel.lines:
            first = known.setdefault(line.name, row)
            legend = "legend" if first == 1 else f"legend{first}"
            *interval, curve = _traces(line, labels or {}, legend, named=first == row)
            if line.markers and len(colours) > 1:
                curve.update(sides_by_side(colours.index(line.colour)))
            figure.add_traces([*interval, curve], rows=row, cols=1)
        axis: dict[str, Any] = {"title": panel.title, "exponentformat": "power"}
        if panel.logarithmic:
            axis |= logarithmic_axis(np.concatenate([np.asarray(line.y, dtype=np.float64) for line in panel.lines]))
        figure.update_yaxes(row=row, col=1, **axis)
    figure.update_xaxes(**ticks)
    figure.update_xaxes(title=x_title, row=len(panels), col=1)
    figure.update_layout(**bare_layout(height), hovermode="x")
    for row in set(known.values()):
        top = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].domain[1]
        figure.update_layout({"legend" if row == 1 else f"legend{row}": legend_above(top)})
    return figure


def depth_axis(curve: xr.DataArray) -> dict[str, Any]:
    """Return the arguments of `panels_figure` for an axis of a curve's depths along the residual stream."""
    depths = curve["depth"].values.tolist()
    return {"x_title": DEPTH, "ticks": depth_ticks(depths), "labels": {depth: depth_label(depth) for depth in depths}}


def legend_above(top: float) -> dict[str, Any]:
    """Return the layout of a legend above a panel whose upper edge is at `top`."""
    above = {"orientation": "h", "x": 0, "y": top, "xanchor": "left", "yanchor": "bottom"}
    return {**above, "bgcolor": "rgba(0,0,0,0)", "tracegroupgap": 0}


def bands(x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, opacity: float = 0.18) -> Iterator[go.Scatter]:
    """Yield a band of an interval as closed outlines, one for each stretch without missing values."""
    points, lower, upper = (np.asarray(values) for values in (x, low, high))
    for piece in _finite_pieces(lower + upper):
        yield go.Scatter(
            x=[*points[piece].tolist(), *points[piece][::-1].tolist()],
            y=[*lower[piece].tolist(), *upper[piece][::-1].tolist()],
            mode="lines",
            fill="toself",
            fillcolor=clear(colour, opacity),
            line={"width": 0},
            hoverinfo="skip",
        )


def _finite_pieces(values: NDArray[np.float64]) -> list[slice]:
    """Return the stretches without NaN, since a polygon must not cross a gap."""
    edges = np.diff(np.concatenate([[0], np.isfinite(values).astype(int), [0]]))
    return [slice(a, b) for a, b in zip(np.flatnonzero(edges == 1), np.flatnonzero(edges == -1), strict=True)]


def layer_map(
    values: xr.DataArray, title: str, limits: tuple[float, float], pale: Sequence[bool] | None = None
) -> go.Figure:
    """Return a map of a number of each pair of layers: `layer` upwards, `layer_other` to the right.

    Args:
        values: (layer, layer_other).
        title: name of the number, above the map.
        limits: both ends of the scale; maps with the same limits can be compared.
        pale: for each layer, whether its row and column are drawn pale.
    """
    by_layer = values.transpose("layer", "layer_other")
    layers = {"x": by_layer["layer_other"].values.tolist(), "y": by_layer["layer"].values.tolist()}
    figure = pair_map(by_layer.values, title, limits, hovertemplate="layers %{y} and %{x}: %{z:.3f}", **layers)
    if pale is not None:
        figure.add_traces(veil(np.logical_or.outer(pale, pale), figure.data[0].x, figure.data[0].y))
    return figure


def pair_map(
    values: NDArray[np.float64], title: str, limits: tuple[float, float], *, axis: str = "layer", **options: Any
) -> go.Figure:
    """Return a map of a number of each pair of places: the first one upwards, the second one to the right.

    Args:
        values: (place, other place).
        title: name of the number, above the map.
        limits: both ends of the scale.
        axis: title of both axes.
        options: Plotly's properties of the heat map.
    """
    options["hovertemplate"] += "<extra></extra>"
    scale = {"colorscale": "RdBu" if limits[0] < 0 else "Viridis", "zmin": limits[0], "zmax": limits[1]}
    figure = go.Figure(go.Heatmap(z=values.tolist(), **scale, colorbar=COLORBAR, **options))
    figure.update_layout(map_layout(400, title))
    figure.update_xaxes(title=axis, showgrid=False, zeroline=False, constrain="domain")
    figure.update_yaxes(title=axis, showgrid=False, zeroline=False)
    return figure


def veil(covered: NDArray[np.bool_], x: Sequence[Any], y: Sequence[Any]) -> list[go.Heatmap]:
    """Return a map that makes the covered cells, (y, x), pale; nothing if no cell is covered."""
    if not covered.any():
        return []
    grey = clear(PLAIN, 0.75)
    shown = [[1 if cell else None for cell in row] for row in covered.tolist()]
    scale = {"colorscale": [[0, grey], [1, grey]], "showscale": False}
    return [go.Heatmap(z=shown, x=x, y=y, hoverinfo="skip", **scale)]


def _traces(line: Line, labels: Mapping[float, str], legend: str, *, named: bool) -> list[go.Scatter]:
    shared = {"legend": legend, "legendgroup": line.name, "visible": True}
    interval = [] if line.low is None or line.high is None else bands(line.x, line.low, line.high, line.colour)
    x = np.asarray(line.x).tolist()
    curve = go.Scatter(
        x=x,
        y=np.asarray(line.y).tolist(),
        name=line.name,
        mode="lines+markers" if line.markers else "lines",
        marker={"size": 4},
        line={"color": line.colour, "width": 2 if line.markers else 1.4, "dash": line.dash},
        customdata=[labels.get(point, f"{point:g}") for point in x],
        hovertemplate="%{customdata}: %{y:.4g}<extra>" + line.name + "</extra>",
        showlegend=named,
        **shared,
    )
    return [*(band.update(showlegend=False, **shared) for band in interval), curve]
