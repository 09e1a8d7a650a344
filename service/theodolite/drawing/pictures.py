"""One panel of a figure, and figures as files for a paper: SVG, PDF and PNG in the width of a column or of a page."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import plotly.graph_objects as go

from theodolite.drawing.titles import titled
from theodolite.errors import SpecError, choices_text, first_line

Width = Literal["column", "page"]

_INCHES = {"column": 3.3, "page": 6.8}
_DRAWN = {"column": 440, "page": 800}  # pixels: text of 13 px becomes 7 or 8 points
_SMALL_CHARACTER = 5.9  # pixels, of the texts above a figure
_EDGE = 8  # pixels above the title
_PIXELS, _DOTS = 96, 300  # of an inch: of SVG, and of PNG


def one_panel(figure: go.Figure, title: str) -> go.Figure:
    """Return a figure with one panel of another one, by the title of its vertical axis; raises SpecError."""
    axes = {
        axis.title.text.partition("<br>")[0]: axis.plotly_name.removeprefix("yaxis")
        for axis in figure.select_yaxes()
        if axis.title.text
    }
    if title not in axes:
        raise SpecError(f"panel: given {title!r}; {choices_text(title, list(axes))}")
    number, layout = axes[title], figure.layout.to_plotly_json()
    axis, across = layout.pop(f"yaxis{number}"), layout.pop(f"xaxis{number}")
    shared = layout.get(f"xaxis{across.pop('matches', 'x').removeprefix('x')}", {})  # its labels stand there
    low, high = axis.get("domain", (0, 1))
    margins = layout["margin"]["t"] + layout["margin"]["b"]
    kept = {name: value for name, value in layout.items() if not name.startswith(("xaxis", "yaxis"))}
    kept |= {
        "height": round((layout["height"] - margins) * (high - low)) + margins,
        "xaxis": {**across, **_only(shared, "title"), "anchor": "y", "showticklabels": True},
        "yaxis": {**axis, "anchor": "x", "domain": [0, 1]},
        "annotations": [
            {**one, "yref": one["yref"].replace(f"y{number}", "y")}
            for one in layout.get("annotations", ())
            if str(one.get("yref")).split()[0] == f"y{number}"
        ],
        "meta": _only(layout.get("meta") or {}, "about"),  # the switches are those of all panels
    }
    traces = [trace for trace in figure.data if (trace.yaxis or "y") == f"y{number}"]
    return go.Figure([type(trace)(trace).update(xaxis="x", yaxis="y") for trace in traces], kept)


def save_picture(figure: go.Figure, path: str | Path, width: Width) -> Path:
    """Write a figure without its title as SVG, PDF or PNG, with the texts about it above it; return the path.

    Raises:
        SpecError: the width or the type of the file is unknown, kaleido or a browser is missing, or the file cannot be
            written.
    """
    file = Path(path)
    if width not in _INCHES:
        raise SpecError(f"width: given {width!r}; allowed: {', '.join(_INCHES)}")
    if file.suffix not in (".svg", ".pdf", ".png"):
        raise SpecError(f"path: given {file.name!r}; allowed: a file whose name ends with .svg, .pdf or .png")
    if not find_spec("kaleido"):
        raise SpecError("pictures need kaleido, which is not installed; run: pip install 'theodolite[pictures]'")
    drawn = titled(go.Figure(figure), int(_DRAWN[width] / _SMALL_CHARACTER))
    drawn.update_layout(paper_bgcolor="white", width=_DRAWN[width])
    if drawn.layout.height:  # the browser draws the first row of the title across the edge
        drawn.update_layout(title_y=1 - _EDGE / drawn.layout.height)
    scale = _INCHES[width] * (_DOTS if file.suffix == ".png" else _PIXELS) / _DRAWN[width]
    try:
        drawn.write_image(file, scale=scale)
    except OSError as error:
        raise SpecError(f"path: cannot write {file}: {error.strerror}; choose another path") from error
    except Exception as error:  # kaleido's are many, and another version has others
        raise SpecError(
            f"path: {file} was not drawn: {first_line(error, 200)}; kaleido draws with Chrome or Chromium: install it, "
            "and set BROWSER_PATH to it if kaleido does not find it"
        ) from error
    return file


def _only(values: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {name: values[name]} if name in values else {}
