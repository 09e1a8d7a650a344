"""Axes on which prompt sets that measure an attention sink do not hide the curves of the other sets."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import NDArray

from theodolite.drawing.switches import kinds_of, set_axis

_LONGEST = 2.0  # times the range of the other sets; a shorter axis shows all sets
_ROOM = 0.06  # of the range, above and below the curves


def limit_axes(figure: go.Figure, sinks: Mapping[str, str]) -> None:
    """Choose the range of each vertical axis from the other sets, if sinks would make it more than twice as long.

    A text in the panel names the sets that lie outside the axis, wholly or in part. An axis with sinks only is not
    changed.

    Args:
        figure: a figure whose traces are named by their set, such as `nouns, pre`.
        sinks: label of each set whose position is the first token of most prompts, by its name.
    """
    for axis in list(figure.select_yaxes()):
        name = axis.plotly_name
        traces = list(figure.select_traces({"yaxis": f"y{name.removeprefix('yaxis')}"}))
        others = [trace for trace in traces if _set_of(trace) not in sinks]
        own = {one: _values([trace for trace in traces if _set_of(trace) == one]) for one in sinks}
        own = {one: values for one, values in own.items() if len(values)}
        if not own or not any("markers" in (trace.mode or "") for trace in others):
            continue
        kinds = sorted(kinds_of(figure, name))
        ranges = {one: _range(_values(others), np.concatenate(list(own.values())), one) for one in kinds}
        if not any(ranges.values()):
            continue
        set_axis(figure, name, {one: {"range": limits} for one, limits in ranges.items()})
        outside = [
            sinks[one] for one, values in own.items() if any(_leaves(values, ranges[kind], kind) for kind in ranges)
        ]
        only = " (logarithmic axis)" if not ranges.get("linear", True) else ""
        only = " (linear axis)" if not ranges.get("log", True) else only
        figure.add_annotation(
            text=f"outside the axis, wholly or in part{only}: {', '.join(outside)}",
            xref=f"{axis.anchor} domain",
            yref=f"{name.replace('axis', '')} domain",
            **{"x": 1, "y": 1, "xanchor": "right", "yanchor": "top", "showarrow": False, "font": {"size": 11}},
        )


def _leaves(values: NDArray[np.float64], shown: list[float] | None, kind: str) -> bool:
    """Return whether some values lie outside the range of an axis; None shows all of them."""
    if shown is None:
        return False
    drawn = np.log10(values[values > 0]) if kind == "log" else values[np.isfinite(values)]
    return bool(((drawn < shown[0]) | (drawn > shown[1])).any())


def _set_of(trace: Any) -> str:
    return str(trace.legendgroup or trace.name or "").partition(",")[0]


def _values(traces: list[Any]) -> NDArray[np.float64]:
    return np.concatenate([np.empty(0), *(np.asarray(trace.y, dtype=np.float64) for trace in traces)])


def _range(others: NDArray[np.float64], sinks: NDArray[np.float64], kind: str) -> list[float] | None:
    """Return the range of the other sets on a linear or logarithmic axis; None if an axis can show all sets."""
    if kind == "log":
        others, sinks = (np.log10(values[values > 0]) for values in (others, sinks))
    others, sinks = (values[np.isfinite(values)] for values in (others, sinks))
    if not len(others) or not len(sinks) or others.min() == others.max():
        return None
    low, high = float(others.min()), float(others.max())
    whole = max(high, float(sinks.max())) - min(low, float(sinks.min()))
    room = _ROOM * (high - low)
    return [low - room, high + room] if whole > _LONGEST * (high - low) else None
