"""How well the direction of a contrast would repeat with other prompts."""

from collections.abc import Sequence

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, panels_figure
from theodolite.figures.style import COSINE, DASHES, PLAIN, POSITIVE, short_site
from theodolite.groups.directions import RELIABLE
from theodolite.query.curves import along_depth
from theodolite.sites import Site


def reliability_figure(directions: xr.Dataset, contrast: str, position: int, sites: Sequence[str]) -> go.Figure:
    """Return the reliability of a contrast's direction and the noise share of the means' distance by depth.

    Args:
        directions: the result group.
        contrast: name of the contrast.
        position: token position.
        sites: sites to draw.
    """
    selected = directions.sel(contrast=contrast, position=position, site=list(sites))
    lines = []
    for statistic, colour in (("reliability", COSINE), ("noise_share", POSITIVE)):
        for site in sites:
            curve, name = along_depth(selected[statistic].sel(site=[site])), statistic.replace("_", " ")
            lines.append(Line(f"{name}, {short_site(site)}", curve["depth"], curve, colour, DASHES[Site(site)]))
    axis = along_depth(selected["reliability"])
    depths = axis["depth"].values[[0, -1]]
    lines.append(Line(f"least reliability, {RELIABLE}", depths, [RELIABLE] * 2, PLAIN, "dot", markers=False))
    return panels_figure([Panel("cosine, share", lines)], **depth_axis(axis))
