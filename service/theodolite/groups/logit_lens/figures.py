"""The tokens that a direction raises or lowers most, as a strip of texts along depth."""

from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.style import COLORBAR, bare_layout
from theodolite.sections.tokens import visible
from theodolite.sites import depth_label

SHOWN = 6
"""Number of tokens in a row of the figure."""

_ROWS = 48  # at most, so that texts stay readable
_ROW, _MARGINS = 19, 96  # pixels
_LONGEST = 15  # characters of a token

_COLOURS = (("#7db1e3", "#d3e4f5"), "#ececea", ("#fadccb", "#f0a076"))
"""Colours of z: far below and just below the negative limit, between the limits, just above and far above the limit.

They are those of the two sets, so light that one dark text is readable on all of them, on light and dark pages.
"""

_INK = "#1b1d21"


def token_strip(tokens: pd.DataFrame, limit: float, kept: int | None = None) -> go.Figure:
    """Return the first tokens of one end at each depth, the first depth at the bottom, coloured by z.

    Args:
        tokens: rows of the table `direction_tokens` of one contrast, position and end.
        limit: the |z| up to which a token is drawn grey.
        kept: a depth that the figure shows even if it leaves out others, because there are many.
    """
    first = tokens[tokens["place"] < SHOWN]
    depths = shown_depths(first["depth"].unique().tolist(), kept)
    wide = first[first["depth"].isin(depths)].pivot_table(
        index="depth", columns="place", values=["token", "change", "z"], aggfunc="first", dropna=False
    )
    z, change = (wide[name].to_numpy(dtype=np.float64) for name in ("z", "change"))
    texts = [[_cell(token) for token in row] for row in wide["token"].to_numpy()]
    hover = [
        [[_text(token), f"{by:+.3g}", _z_text(one)] for token, by, one in zip(*row, strict=True)]
        for row in zip(wide["token"].to_numpy(), change, z, strict=True)
    ]
    labels = [depth_label(depth) for depth in wide.index]
    largest = max(1.5 * limit, float(np.abs(z[np.isfinite(z)]).max(initial=0.0)))
    figure = go.Figure(
        go.Heatmap(
            z=np.nan_to_num(z).tolist(),  # a cell without z has the colour of 0, since one without number has no text
            x=[str(place + 1) for place in wide["change"].columns],
            y=labels,
            text=texts,
            texttemplate="%{text}",
            textfont={"size": 12, "color": _INK},
            customdata=hover,
            hovertemplate="%{customdata[0]}, %{y}: %{customdata[1]} nats, z = %{customdata[2]}<extra></extra>",
            colorscale=_scale(limit / largest),
            zmin=-largest,
            zmax=largest,
            xgap=2,
            ygap=1,
            colorbar={**COLORBAR, "title": {"text": "z", "side": "top"}},
        )
    )
    layout = bare_layout(_MARGINS + _ROW * len(labels))
    figure.update_layout({**layout, "margin": {"l": 66, "r": 80, "t": 20, "b": 46}})
    figure.update_xaxes(title="place in the ranking of all tokens", type="category", showgrid=False, zeroline=False)
    figure.update_yaxes(title="depth", type="category", showgrid=False, zeroline=False, **_ticks(labels))
    return figure


def _scale(share: float) -> list[list[Any]]:
    """Return the colours of a scale whose middle, this share of it, is grey."""
    (lowest, lower), near, (higher, highest) = _COLOURS
    low, high = (1 - share) / 2, (1 + share) / 2
    return [[0, lowest], [low, lower], [low, near], [high, near], [high, higher], [1, highest]]


def shown_depths(depths: list[int], kept: int | None = None) -> list[int]:
    """Return the depths of the rows of a figure: all, or every second, third, … counted from the last one."""
    ordered = sorted(depths)
    chosen = set(ordered[:: -max(1, -(-len(ordered) // _ROWS))])
    return [depth for depth in ordered if depth in chosen or depth == kept]


def _ticks(labels: list[str]) -> dict[str, Any]:
    """Return ticks at every row of a short figure, else at every second one."""
    ticks = labels[:: 1 if len(labels) <= _ROWS // 2 else 2]
    return {"tickvals": ticks, "ticktext": ticks}


def _cell(token: str) -> str:
    """Return a token for a cell: visible spaces, at most so many characters, and no tag of Plotly's texts."""
    text = visible(token)
    return escape(text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…", quote=False)


def _text(token: str) -> str:
    return escape(f"“{visible(token)}”", quote=False)


def _z_text(z: float) -> str:
    return f"{z:.1f}" if np.isfinite(z) else "unknown (no spread)"
