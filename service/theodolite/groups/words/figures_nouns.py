"""Nouns through attention heads: a map of all heads, the heads that find a noun itself, and maps of pairs of nouns."""

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.head_map import head_map
from theodolite.drawing.maps import pair_map
from theodolite.drawing.panels import Line, Panel, panels_figure
from theodolite.drawing.style import MAIN, PLAIN, SECOND

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
        words: the results.
        chance: the share of `own_keys` that random keys would give.
    """
    panels = []
    titles = {"own_first": "share, own key first", "own_keys": "share, itself among keys"}
    layers = words["layer"].values
    for name, title in titles.items():
        shares, line = words[name], np.full(len(layers), chance)
        expected = words["own_first_null"].sel(null="mean").max("head").values if name == "own_first" else line
        lines = [
            Line("largest of the layer's heads", layers, shares.max("head"), MAIN),
            Line("mean over the layer's heads", layers, shares.mean("head"), SECOND),
            Line("chance", layers, expected, PLAIN, "dash", markers=False),
        ]
        panels.append(Panel(title, lines))
    return panels_figure(panels)


def pairs_of_nouns_map(scores: pd.DataFrame, column: str, title: str) -> go.Figure:
    """Return a map of a number of each pair of nouns: query downwards, key to the right.

    Args:
        scores: rows of the table `noun_scores` for some nouns.
        column: column of the table.
        title: name of the number, above the map.
    """
    table = scores.pivot(index="noun_id", columns="key_id", values=column)
    names = dict(zip(scores["noun_id"], scores["noun"].str.strip(), strict=True))
    labels: dict[str, Any] = {
        "x": [names[token] for token in table.columns],
        "y": [names[token] for token in table.index],
    }
    hover = "query %{y}, key %{x}: %{z:.4g}"
    values = table.to_numpy(dtype=np.float64)
    figure = pair_map(values, title, axes=("query", "key"), hovertemplate=hover, **labels)
    figure.update_layout(margin={"l": 82, "b": 82})
    figure.update_xaxes(tickangle=-60)
    figure.update_yaxes(autorange="reversed")
    return figure
