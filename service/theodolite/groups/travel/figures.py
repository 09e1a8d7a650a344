"""Steps of attention and MLP by layer."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import Line, Panel, Reference, panels_figure, prompts_text
from theodolite.groups.schema import SUBLAYERS
from theodolite.spec_parts import Label


def travel_figure(travel: xr.Dataset, position: Label, colours: Mapping[str, str]) -> go.Figure:
    """Return the norms and the angles of the steps of attention and MLP, by layer.

    Args:
        travel: the results.
        position: token position.
        colours: colour of each set.
    """
    means = travel.sel(position=position, summary="mean")
    attention, mlp, block = (means.sel(sublayer=one) for one in SUBLAYERS)

    def lines(name: str) -> list[Line]:
        branches = [*_lines(attention, name, ", attention", "solid", colours)]
        branches += _lines(mlp, name, ", MLP", "dot", colours)
        return branches or [*_lines(block, name, ", block", "solid", colours)]

    panels = [
        Panel("norm of the step", lines("step_norm"), positive=True),
        Panel("angle of the step, radians", lines("arc")),
    ]
    return panels_figure(panels)


def cosines_figure(travel: xr.Dataset, position: Label, colours: Mapping[str, str]) -> go.Figure:
    """Return the cosines of steps and of their deviations from the mean step, and the share of the mean step.

    Args:
        travel: the results.
        position: token position.
        colours: colour of each set.
    """
    means = travel.sel(position=position, summary="mean")
    following, stream = (means.sel(vector_pair=one) for one in ("successive_steps", "block_step_and_input"))
    panels = []
    for title, name in (("cosine", "step_cosine"), ("cosine of deviations", "step_cosine_centred")):
        lines = [*_lines(following, name, ", next step", "solid", colours)]
        lines += _lines(stream, name, ", stream", "dot", colours)
        if lines:
            panels.append(Panel(title, lines, [Reference(0, "random directions: 0")]))
    shares = [*_lines(means, "step_common_share", "", "solid", colours)]
    panels.append(Panel("share of the mean step", shares))
    return panels_figure(panels)


def _lines(selected: xr.Dataset, name: str, suffix: str, dash: str, colours: Mapping[str, str]) -> Iterator[Line]:
    for set_name, colour in colours.items():
        values = selected[name].sel(set=set_name)
        if np.isfinite(values).any():
            n = prompts_text(selected["n_samples"].sel(set=set_name))
            yield Line(f"{set_name}{suffix}", selected["layer"], values, colour, dash, n=n)
