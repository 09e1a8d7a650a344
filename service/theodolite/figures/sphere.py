"""Norm layers: the norms of their inputs, and the ellipsoids on which their outputs lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure
from theodolite.figures.style import COSINE, NEGATIVE, PLAIN, POSITIVE, logarithmic_axis


def sphere_figure(sphere: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Return the input of each norm layer: its norm, the spread of the norm, and the share of variance in length.

    Args:
        sphere: the result group.
        position: token position.
        colours: colour of each set.
    """
    selected = sphere.sel(position=position)
    labels = [str(label) for label in selected["norm"].values]
    indices = list(range(len(labels)))

    def line(name: str, set_name: str, ends: tuple[str, str] | None = None) -> Line:
        values = selected.sel(set=set_name)
        low, high = (values[end].values.tolist() for end in ends) if ends else (None, None)
        return Line(set_name, indices, values[name].values.tolist(), colours[set_name], low=low, high=high)

    gaussian = selected["relative_spread_gaussian"].isel(set=0).values.tolist()
    ends = ("norm_before_min", "norm_before_max")
    panels = [
        Panel("norm, minimum to maximum", [line("norm_before_mean", name, ends) for name in colours], logarithmic=True),
        Panel(
            "relative spread",
            [
                *(line("relative_spread", name) for name in colours),
                Line("Gaussian", indices, gaussian, PLAIN, "dash", markers=False),
            ],
        ),
        Panel("share of variance in length", [line("length_variance_share", name) for name in colours]),
    ]
    ticks = _norm_ticks(labels)
    return panels_figure(panels, x_title="norm layer", ticks=ticks, labels=dict(zip(indices, labels, strict=True)))


def _norm_ticks(labels: Sequence[str]) -> dict[str, Any]:
    """Return about eight ticks at norm layers of one kind."""
    starts = [index for index, label in enumerate(labels) if label.endswith(labels[0].partition(".")[2])]
    ticks = starts[:: max(1, round(len(starts) / 8))]
    return {"tickvals": ticks, "ticktext": [labels[index] for index in ticks]}


def axes_figure(sphere: xr.Dataset, norms: Sequence[str]) -> go.Figure:
    """Return the semi-axes of the ellipsoids of some norm layers, and √d|γ| for comparison.

    Args:
        sphere: the result group.
        norms: labels of norm layers.
    """
    ranks = list(range(1, sphere.sizes["d_model"] + 1))
    lines = []
    for label, colour in zip(norms, (COSINE, POSITIVE, NEGATIVE), strict=False):
        norm = sphere.sel(norm=label)
        for name, title, dash in (("semi_axes", "semi-axes", "solid"), ("scale_radii", "√d|γ|", "dot")):
            values = np.where(norm[name].values > 0, norm[name].values, np.nan)
            lines.append(Line(f"{label}, {title}", ranks, values.tolist(), colour, dash, markers=False))
    ticks = logarithmic_axis(ranks)
    return panels_figure(
        [Panel("length", lines, logarithmic=True)], x_title="semi-axis, in descending order of length", ticks=ticks
    )
