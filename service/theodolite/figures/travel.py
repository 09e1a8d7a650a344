"""Steps of attention and MLP by layer."""

from collections.abc import Iterator, Mapping

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure


def travel_figure(travel: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Return the norms of the steps of attention and MLP, and the cosines of steps with the next step and the stream.

    Args:
        travel: the result group.
        position: token position.
        colours: colour of each set.
    """
    selected = travel.sel(position=position)

    def lines(name: str, suffix: str, dash: str) -> Iterator[Line]:
        for set_name, colour in colours.items():
            values = selected[name].sel(set=set_name)
            if np.isfinite(values).any():
                yield Line(f"{set_name}{suffix}", selected["layer"], values, colour, dash)

    norms = [*lines("step_norm_attn", ", attention", "solid"), *lines("step_norm_mlp", ", MLP", "dot")]
    norms = norms or list(lines("step_norm_block", ", block", "solid"))
    cosines = [*lines("step_cosine_next", ", next step", "solid"), *lines("step_cosine_stream", ", stream", "dot")]
    panels = [Panel("norm of the step", norms, logarithmic=True), Panel("cosine", cosines)]
    return panels_figure(panels, x_title="layer", ticks={})
