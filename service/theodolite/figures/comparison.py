"""The same curve of several runs in one figure, on relative depth."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from theodolite.figures.style import bare_layout
from theodolite.query.compare import STATISTICS, labels
from theodolite.sites import depth_label
from theodolite.store.layout import GROUPS

# Readable on white and on near-black, neighbours told apart by people with any colour vision; then dashes tell.
_COLOURS = ("#8a63d2", "#d9622b", "#3b82c4", "#2e9e6b", "#c2478e", "#b8862a", "#1a9ba3", "#8b9098")
_DASHES = ("solid", "dash", "dot", "dashdot")


def comparison_figure(frame: pd.DataFrame) -> go.Figure:
    """Draw one curve for each run, with its 95 % interval as a band where it has one.

    Args:
        frame: what `theodolite.query.compare.comparison` returns.
    """
    figure = go.Figure()
    names = labels(frame)
    for index, (run_id, curve) in enumerate(frame.groupby("run_id", sort=False)):
        dash, colour = _DASHES[index // len(_COLOURS) % len(_DASHES)], _COLOURS[index % len(_COLOURS)]
        name = names[str(run_id)]
        if np.isfinite(curve["low"]).any():
            figure.add_trace(_band(curve, name, colour))
        figure.add_trace(_line(curve, name, colour, dash))
    statistic = str(frame["statistic"].iloc[0])
    figure.update_layout(
        bare_layout(520),
        hovermode="closest",
        legend={"orientation": "h", "x": 0, "y": 1.02, "yanchor": "bottom", "bgcolor": "rgba(0,0,0,0)"},
    )
    figure.update_xaxes(title="depth, as a share of the model's layers", range=[-0.01, 1.01], dtick=0.1)
    figure.update_yaxes(title=statistic.replace("_", " "), exponentformat="power")
    return figure


def description(statistic: str) -> str:
    """Return what the layout says of a statistic, and of the one before it where it begins with `The same`."""
    said: list[str] = []
    for variable in GROUPS[STATISTICS[statistic]]:
        said = [*(said if variable.description.startswith("The same") else []), variable.description]
        if variable.name == statistic:
            break
    return " ".join(said)


def _line(curve: pd.DataFrame, name: str, colour: str, dash: str) -> go.Scatter:
    return go.Scatter(
        x=curve["relative_depth"].tolist(),
        y=_without_nan(curve["value"]),
        mode="lines+markers",
        marker={"size": 4},
        line={"color": colour, "width": 2.2, "dash": dash},
        name=name,
        legendgroup=name,
        customdata=[_place(site, depth) for site, depth in zip(curve["site"], curve["depth"], strict=True)],
        hovertemplate="%{customdata}, %{x:.3f} of the way: %{y:.4g}<extra>" + name + "</extra>",
    )


def _band(curve: pd.DataFrame, name: str, colour: str) -> go.Scatter:
    """Return the interval as a closed outline; where it is not known it is left out."""
    known = curve[np.isfinite(curve["low"]) & np.isfinite(curve["high"])]
    around = pd.concat([known["relative_depth"], known["relative_depth"][::-1]])
    return go.Scatter(
        x=around.tolist(),
        y=pd.concat([known["low"], known["high"][::-1]]).tolist(),
        mode="lines",
        fill="toself",
        fillcolor=f"rgba({', '.join(str(int(colour[at : at + 2], 16)) for at in (1, 3, 5))}, 0.16)",
        line={"width": 0},
        hoverinfo="skip",
        name=f"95 % interval, {name}",
        showlegend=False,
        legendgroup=name,
    )


def _without_nan(values: pd.Series) -> list[float | None]:
    return [float(value) if np.isfinite(value) else None for value in values]


def _place(site: str, depth: int) -> str:
    """Return where a point stands: its depth, or the block that it is of."""
    return depth_label(depth) if site else f"block {depth // 2}"
