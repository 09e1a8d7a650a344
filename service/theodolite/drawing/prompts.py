"""The held-out score of one prompt along depth, among the scores of both sets of a contrast."""

from collections.abc import Mapping

import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.line_names import name_lines
from theodolite.drawing.panels import Line, Panel, Reference, panels_figure
from theodolite.drawing.style import DEPTH, MAIN, depth_ticks
from theodolite.sites import HALF_BLOCKS, depth_label

_RANGE = "5 % to 95 % of prompts"


def prompt_figure(path: pd.DataFrame, positive: str, negative: str, colours: Mapping[str, str]) -> go.Figure:
    """Return one prompt's score by depth, with bands from the 5 % to the 95 % quantile of both sets.

    Args:
        path: the table of `read_prompt_path`.
        positive: name of the positive set.
        negative: name of the negative set.
        colours: colour of each set.
    """
    in_stream = path["site"].isin(HALF_BLOCKS)
    shown = (path[in_stream] if in_stream.any() else path).sort_values("depth")
    depths = shown["depth"].tolist()
    lines = [
        Line(
            f"middle of {name}",
            depths,
            (shown[f"low_{side}"] + shown[f"high_{side}"]) / 2,
            colours[name],
            low=shown[f"low_{side}"],
            high=shown[f"high_{side}"],
            markers=False,
            band=_RANGE,
        )
        for side, name in (("positive", positive), ("negative", negative))
    ]
    lines.append(Line("this prompt", depths, shown["score"], MAIN))
    panel = Panel("score<br>(pooled standard deviations)", lines, [Reference(0, "midpoint of the means: 0")])
    labels = {depth: depth_label(depth) for depth in depths}
    return name_lines(panels_figure([panel], x_title=DEPTH, ticks=depth_ticks(depths), labels=labels))
