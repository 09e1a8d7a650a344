"""Steps of attention and MLP by layer."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure, prompts_text
from theodolite.figures.references import Reference


def travel_figure(travel: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Return the norms and the angles of the steps of attention and MLP, by layer.

    Args:
        travel: the result group.
        position: token position.
        colours: colour of each set.
    """
    selected = travel.sel(position=position)

    def lines(name: str) -> list[Line]:
        branches = [*_lines(selected, f"{name}_attn", ", attention", "solid", colours)]
        branches += _lines(selected, f"{name}_mlp", ", MLP", "dot", colours)
        return branches or [*_lines(selected, f"{name}_block", ", block", "solid", colours)]

    panels = [
        Panel("norm of the step", lines("step_norm"), positive=True),
        Panel("angle of the step, radians", lines("arc")),
    ]
    return panels_figure(panels, x_title="layer", ticks={})


def cosines_figure(travel: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Return the cosines of steps and of their deviations from the mean step, and the share of the mean step.

    Args:
        travel: the result group.
        position: token position.
        colours: colour of each set.
    """
    selected = travel.sel(position=position)
    panels = []
    for title, suffix in (("cosine", ""), ("cosine of deviations", "_centred")):
        lines = [*_lines(selected, f"step_cosine_next{suffix}", ", next step", "solid", colours)]
        lines += _lines(selected, f"step_cosine_stream{suffix}", ", stream", "dot", colours)
        if lines:
            panels.append(Panel(title, lines, [Reference(0, "random directions: 0")]))
    shares = [*_lines(selected, "step_common_share", "", "solid", colours)]
    panels.append(Panel("share of the mean step", shares))
    return panels_figure(panels, x_title="layer", ticks={})


def _lines(selected: xr.Dataset, name: str, suffix: str, dash: str, colours: Mapping[str, str]) -> Iterator[Line]:
    for set_name, colour in colours.items():
        values = selected[name].sel(set=set_name)
        if np.isfinite(values).any():
            n = prompts_text(selected["n_samples"].sel(set=set_name))
            yield Line(f"{set_name}{suffix}", selected["layer"], values, colour, dash, n=n)
