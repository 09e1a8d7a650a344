"""The held-out score of one prompt along depth, among the scores of both sets of a contrast."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.panels import bands, legend_above
from theodolite.drawing.references import Reference, reference_lines
from theodolite.drawing.style import DASHES, DEPTH, MAIN, bare_layout, depth_ticks, short_site
from theodolite.sites import HALF_BLOCKS, Site, depth_label

_HEIGHT = 380


def prompt_figure(path: pd.DataFrame, positive: str, negative: str, colours: Mapping[str, str]) -> go.Figure:
    """Return one prompt's score by depth, with bands from the 5 % to the 95 % quantile of both sets.

    Args:
        path: the table of `read_prompt_path`.
        positive: name of the positive set.
        negative: name of the negative set.
        colours: colour of each set.
    """
    sites = [site for site in HALF_BLOCKS if site in set(path["site"])] or list(dict.fromkeys(path["site"]))
    shown = path[path["site"].isin(sites)]
    figure = go.Figure()
    for side, name in (("positive", positive), ("negative", negative)):
        ends = shown[f"low_{side}"], shown[f"high_{side}"]
        for number, band in enumerate(bands(shown["depth"], *ends, colours[name])):
            figure.add_trace(band.update(name=f"{name}: 5 % to 95 % of prompts", showlegend=number == 0))
    for site in sites:
        of_site = shown[shown["site"] == site]
        figure.add_scatter(
            x=of_site["depth"],
            y=of_site["score"],
            name=f"this prompt, {short_site(site)}",
            mode="lines+markers",
            line={"color": MAIN, "dash": DASHES[Site(site)], "width": 2},
            marker={"size": 5},
            customdata=[depth_label(depth) for depth in of_site["depth"]],
            hovertemplate="%{customdata}: %{y:.2f}",
        )
    figure.add_traces(reference_lines([Reference(0, "midpoint of the means: 0")], [(shown["depth"], shown["score"])]))
    figure.update_layout(**bare_layout(_HEIGHT), hovermode="x", legend=legend_above(1))
    figure.update_xaxes(title=DEPTH, **depth_ticks(shown["depth"].tolist()))
    figure.update_yaxes(title="score (pooled standard deviations)")
    return figure
