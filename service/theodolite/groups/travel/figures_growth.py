"""Growth along the residual stream, with its fitted laws."""

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, depth_axis, panels_figure
from theodolite.drawing.style import DASHES, MAIN, SECOND, short_site
from theodolite.query.curves import along_depth
from theodolite.sites import HALF_BLOCKS, Site
from theodolite.spec_parts import Label

_LAWS = {"log_linear": ("exponential", MAIN), "power_law": ("power law", SECOND)}
_STEPS = 8  # points of a fitted line between two depths of a site: a power law bends near its origin


def growth_figure(
    growth: pd.DataFrame, curves: Mapping[str, xr.DataArray], set_name: str, position: Label, colour: str
) -> go.Figure:
    """Return the growth of each quantity along the residual stream, with both fitted laws at each site.

    The title of a panel contains the origins of the power laws, in blocks.

    Args:
        growth: the table of fits.
        curves: values of each quantity, (set, site, position, layer).
        set_name: prompt set.
        position: token position.
        colour: colour of the set, for the measured values.
    """
    fits = growth[(growth["set"] == set_name) & (growth["position"] == position)]
    panels = []
    for quantity, values in curves.items():
        sites = [site for site in HALF_BLOCKS if site in values["site"].values.tolist()]
        by_site = values.sel(set=set_name, position=position, site=sites)
        fitted = fits[fits["quantity"] == quantity]
        lines = [line for site in sites for line in _lines(fitted[fitted["site"] == site], by_site, site, colour)]
        panels.append(Panel(quantity.replace("_", " ") + _origins(fitted), lines, positive=True, logarithmic=True))
    return panels_figure(panels, **depth_axis(along_depth(by_site)))


def _lines(fits: pd.DataFrame, by_site: xr.DataArray, site: Site, measured: str) -> Iterator[Line]:
    """Yield the measured curve of one site, and the fits to its positive values."""
    curve = along_depth(by_site.sel(site=[site]))
    positive = curve.where(curve > 0)
    yield Line(f"measured, {short_site(site)}", curve["depth"], positive, measured, DASHES[site])
    known = positive.dropna("depth")["depth"].values
    for fit in fits.to_dict("records"):
        law, colour = _LAWS[str(fit["law"])]
        depths = np.linspace(known[0], known[-1], _STEPS * (len(known) - 1) + 1)
        axis = depths / 2 if fit["law"] == "log_linear" else np.log(depths / 2 - fit["origin"])
        fitted = np.exp(fit["intercept"] + fit["slope"] * axis)
        yield Line(f"{law}, {short_site(site)}", depths, fitted, colour, DASHES[site], markers=False)


def _origins(fits: pd.DataFrame) -> str:
    """Return a second line of a title, such as `origin pre -2.5, mid 0.0`; nothing without a power law."""
    powers = fits[(fits["law"] == "power_law") & fits["site"].isin(HALF_BLOCKS)].to_dict("records")
    texts = [f"{short_site(fit['site'])} {fit['origin']:.1f}" for fit in powers if np.isfinite(fit["origin"])]
    return f"<br><sub>origin {', '.join(texts)}</sub>" if texts else ""
