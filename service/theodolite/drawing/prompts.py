"""The held-out scores of prompts: those of both sets at one depth, and that of one prompt along depth."""

from collections.abc import Iterator

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.line_names import name_lines
from theodolite.drawing.panels import Line, Panel, Reference, panels_figure
from theodolite.drawing.style import DEPTH, MAIN, NEGATIVE, PLAIN, POSITIVE, bare_layout, clear, depth_ticks
from theodolite.drawing.swarm import swarm
from theodolite.sites import HALF_BLOCKS, depth_label

_RANGE = "5 % to 95 % of prompts"
_SWARM_HEIGHT = 340  # pixels
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
    in_stream = path["site"].isin(HALF_BLOCKS)
    shown = (path[in_stream] if in_stream.any() else path).sort_values("depth")
    depths = shown["depth"].tolist()
    lines = [
        Line(
            f"middle of {name}",
            depths,
            (shown[f"low_{side}"] + shown[f"high_{side}"]) / 2,
            colour,
            low=shown[f"low_{side}"],
            high=shown[f"high_{side}"],
            markers=False,
            band=_RANGE,
        )
        for side, name, colour in (("positive", positive, POSITIVE), ("negative", negative, NEGATIVE))
    ]
    lines.append(Line("this prompt", depths, shown["score"], MAIN))
    panel = Panel(_SCORE.replace(" (", "<br>("), lines, [Reference(0, "midpoint of the means: 0")])
    labels = {depth: depth_label(depth) for depth in depths}
    return name_lines(panels_figure([panel], x_title=DEPTH, ticks=depth_ticks(depths), labels=labels))
