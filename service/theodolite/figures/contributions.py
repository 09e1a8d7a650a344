"""Shares of the separation that attention and MLP of each layer write."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure, prompts_text
from theodolite.figures.references import Reference
from theodolite.figures.style import ATTENTION, MLP, THIRD


def contributions_figure(contributions: xr.Dataset) -> go.Figure:
    """Return the share of the distance of the means that attention and MLP of each layer write, and its sums.

    In a hybrid there are no sums, because other mixers write shares too.

    Args:
        contributions: the result group at one contrast and position.
    """
    layers = contributions["layer"]
    branches = {"attention": ("head_share", ATTENTION), "MLP": ("mlp_share", MLP)}
    n = prompts_text(contributions["n_positive"], contributions["n_negative"])
    lines = []
    for name, (share, colour) in branches.items():
        for suffix, text, dash in (("", "", "solid"), ("_permuted", ", permuted labels", "dash")):
            values = contributions[f"{share}{suffix}"]
            values = values.sum("head", skipna=False) if "head" in values.dims else values
            lines.append(Line(f"{name}{text}", layers, values, colour, dash, markers=not suffix, n=n))
    whole = contributions["head_share"].sum("head", skipna=False) + contributions["mlp_share"]
    panels = [Panel("share of the distance", lines, [Reference(0, "no contribution: 0")])]
    if np.isfinite(whole).all():
        sums = float(contributions["embedding_share"]) + np.cumsum(whole.values)
        ends = [Line("sum up to this layer", layers, sums, THIRD, n=n)]
        panels.append(Panel("sum of the shares", ends, [Reference(1, "whole distance: 1")]))
    return panels_figure(panels, x_title="layer", ticks={})
