"""Steps of attention and MLP by layer, and growth along the residual stream with its fitted laws."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, panels_figure
from theodolite.figures.style import COSINE, NEGATIVE, POSITIVE
from theodolite.query.curves import along_depth

_LAWS = {"log_linear": ("exponential", NEGATIVE, "dash"), "power_law": ("power law", POSITIVE, "dot")}


def travel_figure(travel: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Return the norms of the steps of attention and MLP, and the cosines of steps with the next step and the stream.

    Args:
        travel: the result group.
        position: token position.
        colours: colour of each set.
    """
    selected = travel.sel(position=position)
    layers = selected["layer"].values.tolist()

    def lines(name: str, suffix: str, dash: str) -> Iterator[Line]:
        for set_name, colour in colours.items():
            values = selected[name].sel(set=set_name).values
            if np.isfinite(values).any():
                yield Line(f"{set_name}{suffix}", layers, values.tolist(), colour, dash)

    norms = [*lines("step_norm_attn", ", attention", "solid"), *lines("step_norm_mlp", ", MLP", "dot")]
    norms = norms or list(lines("step_norm_block", ", block", "solid"))
    panels = [
        Panel("norm of the step", norms, logarithmic=True),
        Panel(
            "cosine",
            [*lines("step_cosine_next", ", next step", "solid"), *lines("step_cosine_stream", ", stream", "dot")],
        ),
    ]
    return panels_figure(panels, x_title="layer", ticks={})


def growth_figure(growth: pd.DataFrame, curves: Mapping[str, xr.DataArray], set_name: str, position: int) -> go.Figure:
    """Return the growth of each quantity along the residual stream, with both fitted laws.

    Args:
        growth: the table of fits.
        curves: values of each quantity, (set, site, position, layer).
        set_name: prompt set.
        position: token position.
    """
    panels, depths = [], [0]
    for quantity, values in curves.items():
        site = str(values["site"].values[0])
        curve = along_depth(values.sel(set=set_name, position=position, site=[site]))
        depths = curve["depth"].values.tolist()
        lines = [Line("measured", depths, _positive(curve.values), COSINE)]
        fits = growth[(growth["quantity"] == quantity) & (growth["set"] == set_name) & (growth["position"] == position)]
        for fit in fits[fits["site"] == site].to_dict("records"):
            name, colour, dash = _LAWS[str(fit["law"])]
            blocks = np.asarray(depths) / 2
            axis = blocks if fit["law"] == "log_linear" else np.log(np.where(blocks > 0, blocks, np.nan))
            fitted = np.where(blocks > 0, np.exp(fit["intercept"] + fit["slope"] * axis), np.nan)
            lines.append(Line(name, depths, fitted.tolist(), colour, dash, markers=False))
        panels.append(Panel(f"{quantity.replace('_', ' ')}, {site.removeprefix('resid_')}", lines, logarithmic=True))
    return panels_figure(panels, **depth_axis(depths))


def _positive(values: Any) -> list[float]:
    return [float(value) if value > 0 else float("nan") for value in values]
