"""Steps of attention and MLP by layer, and growth along the stream with the laws fitted to it."""

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
    """Draw the steps of attention and MLP, and how steps lie to each other and to the stream, by layer.

    Args:
        travel: the result group.
        position: which position.
        colours: by set.
    """
    at = travel.sel(position=position)
    layers = at["layer"].values.tolist()

    def lines(name: str, said: str, dash: str) -> Iterator[Line]:
        for of_set, colour in colours.items():
            values = at[name].sel(set=of_set).values
            if np.isfinite(values).any():
                yield Line(f"{of_set}{said}", layers, values.tolist(), colour, dash)

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


def growth_figure(growth: pd.DataFrame, curves: Mapping[str, xr.DataArray], of_set: str, position: int) -> go.Figure:
    """Draw what grows along the stream with both fitted laws over it.

    Args:
        growth: the table of fits.
        curves: by quantity, (set, site, position, layer).
        of_set: which set.
        position: which position.
    """
    panels, depths = [], [0]
    for quantity, values in curves.items():
        site = str(values["site"].values[0])
        curve = along_depth(values.sel(set=of_set, position=position, site=[site]))
        depths = curve["depth"].values.tolist()
        lines = [Line("measured", depths, _positive(curve.values), COSINE)]
        at = growth[(growth["quantity"] == quantity) & (growth["set"] == of_set) & (growth["position"] == position)]
        for fit in at[at["site"] == site].to_dict("records"):
            name, colour, dash = _LAWS[str(fit["law"])]
            blocks = np.asarray(depths) / 2
            axis = blocks if fit["law"] == "log_linear" else np.log(np.where(blocks > 0, blocks, np.nan))
            fitted = np.where(blocks > 0, np.exp(fit["intercept"] + fit["slope"] * axis), np.nan)
            lines.append(Line(name, depths, fitted.tolist(), colour, dash, markers=False))
        panels.append(Panel(f"{quantity.replace('_', ' ')}, {site.removeprefix('resid_')}", lines, logarithmic=True))
    return panels_figure(panels, **depth_axis(depths))


def _positive(values: Any) -> list[float]:
    return [float(value) if value > 0 else float("nan") for value in values]
