"""How well the direction of a contrast would repeat with other prompts."""

from collections.abc import Sequence

import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, depth_axis, panels_figure, prompts_text
from theodolite.drawing.references import Reference
from theodolite.drawing.style import DASHES, MAIN, SECOND, short_site
from theodolite.query.curves import along_depth
from theodolite.query.directions import RELIABLE
from theodolite.sites import Site


def reliability_figure(directions: xr.Dataset, contrast: str, position: int, sites: Sequence[str]) -> go.Figure:
    """Return the reliability of a contrast's direction and the noise share of the means' distance by depth.

    Args:
        directions: the results.
        contrast: name of the contrast.
        position: token position.
        sites: sites to draw.
    """
    selected = directions.sel(contrast=contrast, position=position, site=list(sites))
    n = prompts_text(*selected["n_used"].values)
    lines = []
    for statistic, colour in (("reliability", MAIN), ("noise_share", SECOND)):
        for site in sites:
            curve, name = along_depth(selected[statistic].sel(site=[site])), statistic.replace("_", " ")
            lines.append(Line(f"{name}, {short_site(site)}", curve["depth"], curve, colour, DASHES[Site(site)], n=n))
    axis = along_depth(selected["reliability"])
    least = Reference(RELIABLE, f"smallest used reliability: {RELIABLE}")
    return panels_figure([Panel("cosine, share", lines, [least])], **depth_axis(axis))
