"""The variance of the stream after each block, divided into what entered and what the steps add."""

from collections.abc import Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from theodolite.figures.panels import legend_above, prompts_text
from theodolite.figures.style import ATTENTION, BLOCK, MLP, PLAIN, bare_layout, clear

_PANEL, _MARGINS, _GAP = 220, 130, 30  # pixels

_PARTS = {
    "variance_pre": ("variance of the input", PLAIN),
    "variance_step_attn": ("variance of attention's step", ATTENTION),
    "twice_covariance_attn": ("twice its covariance with the stream", clear(ATTENTION, 0.45)),
    "variance_step_mlp": ("variance of the MLP's step", MLP),
    "twice_covariance_mlp": ("twice the MLP's covariance with the stream", clear(MLP, 0.45)),
}
_PARTS_OF_BLOCK = {
    "variance_pre": ("variance of the input", PLAIN),
    "variance_step_block": ("variance of the block's step", BLOCK),
    "twice_covariance_block": ("twice its covariance with the stream", clear(BLOCK, 0.45)),
}


def budget_figure(travel: xr.Dataset, position: int, labels: Mapping[str, str]) -> go.Figure:
    """Return the parts of the variance after each block as stacked bars, over the variance after the block.

    The parts of a block add up to 1; those below zero reduce the variance. Each set has a panel.

    Args:
        travel: the result group.
        position: token position.
        labels: label of each set, from top to bottom.
    """
    selected, height = travel.sel(position=position), _PANEL * len(labels) + _MARGINS
    figure = make_subplots(rows=len(labels), cols=1, shared_xaxes=True, vertical_spacing=_GAP / height)
    for row, (set_name, label) in enumerate(labels.items(), start=1):
        values = selected.sel(set=set_name)
        parts = _PARTS if np.isfinite(values["variance_mid"]).any() else _PARTS_OF_BLOCK
        n = prompts_text(values["n_samples"])
        whole = values["variance_post"].where(values["variance_post"] > 0)
        for name, (title, colour) in parts.items():
            bar = go.Bar(
                x=values["layer"].values.tolist(),
                y=(values[name] / whole).values.tolist(),
                name=title,
                legendgroup=title,
                showlegend=row == 1,
                marker={"color": colour, "line_width": 0},
                hovertemplate=f"layer %{{x}}: %{{y:.3f}}, {n}<extra>{title}</extra>",
            )
            figure.add_trace(bar, row=row, col=1)
        figure.update_yaxes(title="share, " + label.replace(" (", "<br>("), row=row, col=1)
    figure.update_xaxes(title="layer", row=len(labels), col=1)
    figure.update_layout(bare_layout(height), barmode="relative", bargap=0.15, hovermode="x", legend=legend_above(1))
    return figure
