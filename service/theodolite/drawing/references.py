"""Lines of what a curve is compared with: chance and thresholds, each with its label."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
from numpy.typing import ArrayLike, NDArray

from theodolite.drawing.style import PLAIN

_LABEL_WIDTH, _LABEL_HEIGHT = 0.35, 0.1  # shares of a panel


@dataclass(frozen=True)
class Reference:
    """A value that curves are compared with, drawn as a labelled line: chance or a threshold."""

    value: float
    label: str


def reference_lines(
    references: Sequence[Reference], curves: Sequence[tuple[ArrayLike, ArrayLike]], legend: str = "legend"
) -> list[go.Scatter]:
    """Return a thin line for each reference, as long as the curves, (x, y).

    The label of a line is above or below its right end if no curve is there, or else in the legend.
    """
    points = [np.stack([np.asarray(x, np.float64), np.asarray(y, np.float64)]) for x, y in curves]
    drawn = np.concatenate(points, axis=1) if points else np.empty((2, 0))
    drawn = drawn[:, np.isfinite(drawn).all(axis=0)]
    if not drawn.size:
        return []
    heights = [*drawn[1].tolist(), *(reference.value for reference in references)]
    return [_line(reference, drawn, (min(heights), max(heights)), legend) for reference in references]


def _line(reference: Reference, drawn: NDArray[np.float64], limits: tuple[float, float], legend: str) -> go.Scatter:
    side = _free_side(reference.value, drawn, limits)
    label = {"mode": "lines+text", "text": ["", reference.label], "textposition": f"{side} left"} if side else {}
    return go.Scatter(
        x=[float(drawn[0].min()), float(drawn[0].max())],
        y=[reference.value] * 2,
        name=reference.label,
        line={"color": PLAIN, "width": 1.2, "dash": "dash"},
        hoverinfo="skip",
        legend=legend,
        legendgroup=reference.label,
        showlegend=not side,
        visible=True,
        **({"mode": "lines"} | label),
        textfont={"size": 11},
    )


def _free_side(value: float, drawn: NDArray[np.float64], limits: tuple[float, float]) -> str:
    """Return the side of the line, `top` or `bottom`, where its label covers no curve; empty if there is none."""
    x, y = drawn
    low, high = limits
    height = _LABEL_HEIGHT * (high - low)
    near = y[x >= x.max() - _LABEL_WIDTH * (x.max() - x.min())]
    for side, start, end in (("top", value, value + height), ("bottom", value - height, value)):
        if start >= low and end <= high and not ((near >= start) & (near <= end)).any():
            return side
    return ""
