"""The held-out score of one prompt along depth, among the scores of both sets of a contrast."""

import pandas as pd
import plotly.graph_objects as go

from theodolite.figures.panels import bands, legend_above
from theodolite.figures.style import COSINE, DASHES, DEPTH, NEGATIVE, POSITIVE, bare_layout, depth_ticks, short_site
from theodolite.sites import HALF_BLOCKS, Site, depth_label

_HEIGHT = 380


def prompt_figure(path: pd.DataFrame, positive: str, negative: str) -> go.Figure:
    """Return one prompt's score by depth, with bands from the 5 % to the 95 % quantile of both sets.

    Args:
        path: the table of `read_prompt_path`.
        positive: label of the positive set.
        negative: label of the negative set.
    """
    sites = [site for site in HALF_BLOCKS if site in set(path["site"])] or list(dict.fromkeys(path["site"]))
    shown = path[path["site"].isin(sites)]
    figure = go.Figure()
    for side, name, colour in (("positive", positive, POSITIVE), ("negative", negative, NEGATIVE)):
        for number, band in enumerate(bands(shown["depth"], shown[f"low_{side}"], shown[f"high_{side}"], colour)):
            figure.add_trace(band.update(name=f"{name}: 5 % to 95 % of prompts", showlegend=number == 0))
    for site in sites:
        of_site = shown[shown["site"] == site]
        figure.add_scatter(
            x=of_site["depth"],
            y=of_site["score"],
            name=f"this prompt, {short_site(site)}",
            mode="lines+markers",
            line={"color": COSINE, "dash": DASHES[Site(site)], "width": 2},
            marker={"size": 5},
            text=[depth_label(depth) for depth in of_site["depth"]],
            hovertemplate="%{text}: %{y:.2f}",
        )
    figure.add_hline(y=0, line={"color": "#8b9098", "width": 1})
    figure.update_layout(**bare_layout(_HEIGHT), hovermode="x", legend=legend_above(1))
    figure.update_xaxes(title=DEPTH, **depth_ticks(shown["depth"].tolist()))
    figure.update_yaxes(title="score (pooled standard deviations)")
    return figure
