"""Brackets over the depths that cannot be told from the depth of an extreme value."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from numpy.typing import ArrayLike

from theodolite.drawing.style import MAIN

_GAP, _TICK = 0.07, 0.03  # shares of the height of the curves
_BEYOND = 0.3  # half-blocks that a bracket reaches over its first and its last depth


def bracket(located: xr.DataArray, curves: ArrayLike, extreme: str = "largest") -> list[go.Scatter]:
    """Return a bracket above all curves for each range of depths that may have the extreme; nothing if it is unknown.

    Args:
        located: 1 at these depths, 0 at others, NaN where there is no value, (depth).
        curves: all values that the panel draws.
        extreme: the extreme, `largest` or `smallest`.
    """
    known = located[np.isfinite(located.values)]
    drawn = np.asarray(curves, dtype=np.float64)
    drawn = drawn[np.isfinite(drawn)]
    chosen = np.flatnonzero(known.values > 0)
    if not len(chosen) or not len(drawn):
        return []
    height = float(np.ptp(drawn)) or 1.0
    level = float(drawn.max()) + _GAP * height
    depths = known["depth"].values.astype(np.float64)
    x: list[float | None] = []
    y: list[float | None] = []
    for run in np.split(chosen, np.flatnonzero(np.diff(chosen) > 1) + 1):
        left, right = depths[run[0]] - _BEYOND, depths[run[-1]] + _BEYOND
        x += [left, left, right, right, None]
        y += [level - _TICK * height, level, level, level - _TICK * height, None]
    name, line = f"may be the {extreme} (95 %)", {"color": MAIN, "width": 1.6}
    return [go.Scatter(x=x, y=y, mode="lines", line=line, name=name, hoverinfo="skip", connectgaps=False)]
