"""Names at the right ends of lines, in place of a legend."""

import textwrap
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from theodolite.drawing.style import PLAIN
from theodolite.drawing.switches import kinds_of, range_of, set_axis

_WIDTH = 20  # characters of a row
_ROW, _CHARACTER, _SIZE = 13, 6.2, 11  # pixels: height of a row, width of a character, size of the font
_ROOM = 0.05  # of the range of a vertical axis, above and below what it shows
_DASHES = {"solid": "", "dot": "┈ ", "dash": "╌ "}  # the dash of the line, for lines of one colour
_OTHER_DASH = "- "


def name_lines(figure: go.Figure) -> go.Figure:
    """Return the figure with the name of each line at its right end, in its colour, and without a legend.

    Names that would cover each other are moved apart, in the order of the lines. The range of each vertical axis is
    fixed, so that a name stays beside its line; a switch of the axis moves the names too. A figure without named lines
    is not changed.
    """
    widest = 0
    for axis in list(figure.select_yaxes()):
        traces = list(figure.select_traces({"yaxis": f"y{axis.plotly_name.removeprefix('yaxis')}"}))
        names = [_Name(*one) for one in _names_once(list(filter(_is_named, traces))).items()]
        if not names:
            continue
        widest = max(widest, *(len(row) for one in names for row in one.rows))
        _name_axis(figure, axis.plotly_name, traces, names)
    if widest:
        figure.update_layout(showlegend=False, margin={"r": round(_CHARACTER * widest) + 14})
    return figure


def spread(wanted: ArrayLike, heights: ArrayLike) -> NDArray[np.float64]:
    """Return ascending positions from 0 to 1, as near as possible to those wanted (least squares), without overlap.

    Positions that do not fit stand around the middle.

    Args:
        wanted: ascending positions of the centres.
        heights: heights of what stands there.
    """
    half = np.asarray(heights, dtype=np.float64) / 2
    offsets = np.concatenate([[0.0], np.cumsum(half[1:] + half[:-1])])
    blocks: list[tuple[float, int]] = []  # of positions that touch: their mean without offsets, and their number
    for value in np.asarray(wanted, dtype=np.float64) - offsets:
        mean, size = float(value), 1
        while blocks and blocks[-1][0] >= mean:
            before, count = blocks.pop()
            mean, size = (mean * size + before * count) / (size + count), size + count
        blocks.append((mean, size))
    means, sizes = zip(*blocks, strict=True)
    low, high = half[0], 1 - half[-1] - offsets[-1]
    low, high = (low, high) if low <= high else ((low + high) / 2,) * 2
    return np.asarray(np.clip(np.repeat(means, sizes), low, high) + offsets)


def _names_once(traces: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the lines of each name. Dashed lines whose names differ in the first part alone have the rest as name.

    So `harmful, fitted Gaussian` and `harmless, fitted Gaussian` are `fitted Gaussian`; the colours say which is which.
    """
    dashed = [one for one in traces if one.line.dash not in (None, "solid") and ", " in one.name]
    parts = Counter((one.name.partition(", ")[2], one.line.dash) for one in dashed)
    named: dict[str, list[Any]] = {}
    for one in traces:
        rest = one.name.partition(", ")[2]
        named.setdefault(rest if parts[rest, one.line.dash] > 1 else one.name, []).append(one)
    return named


class _Name:
    """A name as rows of text, and the values of its lines."""

    def __init__(self, name: str, traces: Sequence[Any]) -> None:
        dash = _DASHES.get(traces[0].line.dash or "solid", _OTHER_DASH)
        self.rows = textwrap.wrap(f"{dash}{name}", _WIDTH, break_long_words=False)
        colours = {trace.line.color for trace in traces}
        self.colour = colours.pop() if len(colours) == 1 else PLAIN
        self.values = [np.asarray(trace.y, dtype=np.float64) for trace in traces]

    def end(self, kind: str) -> float:
        """Return where the lines end on an axis of this kind, on average; NaN if they have no point there."""
        shown = [_scaled(values, kind) for values in self.values]
        known = [one[np.isfinite(one)][-1] for one in shown if np.isfinite(one).any()]
        return float(np.mean(known)) if known else np.nan


def _is_named(trace: Any) -> bool:
    is_line = trace.type == "scatter" and "lines" in (trace.mode or "") and not trace.fill
    return bool(is_line and trace.name and trace.showlegend is not False and trace.visible in (None, True))


def _name_axis(figure: go.Figure, axis: str, traces: Sequence[Any], names: Sequence[_Name]) -> None:
    """Add the names of the lines of one axis, and fix the range of the axis in each state of its switch."""
    values = np.concatenate([np.asarray(trace.y, dtype=np.float64) for trace in traces])
    layout, shown = figure.layout, figure.layout[axis]
    first = len(layout.annotations)
    ranges = {kind: range_of(figure, axis, kind) or _range(values, kind) for kind in kinds_of(figure, axis)}
    share = shown.domain[1] - shown.domain[0] if shown.domain else 1.0
    pixels = share * (layout.height - layout.margin.t - layout.margin.b)
    placed = {kind: _annotations(names, ends, kind, pixels, axis) for kind, ends in ranges.items()}
    layout.annotations = [*layout.annotations, *placed[shown.type or "linear"]]
    moved = {kind: {"annotations": dict(enumerate(rows, first))} for kind, rows in placed.items()}
    # Names would stay where they are if the axis were dragged.
    fixed = {kind: {"range": ends, "autorange": ends is None, "fixedrange": True} for kind, ends in ranges.items()}
    set_axis(figure, axis, fixed, moved)


def _range(values: NDArray[np.float64], kind: str) -> list[float] | None:
    """Return the range of the values of an axis, with some room; None without values."""
    shown = _scaled(values, kind)
    shown = shown[np.isfinite(shown)]
    if not len(shown):
        return None
    low, high = float(shown.min()), float(shown.max())
    room = _ROOM * ((high - low) or abs(low) or 1.0)
    return [low - room, high + room]


def _annotations(
    names: Sequence[_Name], ends: Sequence[float] | None, kind: str, pixels: float, axis: str
) -> list[dict[str, Any]]:
    """Return the names beside the ends of their lines; those of lines without values on this axis are empty."""
    low, high = ends or (0.0, 1.0)
    wanted = np.array([(one.end(kind) - low) / (high - low) for one in names])
    order = [int(index) for index in np.argsort(wanted, kind="stable") if np.isfinite(wanted[index])]
    heights = [_ROW * len(names[index].rows) / pixels for index in order]
    at = np.full(len(names), np.nan)
    if order:
        at[order] = spread(np.clip(wanted[order], 0, 1), heights)
    return [
        {
            "text": "<br>".join(one.rows) if np.isfinite(place) else "",
            "x": 1,
            "xref": "paper",
            "xanchor": "left",
            "xshift": 6,
            "y": float(place) if np.isfinite(place) else 0.0,
            "yref": f"{axis.replace('axis', '')} domain",
            "yanchor": "middle",
            "align": "left",
            "showarrow": False,
            "font": {"size": _SIZE, "color": one.colour},
        }
        for one, place in zip(names, at, strict=True)
    ]


def _scaled(values: NDArray[np.float64], kind: str) -> NDArray[np.float64]:
    if kind != "log":
        return values
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(values > 0, np.log10(values), np.nan)
