"""The held-out scores of prompts: those of both sets at one depth, and that of one prompt along depth."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.panels import bands, legend_above
from theodolite.drawing.references import Reference, reference_lines
from theodolite.drawing.style import (
    DASHES,
    DEPTH,
    MAIN,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    bare_layout,
    clear,
    depth_ticks,
    short_site,
)
from theodolite.drawing.swarm import swarm
from theodolite.sites import HALF_BLOCKS, Site, depth_label

_HEIGHT = 380
_SWARM_HEIGHT = 340
_COLUMNS = 80  # in which the points of a set stand
_MOST_LINES = 100
_SCORE = "score (pooled standard deviations)"


def swarm_figure(scores: pd.DataFrame, positive: str, negative: str, *, paired: bool) -> go.Figure:
    """Return the scores of both sets of a contrast over one axis: the positive set above it, the negative below.

    Lines join the pairs: all of at most 100, and otherwise the farthest of those in the wrong order, at most 100. Each
    point has its sample as `customdata`, and its set in the `meta` of its trace.

    Args:
        scores: one row for each prompt: `side`, `sample`, and `score` in pooled standard deviations.
        positive: name of the positive set.
        negative: name of the negative set.
        paired: whether prompts with the same sample are pairs.
    """
    drawn = scores[np.isfinite(scores["score"])]
    ends = min([-1.0, *drawn["score"]]), max([1.0, *drawn["score"]])
    figure, points = go.Figure(), {}
    for side, name, colour, sign in (("positive", positive, POSITIVE, 1), ("negative", negative, NEGATIVE, -1)):
        own = drawn[drawn["side"] == side]
        _, places = swarm(own["score"].to_numpy(np.float64), ends, _COLUMNS)
        points[side] = own[["sample", "score"]].assign(height=sign * (places + 1.0))
        figure.add_scatter(
            x=own["score"].tolist(),
            y=points[side]["height"].tolist(),
            name=name,
            mode="markers",
            marker={"size": 7, "color": clear(colour, 0.8)},
            unselected={"marker": {"opacity": 0.25}},
            customdata=own["sample"].tolist(),
            meta={"set": name},
            hovertemplate="%{customdata}: %{x:.2f}",
            showlegend=False,
        )
        figure.add_annotation(
            text=f'<span style="color:{colour}">●</span> {name}',
            x=0,
            y=1 if sign > 0 else 0,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="top" if sign > 0 else "bottom",
            showarrow=False,
        )
    if paired:
        figure.add_traces(list(_pair_lines(points["positive"], points["negative"])))
    figure.add_annotation(x=0, y=1, yref="paper", text="midpoint", showarrow=False, yanchor="bottom")
    figure.add_vline(0, line={"color": PLAIN, "width": 1.2, "dash": "dash"})
    figure.update_layout(**bare_layout(_SWARM_HEIGHT), hovermode="closest", hoverdistance=6)
    figure.update_layout(dragmode="select", selectdirection="h")
    figure.update_layout(newselection={"line": {"color": MAIN, "width": 1.5, "dash": "solid"}})
    figure.update_layout(margin={"l": 12, "r": 12, "t": 26, "b": 48})
    room = 0.03 * (ends[1] - ends[0])
    figure.update_xaxes(title=_SCORE, range=[ends[0] - room, ends[1] + room], zeroline=False)
    heights = pd.concat(points.values())["height"]
    figure.update_yaxes(visible=False, range=[heights.min() - 1.5, heights.max() + 1.5])
    return figure


def _pair_lines(positive: pd.DataFrame, negative: pd.DataFrame) -> Iterator[go.Scatter]:
    """Yield a trace of the lines that join pairs, if there are any to draw."""
    pairs = positive.merge(negative, on="sample", suffixes=("", "_negative"))
    if len(pairs) > _MOST_LINES:
        distance = pairs["score"] - pairs["score_negative"]
        pairs = pairs.loc[distance[distance <= 0].nsmallest(_MOST_LINES).index]
    if pairs.empty:
        return
    lines = pairs[["score", "score_negative"]].assign(gap=None), pairs[["height", "height_negative"]].assign(gap=None)
    x, y = (line.to_numpy(object).ravel().tolist() for line in lines)
    style = {"color": clear(MAIN, 0.7), "width": 1}
    yield go.Scatter(x=x, y=y, name="pairs", mode="lines", line=style, hoverinfo="skip", showlegend=False)


def prompt_figure(path: pd.DataFrame, positive: str, negative: str) -> go.Figure:
    """Return one prompt's score by depth, with bands from the 5 % to the 95 % quantile of both sets.

    Args:
        path: the table of `read_prompt_path`.
        positive: name of the positive set.
        negative: name of the negative set.
    """
    sites = [site for site in HALF_BLOCKS if site in set(path["site"])] or list(dict.fromkeys(path["site"]))
    shown = path[path["site"].isin(sites)]
    figure = go.Figure()
    for side, name, colour in (("positive", positive, POSITIVE), ("negative", negative, NEGATIVE)):
        ends = shown[f"low_{side}"], shown[f"high_{side}"]
        for number, band in enumerate(bands(shown["depth"], *ends, colour)):
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
    figure.update_yaxes(title=_SCORE)
    return figure
