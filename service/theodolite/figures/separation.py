"""How well a contrast's direction separates prompts that it was not fitted on, and how it turns over layers."""

from collections.abc import Sequence

import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, depth_axis, layer_map, panels_figure
from theodolite.figures.style import COSINE, DASHES, NEGATIVE, POSITIVE, short_site
from theodolite.query.curves import along_depth
from theodolite.sites import Site


def separation_figure(separation: xr.Dataset, contrast: str, position: int, sites: Sequence[str]) -> go.Figure:
    """Draw AUROC, accuracy and Fisher ratio of prompts along a contrast's direction by depth, with 95 % intervals.

    Args:
        separation: the result group.
        contrast: which contrast.
        position: which position.
        sites: which sites.
    """
    at = separation.sel(contrast=contrast, position=position)
    panels = []
    for name, said in (("auroc", "AUROC"), ("accuracy", "accuracy"), ("fisher_ratio", "Fisher ratio")):
        lines = []
        for site, colour in zip(sites, (COSINE, POSITIVE, NEGATIVE), strict=False):
            value, low, high = (along_depth(at[name + end].sel(site=[site])) for end in ("", "_low", "_high"))
            depths = value["depth"].values.tolist()
            ends = {"low": low.values.tolist(), "high": high.values.tolist()}
            lines.append(Line(short_site(site), depths, value.values.tolist(), colour, DASHES[Site(site)], **ends))
        panels.append(Panel(said, lines))
    depths = along_depth(at["auroc"].sel(site=list(sites)))["depth"].values.tolist()
    return panels_figure(panels, **depth_axis(depths))


def directions_map(cosines: xr.DataArray, title: str) -> go.Figure:
    """Draw the cosine between the directions of each pair of layers as a map, on a scale from -1 to 1.

    Args:
        cosines: (layer, layer_other).
        title: what the number is; stands above the map.
    """
    return layer_map(cosines, title, limits=(-1, 1))
