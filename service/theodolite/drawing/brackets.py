"""Brackets over the depths that cannot be told from the depth of an extreme value."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike

from theodolite.drawing.style import MAIN

_GAP, _TICK, _LABEL = 0.07, 0.025, 0.06  # shares of the height of the curves
_BEYOND = 0.3  # half-blocks that a bracket reaches over its first and its last depth


def bracket(located: xr.DataArray, curves: ArrayLike, *, smallest: bool = False) -> list[go.Scatter]:
    """Return a bracket for each range of depths that may have the extreme value; nothing if it is unknown.

    It lies below curves whose largest value is located, and above those whose smallest value is.

    Args:
        located: 1 at these depths, 0 at others, NaN where there is no value, (depth).
        curves: all values that the panel draws.
        smallest: whether the smallest value is located.
    """
    known = located[np.isfinite(located.values)]
    drawn = np.asarray(curves, dtype=np.float64)
    drawn = drawn[np.isfinite(drawn)]
    chosen = np.flatnonzero(known.values > 0)
    if not len(chosen) or not len(drawn):
        return []
    height = float(np.ptp(drawn)) or 1.0
    side = 1 if smallest else -1
    level = float(drawn.max() if smallest else drawn.min()) + side * _GAP * height
    tip = level - side * _TICK * height
    depths = known["depth"].values.astype(np.float64)
    is_late = depths[chosen[0]] > (depths[0] + depths[-1]) / 2
    # The label is at a point of its own, so that the axis has room for it; of a late bracket it ends with it.
    x: list[float | None] = [depths[chosen[-1]] + _BEYOND if is_late else depths[chosen[0]] - _BEYOND, None]
    y: list[float | None] = [level + side * _LABEL * height, None]
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
        left, right = depths[run[0]] - _BEYOND, depths[run[-1]] + _BEYOND
        x += [left, left, right, right, None]
        y += [tip, level, level, tip, None]
    extreme = "smallest" if smallest else "largest"
    label = f"may be the {extreme} (95 %)"
    return [
        go.Scatter(
            x=x,
            y=y,
            mode="lines+text",
            text=[label],
            textposition="middle left" if is_late else "middle right",
            textfont={"size": 11},
            line={"color": MAIN, "width": 1.6},
            name=label,
            hoverinfo="skip",
            showlegend=False,
            visible=True,
            connectgaps=False,
        )
    ]
