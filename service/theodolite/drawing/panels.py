"""Curves in panels over one shared axis."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsInt

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from theodolite.drawing.brackets import bracket
from theodolite.drawing.references import Reference, reference_lines
from theodolite.drawing.style import DEPTH, bare_layout, clear, depth_ticks, is_set_colour, sides_by_side, symbol_of
from theodolite.drawing.switches import LAYER, add_logarithmic_switch
from theodolite.sites import HALF_BLOCKS, depth_label

_PANEL, _MARGINS, _LEGEND = 235, 130, 72  # pixels; a legend may take two rows


INTERVAL = "95 % interval"
"""What most bands are."""


@dataclass(frozen=True)
class Line:
    """One curve of a panel, with a band if it has one; `n` and the band's name are texts for its hover labels."""

    name: str
    x: ArrayLike
    y: ArrayLike
    colour: str
    dash: str = "solid"
    low: ArrayLike | None = None
    high: ArrayLike | None = None
    markers: bool = True
    n: str = ""
    band: str = INTERVAL


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its curves, and the values that they are compared with.

    A bracket marks the depths at which `located` is 1, which may have the largest value.

    A panel of `positive` values has a switch between a logarithmic and a linear axis. `logarithmic` selects its first
    state; None selects it from the values.
    """

    title: str
    lines: Sequence[Line]
    references: Sequence[Reference] = ()
    positive: bool = False
    logarithmic: bool | None = None
    located: xr.DataArray | None = None


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
        colours = list(dict.fromkeys(line.colour for line in panel.lines if is_set_colour(line.colour)))
        for line in panel.lines:
            first = known.setdefault(line.name, row)
            legend = "legend" if first == 1 else f"legend{first}"
            *interval, curve = _traces(line, labels or {}, legend, named=first == row, x_title=x_title)
            if line.markers and len(colours) > 1 and line.colour in colours:
                curve.update(sides_by_side(colours.index(line.colour)))
            figure.add_traces([*interval, curve], rows=row, cols=1)
        drawn = [(line.x, line.y) for line in panel.lines]
        for line in reference_lines(panel.references, drawn, "legend" if row == 1 else f"legend{row}"):
            if line.showlegend and known.setdefault(line.name, row) != row:
                line.update(showlegend=False)
            figure.add_trace(line, row=row, col=1)
        if panel.located is not None:
            figure.add_traces(bracket(panel.located, _heights(panel)), rows=row, cols=1)
        figure.update_yaxes(row=row, col=1, title=panel.title, exponentformat="power")
        if panel.positive:
            values = [np.asarray(y, dtype=np.float64) for _, y in drawn]
            axis, label = f"yaxis{'' if row == 1 else row}", panel.title.partition("<")[0]
            add_logarithmic_switch(figure, axis, label, np.concatenate(values), is_on=panel.logarithmic)
    figure.update_xaxes(**ticks)
    figure.update_xaxes(title=x_title, row=len(panels), col=1)
    figure.update_layout(**bare_layout(height), hovermode="x")
    for row in set(known.values()):
        top = figure.layout["yaxis" if row == 1 else f"yaxis{row}"].domain[1]
        figure.update_layout({"legend" if row == 1 else f"legend{row}": legend_above(top)})
    return figure


def _heights(panel: Panel) -> NDArray[np.float64]:
    """Return all values that a panel draws, ends of bands and references included."""
    curves = [values for line in panel.lines for values in (line.y, line.low, line.high) if values is not None]
    return np.concatenate([*(np.ravel(values) for values in curves), [one.value for one in panel.references]])


def depth_axis(curve: xr.DataArray) -> dict[str, Any]:
    """Return the arguments of `panels_figure` for an axis of a curve's depths along the residual stream."""
    depths = curve["depth"].values.tolist()
    return {"x_title": DEPTH, "ticks": depth_ticks(depths), "labels": {depth: depth_label(depth) for depth in depths}}


def prompts_text(*counts: SupportsInt) -> str:
    """Return numbers of prompts for hover labels, such as `n = 256 and 256`."""
    return f"n = {' and '.join(str(int(count)) for count in counts)}"


def hover_texts(low: ArrayLike | None, high: ArrayLike | None, band: str = INTERVAL) -> list[str] | None:
    """Return the ends of a band at each point for hover labels; None without a band."""
    if low is None or high is None:
        return None
    ends = zip(np.asarray(low, dtype=np.float64), np.asarray(high, dtype=np.float64), strict=True)
    return [f", {band} [{one:.5g}, {other:.5g}]" if np.isfinite(one + other) else "" for one, other in ends]


def hover_template(name: str, n: str = "", *, has_band: bool = False) -> str:
    """Return the hover label of a curve: depth (`customdata`), value, interval (`text`), n, and the curve's name."""
    return f"%{{customdata}}: %{{y:.5g}}{'%{text}' if has_band else ''}{f', {n}' if n else ''}<extra>{name}</extra>"


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


def _traces(line: Line, labels: Mapping[float, str], legend: str, *, named: bool, x_title: str) -> list[go.Scatter]:
    shared = {"legend": legend, "legendgroup": line.name, "visible": True}
    interval = [] if line.low is None or line.high is None else bands(line.x, line.low, line.high, line.colour)
    x = np.asarray(line.x).tolist()
    prefix = f"{LAYER} " if x_title == LAYER else ""
    curve = go.Scatter(
        x=x,
        y=np.asarray(line.y).tolist(),
        name=line.name,
        mode="lines+markers" if line.markers else "lines",
        marker={"size": 4, "symbol": symbol_of(line.colour)},
        line={"color": line.colour, "width": 2 if line.markers else 1.4, "dash": line.dash},
        customdata=[labels.get(point, f"{prefix}{point:g}") for point in x],
        text=hover_texts(line.low, line.high, line.band),
        hovertemplate=hover_template(line.name, line.n, has_band=line.low is not None),
        showlegend=named,
        **shared,
    )
    return [*(band.update(showlegend=False, **shared) for band in interval), curve]


def shown_sites(curves: xr.Dataset) -> list[str]:
    """Return the sites that a figure shows first: resid_pre and resid_mid if measured, or else all sites.

    The legend lists the other sites, which a click shows.
    """
    sites: list[str] = curves["site"].values.tolist()
    return [site for site in sites if site in HALF_BLOCKS] or sites
