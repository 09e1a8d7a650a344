"""Growth along the residual stream, with its fitted laws."""

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, panels_figure
from theodolite.figures.style import COSINE, DASHES, NEGATIVE, PLAIN, POSITIVE, short_site
from theodolite.query.curves import along_depth
from theodolite.sites import HALF_BLOCKS, Site

_LAWS = {"log_linear": ("exponential", NEGATIVE), "power_law": ("power law", POSITIVE)}
_MEASURED = {Site.RESID_PRE: COSINE, Site.RESID_MID: PLAIN}
_STEPS = 8  # points of a fitted line between two depths of a site: a power law bends near its origin


def growth_figure(growth: pd.DataFrame, curves: Mapping[str, xr.DataArray], set_name: str, position: int) -> go.Figure:
    """Return the growth of each quantity along the residual stream, with both fitted laws at each site.

    The legend contains the origin of each power law, in blocks.

    Args:
        growth: the table of fits.
        curves: values of each quantity, (set, site, position, layer).
        set_name: prompt set.
        position: token position.
    """
    fits = growth[(growth["set"] == set_name) & (growth["position"] == position)]
    panels = []
    for quantity, values in curves.items():
        chosen = [site for site in HALF_BLOCKS if site in values["site"].values.tolist()]
        by_site = values.sel(set=set_name, position=position, site=chosen)
        lines = [line for site in chosen for line in _lines(fits[fits["quantity"] == quantity], by_site, site)]
        panels.append(Panel(quantity.replace("_", " "), lines, logarithmic=True))
    return panels_figure(panels, **depth_axis(along_depth(by_site)))


def _lines(fits: pd.DataFrame, by_site: xr.DataArray, site: Site) -> Iterator[Line]:
    """Yield the measured curve of one site, and the fits to its positive values."""
    curve = along_depth(by_site.sel(site=[site]))
    positive = curve.where(curve > 0)
    yield Line(f"measured, {short_site(site)}", curve["depth"], positive, _MEASURED[site])
    fitted = positive.dropna("depth")["depth"].values
    for fit in fits[fits["site"] == site].to_dict("records"):
        law, colour = _LAWS[str(fit["law"])]
        depths = np.linspace(fitted[0], fitted[-1], _STEPS * (len(fitted) - 1) + 1)
        origin = _origin(fit)
        axis = depths / 2 if fit["law"] == "log_linear" else np.log(np.maximum(depths / 2 - origin, 0))
        name = f"{law}, {short_site(site)}"
        if fit["law"] == "power_law":
            name += f", origin {origin:.1f}"
        yield Line(name, depths, np.exp(fit["intercept"] + fit["slope"] * axis), colour, DASHES[site], markers=False)


def _origin(fit: Mapping[str, Any]) -> float:
    """Return the origin of a power law; older versions fitted power laws with the origin 0 and did not store it."""
    return float(fit.get("origin", 0.0))
