"""What a figure says of itself where no page stands around it: its caption, model, prompts and finding."""

import textwrap
from collections.abc import Sequence

import plotly.graph_objects as go

_WIDTH = 95  # characters of a row of small text
_LARGE, _SMALL = 20, 15  # pixels of a row


def add_about(figure: go.Figure, texts: Sequence[str]) -> go.Figure:
    """Return the figure with texts about it, the caption first, in the `meta` of its layout."""
    figure.update_layout(meta={**(figure.layout.meta or {}), "about": [text for text in texts if text]}, overwrite=True)
    return figure


def titled(figure: go.Figure, characters: int = _WIDTH) -> go.Figure:
    """Return the figure with the texts about it above it, for notebooks and files; unchanged if it has none.

    A row has at most this many characters.
    """
    first, *others = (figure.layout.meta or {}).get("about") or [""]
    if not first:
        return figure
    lines = [line for text in others for line in textwrap.wrap(text, characters)]
    text = "<br>".join([first, *(f'<span style="font-size:11px">{line}</span>' for line in lines)])
    added = _LARGE + _SMALL * len(lines) + 12
    place = {"x": 0, "xref": "container", "y": 1, "yref": "container", "yanchor": "top", "pad": {"t": 12, "l": 12}}
    figure.update_layout(
        title={"text": text, "font": {"size": 14}, **place},
        margin_t=(figure.layout.margin.t or 0) + added,
        height=None if figure.layout.height is None else figure.layout.height + added,
    )
    return figure
