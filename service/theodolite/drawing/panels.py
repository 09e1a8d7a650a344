"""Curves in panels over one shared axis, by one grammar.

A line is one statistic. Its dark band is an interval for one depth, the pale one behind it a simultaneous band. Grey is
chance or a control. A filled marker has passed a test, a hollow one has not. A bracket lies over the depths that may
have the extreme value.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, SupportsInt

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike, NDArray
from plotly.subplots import make_subplots

from theodolite.drawing.brackets import bracket
from theodolite.drawing.style import (
    DASHES,
    DEPTH,
    PLAIN,
    bare_layout,
    chance_ends,
    clear,
    depth_ticks,
    is_set_colour,
    layer_ticks,
    short_site,
    sides_by_side,
    symbol_of,
)
from theodolite.drawing.switches import LAYER, add_logarithmic_switch
from theodolite.query.curves import along_depth
from theodolite.sites import HALF_BLOCKS, Site, depth_label

_PANEL, _MARGINS, _GAP = 200, 76, 30  # pixels
_BESIDE = 0.7  # half-blocks or blocks that an axis reaches over its first and its last point
_COINCIDE = 0.1  # of the height of an axis

INTERVAL = "95 % interval"
"""What most bands are."""

BAND = "simultaneous 95 % band"
PALE, DARK = 0.10, 0.20
"""The opacities of a simultaneous band, and of an interval for one depth."""

_CHANCE = "chance, 5 % to 95 %"


@dataclass(frozen=True)
class Line:
    """One curve of a panel.

    Attributes:
        name: text at its end, and in its hover labels.
        x: positions on the axis.
        y: values.
        colour: colour, as #rrggbb.
        dash: Plotly's dash.
        low: lower ends of the dark band, or None.
        high: upper ends of the dark band.
        markers: whether points are marked.
        n: number of prompts, for hover labels.
        band: what the dark band is, for hover labels.
        wide_low: lower ends of the pale simultaneous band, or None.
        wide_high: upper ends of the pale band.
        passed: whether each point passes a test; others are hollow. None draws all filled.
    """

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
    wide_low: ArrayLike | None = None
    wide_high: ArrayLike | None = None
    passed: ArrayLike | None = None


@dataclass(frozen=True)
class Reference:
    """A value that curves are compared with, drawn as a named line: chance or a threshold."""

    value: float
    label: str


@dataclass(frozen=True)
class Panel:
    """A panel: its title, its curves, and what they are compared with.

    Attributes:
        title: what the vertical axis shows.
        lines: the curves.
        references: horizontal lines.
        positive: whether a switch changes between a logarithmic and a linear axis.
        logarithmic: the first state of the switch; None selects it from the values.
        located: 1 at the depths that may have the extreme value, (depth); they get a bracket.
        extreme: whether the `largest` or the `smallest` value is located.
        chance: positions and both ends of the grey ribbon of chance.
    """

    title: str
    lines: Sequence[Line]
    references: Sequence[Reference] = ()
    positive: bool = False
    logarithmic: bool | None = None
    located: xr.DataArray | None = None
    extreme: str = "largest"
    chance: tuple[ArrayLike, ArrayLike, ArrayLike] | None = None


def panels_figure(
    panels: Sequence[Panel],
    *,
    x_title: str = LAYER,
    ticks: Mapping[str, Any] | None = None,
    labels: Mapping[float, str] | None = None,
) -> go.Figure:
    """Return a figure of panels of the same height over one shared axis. A panel without curves is left out.

    Args:
        panels: panels from top to bottom.
        x_title: title of the axis.
        ticks: Plotly's properties of the axis ticks; by default an axis of layers has one at each round number.
        labels: hover label of each point of the axis.
    """
    panels = [panel for panel in panels if panel.lines] or [Panel("", [])]
    height = _PANEL * len(panels) + _GAP * (len(panels) - 1) + _MARGINS
    gap = _GAP / (height - _MARGINS)
    figure = make_subplots(rows=len(panels), cols=1, shared_xaxes=True, vertical_spacing=gap)
    for row, panel in enumerate(panels, start=1):
        figure.add_traces(list(_of_panel(panel, labels or {}, x_title)), rows=row, cols=1)
        figure.update_yaxes(row=row, col=1, title=panel.title, exponentformat="power")
        if panel.positive:
            values = [np.asarray(line.y, dtype=np.float64) for line in panel.lines]
            axis, label = f"yaxis{'' if row == 1 else row}", panel.title.partition("<")[0]
            add_logarithmic_switch(figure, axis, label, np.concatenate(values), is_on=panel.logarithmic)
    points = [point for panel in panels for line in panel.lines for point in np.asarray(line.x).tolist()]
    figure.update_xaxes(**(ticks or (layer_ticks(points) if x_title == LAYER else {})))
    if points and x_title in (DEPTH, LAYER):
        figure.update_xaxes(range=[min(points) - _BESIDE, max(points) + _BESIDE])
    figure.update_xaxes(title=x_title, row=len(panels), col=1)
    figure.update_layout(**bare_layout(height), hovermode="x")
    return figure


def _of_panel(panel: Panel, labels: Mapping[float, str], x_title: str) -> Iterator[go.Scatter]:
    """Yield the traces of a panel, from back to front."""
    if panel.chance is not None:
        yield from (one.update(name=_CHANCE, showlegend=False) for one in bands(*panel.chance, PLAIN, 0.22))
    colours = list(dict.fromkeys(line.colour for line in panel.lines if is_set_colour(line.colour)))
    for line in panel.lines:
        *areas, curve = _traces(line, labels, x_title)
        if line.markers and line.dash == "solid" and len(colours) > 1 and line.colour in colours:
            curve.update(sides_by_side(colours.index(line.colour)))
        yield from (*areas, curve)
    drawn = [np.asarray(line.x, dtype=np.float64) for line in panel.lines]
    if drawn and any(map(len, drawn)):
        ends = min(one.min() for one in drawn if len(one)), max(one.max() for one in drawn if len(one))
        ends = ends if ends[0] < ends[1] else (ends[0] - _BESIDE, ends[1] + _BESIDE)
        yield from (reference_line(one, ends) for one in panel.references)
    if panel.located is not None:
        yield from bracket(panel.located, _heights(panel), panel.extreme)


def reference_line(reference: Reference, ends: tuple[float, float]) -> go.Scatter:
    """Return a thin line at the value of a reference between two positions of the axis."""
    return go.Scatter(
        x=list(ends),
        y=[reference.value] * 2,
        name=reference.label,
        mode="lines",
        line={"color": PLAIN, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
    )


def along_paths(sites: Sequence[str], lines_of: Callable[[Sequence[str]], Iterable[Line]]) -> list[Line]:
    """Return the lines of one path through the stream, or those of each site with its name and its dash.

    Args:
        sites: the sites to draw.
        lines_of: returns the lines of the depths of some sites.
    """
    if set(sites) <= set(HALF_BLOCKS):
        return list(lines_of(sites))
    return [
        replace(line, name=f"{line.name}, {short_site(site)}", dash=DASHES[Site(site)])
        for site in sites
        for line in lines_of([site])
    ]


def with_ends(name: str, values: xr.DataArray, colour: str, n: str, **properties: Any) -> Line:
    """Return a statistic along depth with its interval and its simultaneous band, as far as it has these.

    Args:
        name: name of the line.
        values: the statistic by site and layer, with its estimates.
        colour: colour of the line.
        n: number of prompts, for hover labels.
        properties: further properties of the line.
    """
    curve, known = along_depth(values), values["estimate"].values.tolist()
    ends: dict[str, Any] = {
        name: along_depth(values, end).values
        for name, end in (("low", "low"), ("high", "high"), ("wide_low", "band_low"), ("wide_high", "band_high"))
        if end in known
    }
    return Line(name, curve["depth"].values, curve.values, colour, n=n, **ends, **properties)


def chance_ribbon(null: xr.DataArray) -> tuple[ArrayLike, ArrayLike, ArrayLike]:
    """Return the depths, and about the 5 % and 95 % quantiles of permuted labels there."""
    mean, sd, limit = (along_depth(null.sel(null=one)) for one in ("mean", "sd", "critical"))
    return mean["depth"].values, *chance_ends(mean.values, sd.values, limit.values)


def _heights(panel: Panel) -> NDArray[np.float64]:
    """Return all values that a panel draws, ends of bands and references included."""
    curves = [
        values
        for line in panel.lines
        for values in (line.y, line.low, line.high, line.wide_low, line.wide_high)
        if values is not None
    ]
    ribbon = () if panel.chance is None else panel.chance[1:]
    return np.concatenate([*map(np.ravel, (*curves, *ribbon)), [one.value for one in panel.references]])


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


def bands(x: ArrayLike, low: ArrayLike, high: ArrayLike, colour: str, opacity: float) -> Iterator[go.Scatter]:
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


def _traces(line: Line, labels: Mapping[float, str], x_title: str) -> list[go.Scatter]:
    """Return the bands of a line, and the line."""
    areas = [
        area.update(name=name, legendgroup=line.name, showlegend=False)
        for low, high, opacity, name in (
            (line.wide_low, line.wide_high, PALE, BAND),
            (line.low, line.high, DARK, line.band),
        )
        if low is not None and high is not None
        for area in bands(line.x, low, high, line.colour, opacity)
    ]
    x = np.asarray(line.x).tolist()
    prefix = f"{LAYER} " if x_title == LAYER else ""
    of_bands = hover_texts(line.low, line.high, line.band), hover_texts(line.wide_low, line.wide_high, BAND)
    texts = [one for one in of_bands if one]
    symbol: Any = symbol_of(line.colour)
    if line.passed is not None:
        symbol = [symbol if passed else f"{symbol}-open" for passed in np.asarray(line.passed)]
    curve = go.Scatter(
        x=x,
        y=np.asarray(line.y).tolist(),
        name=line.name,
        legendgroup=line.name,
        mode="lines+markers" if line.markers else "lines",
        marker={"size": 4, "symbol": symbol} if line.passed is None else {"size": 6, "symbol": symbol},
        line={"color": line.colour, "width": 2 if line.markers and line.dash == "solid" else 1.4, "dash": line.dash},
        customdata=[labels.get(point, f"{prefix}{point:g}") for point in x],
        text=["".join(parts) for parts in zip(*texts, strict=True)] or None,
        hovertemplate=hover_template(line.name, line.n, has_band=bool(texts)),
    )
    return [*areas, curve]


def coinciding_ratio(one: NDArray[np.float64], other: NDArray[np.float64]) -> NDArray[np.float64] | None:
    """Return the ratio of two positive curves that would coincide on a logarithmic axis; None if they would not.

    Lines coincide that are nowhere farther apart than a tenth of the height of both.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.where((positive := np.stack([one, other])) > 0, np.log10(positive), np.nan)
    known = logs[:, np.isfinite(logs).all(axis=0)]
    if not known.size or np.abs(known[0] - known[1]).max() >= _COINCIDE * np.ptp(known):
        return None
    return np.asarray(10 ** (logs[0] - logs[1]))


def shown_sites(curves: xr.Dataset) -> list[str]:
    """Return the sites that a figure shows first: resid_pre and resid_mid if measured, or else all sites."""
    sites: list[str] = curves["site"].values.tolist()
    return [site for site in sites if site in HALF_BLOCKS] or sites
