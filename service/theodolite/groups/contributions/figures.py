"""Shares of the separation that attention and MLP of each layer write."""

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, panels_figure, prompts_text
from theodolite.drawing.style import ATTENTION, MLP, THIRD


def contributions_figure(contributions: xr.Dataset) -> go.Figure:
    """Return the share of the distance of the means that attention and MLP of each layer write, and its sums.

    In a hybrid there are no sums, because other mixers write shares too.

    Args:
        contributions: the results at one contrast and position.
    """
    layers = contributions["layer"]
    at = contributions.sel(null="mean")
    attention, permuted = (at[name].sum("head", skipna=False) for name in ("head_share", "head_share_null"))
    n = prompts_text(*contributions["n_used"].values)
    lines = []
    for name, share, null, colour in (
        ("attention", attention, permuted, ATTENTION),
        ("MLP", at["mlp_share"], at["mlp_share_null"], MLP),
    ):
        lines.append(Line(name, layers, share, colour, n=n))
        lines.append(Line(f"{name}, permuted labels", layers, null, colour, "dash", markers=False, n=n))
    whole = attention + at["mlp_share"]
    panels = [Panel("share of the distance", lines, [Reference(0, "no contribution: 0")])]
    if np.isfinite(whole).all():
        sums = float(contributions["embedding_share"]) + np.cumsum(whole.values)
        ends = [Line("sum up to this layer", layers, sums, THIRD, n=n)]
        panels.append(Panel("sum of the shares", ends, [Reference(1, "whole distance: 1")]))
    return panels_figure(panels)
