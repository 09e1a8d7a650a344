"""Norm layers: the norms that enter them, and the ellipsoids that their outputs lie on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure
from theodolite.figures.style import COSINE, NEGATIVE, PLAIN, POSITIVE, logarithmic_axis


def sphere_figure(sphere: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Draw what enters each norm layer: its norm, how that spreads beside a Gaussian's, and how much of it is length.

    Args:
        sphere: the result group.
        position: which position.
        colours: by set.
    """
    at = sphere.sel(position=position)
    labels = [str(label) for label in at["norm"].values]
    places = list(range(len(labels)))

    def line(name: str, of_set: str, ends: tuple[str, str] | None = None) -> Line:
        values = at.sel(set=of_set)
        low, high = (values[end].values.tolist() for end in ends) if ends else (None, None)
        return Line(of_set, places, values[name].values.tolist(), colours[of_set], low=low, high=high)

    gaussian = at["relative_spread_gaussian"].isel(set=0).values.tolist()
    ends = ("norm_before_min", "norm_before_max")
    panels = [
        Panel("norm, least to largest", [line("norm_before_mean", name, ends) for name in colours], logarithmic=True),
        Panel(
            "relative spread",
            [
                *(line("relative_spread", name) for name in colours),
                Line("Gaussian", places, gaussian, PLAIN, "dash", markers=False),
            ],
        ),
        Panel("variance in length", [line("length_variance_share", name) for name in colours]),
    ]
    ticks = _norm_ticks(labels)
    return panels_figure(panels, x_title="norm layer", ticks=ticks, labels=dict(zip(places, labels, strict=True)))


def _norm_ticks(labels: Sequence[str]) -> dict[str, Any]:
    """Return some eight ticks, at norms of one kind."""
    starts = [index for index, label in enumerate(labels) if label.endswith(labels[0].partition(".")[2])]
    kept = starts[:: max(1, round(len(starts) / 8))]
    return {"tickvals": kept, "ticktext": [labels[index] for index in kept]}


def axes_figure(sphere: xr.Dataset, norms: Sequence[str]) -> go.Figure:
    """Draw the semi-axes of some norms' ellipsoids beside √d|γ|.

    Args:
        sphere: the result group.
        norms: labels of norm layers.
    """
    places = list(range(1, sphere.sizes["d_model"] + 1))
    lines = []
    for label, colour in zip(norms, (COSINE, POSITIVE, NEGATIVE), strict=False):
        of_norm = sphere.sel(norm=label)
        for name, said, dash in (("semi_axes", "semi-axes", "solid"), ("scale_radii", "√d|γ|", "dot")):
            values = np.where(of_norm[name].values > 0, of_norm[name].values, np.nan)
            lines.append(Line(f"{label}, {said}", places, values.tolist(), colour, dash, markers=False))
    ticks = logarithmic_axis(places)
    return panels_figure([Panel("length", lines, logarithmic=True)], x_title="axis, the longest first", ticks=ticks)
