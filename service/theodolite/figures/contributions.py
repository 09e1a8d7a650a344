"""Shares of the separation that attention and MLP of each layer write."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure
from theodolite.figures.style import NEGATIVE, PLAIN, POSITIVE


def contributions_figure(contributions: xr.Dataset) -> go.Figure:
    """Return the share of the separation that attention and MLP of each layer write, and their sum up to each layer.

    Args:
        contributions: the result group at one contrast and position.
    """
    layers = contributions["layer"]
    branches = {"attention": ("head_share", POSITIVE), "MLP": ("mlp_share", NEGATIVE)}
    lines = []
    for name, (share, colour) in branches.items():
        for suffix, text, dash in (("", "", "solid"), ("_permuted", ", permuted labels", "dash")):
            values = contributions[f"{share}{suffix}"]
            values = values.sum("head", skipna=False) if "head" in values.dims else values
            lines.append(Line(f"{name}{text}", layers, values, colour, dash, markers=not suffix))
    whole = contributions["head_share"].sum("head", skipna=False) + contributions["mlp_share"]
    sums = float(contributions["embedding_share"]) + np.cumsum(whole.values)
    ends = [Line("sum up to this layer", layers, sums, PLAIN)]
    panels = [Panel("share of the separation", lines), Panel("sum of the shares", ends)]
    return panels_figure(panels, x_title="layer", ticks={})
