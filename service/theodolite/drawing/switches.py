"""Switches of a figure: logarithmic or linear axes, and absolute or relative depth.

A figure stores its switches in the `meta` of its layout. The page and the report draw a checkbox for each switch, and
apply the axes of its state (`api/web/switches.js`).
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike

from theodolite.drawing.style import DEPTH, RELATIVE_DEPTH, RELATIVE_LAYER, logarithmic_axis

LAYER = "layer"
"""The title of an axis that counts blocks."""

_TWO_DECADES = 100
_LINEAR = {"type": "linear", "tickvals": None, "ticktext": None, "dtick": None, "uirevision": "linear"}

Axes = Mapping[str, Mapping[str, Any]]
"""Properties of axes, by the name of the axis in the layout."""


def add_switch(figure: go.Figure, group: str, label: str, *, is_on: bool, on: Axes, off: Axes) -> None:
    """Add a switch to a figure, and apply its state.

    Args:
        figure: the figure; `on` and `off` are properties of its axes.
        group: name of the group of switches; the page shows it before their labels.
        label: label of the switch.
        is_on: the first state.
        on: properties of the axes in the state on.
        off: properties of the same axes in the state off.
    """
    switch = {"group": group, "label": label, "is_on": is_on, "on": on, "off": off}
    figure.update_layout({"meta": {"switches": [*switches_of(figure), switch]}}, overwrite=True)
    figure.update_layout(on if is_on else off)


def switches_of(figure: go.Figure) -> list[dict[str, Any]]:
    """Return the switches of a figure."""
    return list((figure.layout.meta or {}).get("switches", []))


def kinds_of(figure: go.Figure, axis: str) -> set[str]:
    """Return the kinds of a vertical axis, linear and log, that it has now or that a switch gives it."""
    return {figure.layout[axis].type or "linear", *(state["type"] for state in _states(switches_of(figure), axis))}


def range_of(figure: go.Figure, axis: str, kind: str) -> list[float] | None:
    """Return the range of an axis while it is of this kind; None if it follows from the values."""
    if kind == (figure.layout[axis].type or "linear"):
        return None if figure.layout[axis].range is None else list(figure.layout[axis].range)
    return next((state.get("range") for state in _states(switches_of(figure), axis) if state["type"] == kind), None)


def set_axis(
    figure: go.Figure, axis: str, properties: Axes, beside: Mapping[str, Mapping[str, Any]] | None = None
) -> None:
    """Give an axis properties, now and in the states of its switch.

    Args:
        figure: the figure.
        axis: name of the axis in the layout.
        properties: the properties of each kind of the axis.
        beside: for each kind, what else of the layout changes with the axis.
    """
    figure.update_layout({axis: dict(properties[figure.layout[axis].type or "linear"])})
    switches = switches_of(figure)
    for switch in switches:
        for name in ("on", "off"):
            kind = switch[name].get(axis, {}).get("type")
            if kind:
                own = {axis: {**switch[name][axis], **properties[kind]}, **(beside or {}).get(kind, {})}
                switch[name] = {**switch[name], **own}
    if switches:
        figure.update_layout(meta={"switches": switches}, overwrite=True)


def _states(switches: Sequence[Mapping[str, Any]], axis: str) -> list[Mapping[str, Any]]:
    states = [switch[name].get(axis, {}) for switch in switches for name in ("on", "off")]
    return [state for state in states if "type" in state]


def add_logarithmic_switch(
    figure: go.Figure, axis: str, label: str, values: ArrayLike, *, is_on: bool | None = None
) -> None:
    """Add a switch between a logarithmic and a linear axis; by default on if the values span more than two decades.

    Args:
        figure: the figure.
        axis: name of the axis in the layout, such as `yaxis2`.
        label: name of the statistic.
        values: the drawn values; without a positive one the axis stays linear, and there is no switch.
        is_on: the first state; None selects it from the values.
    """
    numbers = np.asarray(values, dtype=np.float64)
    numbers = numbers[np.isfinite(numbers) & (numbers > 0)]
    if not len(numbers):
        return
    is_wide = float(numbers.max()) > _TWO_DECADES * float(numbers.min())
    on = {axis: {"dtick": None, **logarithmic_axis(numbers), "uirevision": "logarithmic"}}
    chosen = is_wide if is_on is None else is_on
    add_switch(figure, "logarithmic", label, is_on=chosen, on=on, off={axis: _LINEAR})


def add_depth_switch(figure: go.Figure, n_layers: int, *, is_on: bool = False) -> go.Figure:
    """Return the figure with a switch between absolute and relative depth, if its axis counts depths or blocks.

    Args:
        figure: a figure whose lower axis is absolute: depths in half-blocks, or blocks.
        n_layers: number of blocks of the model.
        is_on: whether the figure shows relative depth first.
    """
    flat = [trace for trace in figure.data if trace.type in ("scatter", "bar")]
    titled = [axis for axis in figure.select_xaxes() if axis.title.text in (DEPTH, LAYER)]
    if not titled or len(flat) < len(figure.data):
        return figure
    counts_depths = titled[0].title.text == DEPTH
    length, relative = (2 * n_layers, RELATIVE_DEPTH) if counts_depths else (n_layers, RELATIVE_LAYER)
    ticks = {
        "tickvals": [length * tenth / 10 for tenth in range(11)],
        "ticktext": [f"{tenth / 10:g}" for tenth in range(11)],
    }
    on, off = {}, {}
    for axis in figure.select_xaxes():
        name = axis.plotly_name
        on[name], off[name] = dict(ticks), {"tickvals": axis.tickvals, "ticktext": axis.ticktext}
        if axis.title.text:
            on[name]["title"], off[name]["title"] = {"text": relative}, {"text": axis.title.text}
    add_switch(figure, "", "relative depth", is_on=is_on, on=on, off=off)
    return figure
