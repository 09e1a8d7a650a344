"""How well the direction of a contrast would repeat with other prompts."""

from collections.abc import Iterator, Sequence
from functools import partial

import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, along_paths, depth_axis, panels_figure, prompts_text
from theodolite.drawing.style import MAIN, SECOND
from theodolite.query.curves import along_depth
from theodolite.query.directions import RELIABLE
from theodolite.spec_parts import Label


def reliability_figure(directions: xr.Dataset, contrast: str, position: Label, sites: Sequence[str]) -> go.Figure:
    """Return the reliability of a contrast's direction and the noise share of the means' distance by depth.

    Args:
        directions: the results.
        contrast: name of the contrast.
        position: token position.
        sites: sites to draw.
    """
    selected = directions.sel(contrast=contrast, position=position, site=list(sites))
    n = prompts_text(*selected["n_used"].values)
    lines: list[Line] = []
    for statistic, colour in (("reliability", MAIN), ("noise_share", SECOND)):
        lines += along_paths(sites, partial(_line, selected[statistic], colour, n))
    axis = along_depth(selected["reliability"])
    least = Reference(RELIABLE, f"smallest used reliability: {RELIABLE}")
    return panels_figure([Panel("cosine, share", lines, [least])], **depth_axis(axis))


def _line(values: xr.DataArray, colour: str, n: str, path: Sequence[str]) -> Iterator[Line]:
    curve = along_depth(values.sel(site=list(path)))
    yield Line(str(values.name).replace("_", " "), curve["depth"], curve, colour, n=n)
