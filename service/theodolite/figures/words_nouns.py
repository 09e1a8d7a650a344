"""Nouns through attention heads: a map of all heads, the heads that find a noun itself, and the scores of one head."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from theodolite.figures.heads import head_map
from theodolite.figures.maps import scale_of
from theodolite.figures.panels import Line, Panel, panels_figure
from theodolite.figures.style import MAIN, PLAIN, SECOND, bare_layout

MARK = "#111111"


def relatedness_map(z: xr.DataArray, passed: xr.DataArray, title: str) -> go.Figure:
    """Return a map of the z of each head's relatedness, with a dot on each head that passes both tests.

    Args:
        z: (layer, head).
        passed: whether a head passes, (layer, head).
        title: name of the number, above the map.
    """
    figure = head_map(z, title, signed=True)
    layers, heads = np.nonzero(passed.transpose("layer", "head").values)
    x, y = passed["layer"].values[layers].tolist(), passed["head"].values[heads].tolist()
    marker = {"size": 6, "color": MARK, "line": {"width": 1, "color": "#ffffff"}}
    return figure.add_trace(go.Scatter(x=x, y=y, mode="markers", marker=marker, hoverinfo="skip", showlegend=False))


def subject_figure(words: xr.Dataset, chance: float) -> go.Figure:
    """Return the shares of nouns whose own key is first, or among the keys with the largest scores, by layer.

    Args:
        words: the result group.
        chance: the share of `own_keys` that random keys would give.
    """
    panels = []
    titles = {"own_first": "share, own key first", "own_keys": "share, itself among keys"}
    layers = words["layer"].values
    for name, title in titles.items():
        shares, line = words[name], np.full(len(layers), chance)
        expected = words["own_first_null_mean"].max("head").values if name == "own_first" else line
        lines = [
            Line("largest of the layer's heads", layers, shares.max("head"), MAIN),
            Line("mean over the layer's heads", layers, shares.mean("head"), SECOND),
            Line("chance", layers, expected, PLAIN, "dash", markers=False),
        ]
        panels.append(Panel(title, lines))
    return panels_figure(panels, x_title="layer", ticks={})


def scores_figure(scores: pd.DataFrame) -> go.Figure:
    """Return two maps of pairs of nouns, query upwards and key to the right: similarities, then scores of one head.

    Args:
        scores: rows of the table `noun_scores` for some nouns.
    """
    titles = {"similarity": "before: similarity ê·ê", "score": "after: score of the head"}
    figure = make_subplots(rows=1, cols=2, horizontal_spacing=0.2, subplot_titles=list(titles.values()))
    for column, (value, right) in enumerate(zip(titles, (0.4, 1.0), strict=True), start=1):
        table = scores.pivot(index="noun_id", columns="key_id", values=value)
        names = dict(zip(scores["noun_id"], scores["noun"].str.strip(), strict=True))
        shown = [names[token] for token in table.index], [names[token] for token in table.columns]
        numbers = table.to_numpy(dtype=np.float64)
        scale = scale_of(numbers)
        heat = go.Heatmap(
            z=numbers.tolist(),
            x=shown[1],
            y=shown[0],
            hovertemplate="query %{y}, key %{x}: %{z:.4g}<extra></extra>",
            **{**scale, "colorbar": {**scale["colorbar"], "x": right}},
        )
        figure.add_trace(heat, row=1, col=column)
    figure.update_layout(bare_layout(460))
    figure.update_xaxes(tickangle=-60, showgrid=False)
    figure.update_yaxes(showgrid=False, autorange="reversed")
    return figure
