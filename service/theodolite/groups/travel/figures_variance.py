"""The variance of the stream after each block, divided into what entered and what the steps add."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from theodolite.drawing.panels import prompts_text
from theodolite.drawing.style import ATTENTION, BLOCK, MLP, PLAIN, bare_layout, clear
from theodolite.spec_parts import Label

_PANEL, _MARGINS, _GAP = 220, 130, 30  # pixels

_STEPS = {
    "attention": ("variance of attention's step", "twice its covariance with the stream", ATTENTION),
    "mlp": ("variance of the MLP's step", "twice the MLP's covariance with the stream", MLP),
    "block": ("variance of the block's step", "twice its covariance with the stream", BLOCK),
}
"""Titles of the variance and the covariance of each step, and its colour."""


def budget_figure(travel: xr.Dataset, position: Label, labels: Mapping[str, str]) -> go.Figure:
    """Return the parts of the variance after each block as stacked bars, over the variance after the block.

    The parts of a block add up to 1; those below zero reduce the variance. Each set has a panel.

    Args:
        travel: the results.
        position: token position.
        labels: label of each set, from top to bottom.
    """
    selected, height = travel.sel(position=position), _PANEL * len(labels) + _MARGINS
    figure = make_subplots(rows=len(labels), cols=1, shared_xaxes=True, vertical_spacing=_GAP / height)
    for row, (set_name, label) in enumerate(labels.items(), start=1):
        values = selected.sel(set=set_name)
        n = prompts_text(values["n_samples"])
        after = values["variance"].sel(point="post")
        whole = after.where(after > 0)
        for title, part, colour in _parts(values):
            bar = go.Bar(
                x=values["layer"].values.tolist(),
                y=(part / whole).values.tolist(),
                name=title,
                legendgroup=title,
                showlegend=row == 1,
                marker={"color": colour, "line_width": 0},
                hovertemplate=f"layer %{{x}}: %{{y:.3f}}, {n}<extra>{title}</extra>",
            )
            figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(title="share, " + label.replace(" (", "<br>("), row=row, col=1)
    figure.update_xaxes(title="layer", row=len(labels), col=1)
    figure.update_layout(bare_layout(height), barmode="relative", bargap=0.15, hovermode="x")
    figure.update_layout(margin_t=60, legend={"orientation": "h", "x": 0, "y": 1, "yanchor": "bottom"})
    return figure


def _parts(values: xr.Dataset) -> Iterator[tuple[str, xr.DataArray, str]]:
    """Yield the title, the values and the colour of each part of the variance after each block."""
    yield "variance of the input", values["variance"].sel(point="pre"), PLAIN
    has_middle = np.isfinite(values["variance"].sel(point="mid")).any()
    for sublayer in ("attention", "mlp") if has_middle else ("block",):
        of_step, with_stream, colour = _STEPS[sublayer]
        step_variance, twice_covariance = values["variance_change"].sel(sublayer=sublayer).transpose("term", ...)
        yield of_step, step_variance, colour
        yield with_stream, twice_covariance, clear(colour, 0.45)
