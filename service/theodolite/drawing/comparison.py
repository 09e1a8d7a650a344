"""The same curve of several runs in one figure, on relative depth."""

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from theodolite.drawing.line_names import name_lines
from theodolite.drawing.panels import BAND, DARK, PALE, Reference, bands, hover_template, hover_texts, reference_line
from theodolite.drawing.style import (
    DEPTH,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    RELATIVE_DEPTH,
    THIRD,
    bare_layout,
    clear,
    depth_ticks,
)
from theodolite.drawing.switches import add_logarithmic_switch, add_switch
from theodolite.drawing.titles import add_about
from theodolite.query.compare import BOUND, ComparedScores, labels
from theodolite.query.curves import title_of
from theodolite.query.profiles import PROFILES
from theodolite.sites import depth_label
from theodolite.store.runs import RANDOM_WEIGHTS

# Readable on white and on near-black; people with any colour vision can distinguish neighbours. Then dashes differ.
_COLOURS = ("#8a63d2", "#d9622b", "#3b82c4", "#2e9e6b", "#c2478e", "#b8862a", "#1a9ba3")
_REFERENCES = {
    "paired_accuracy": (Reference(0.5, "chance: 0.5"),),
    **{
        name: (Reference(0.5, "chance: 0.5"), Reference(BOUND, f"separated: {BOUND}"))
        for name in ("auroc", "score_auroc@scored_by=on_sphere")
    },
}
_DASHES = ("solid", "dash", "dot", "dashdot")
_HEIGHT, _MORE = 520, 240  # pixels of a figure, and of each panel after the first


def comparison_figure(frame: pd.DataFrame, difference: pd.DataFrame | None = None) -> go.Figure:
    """Return a figure with a panel for each statistic, in which each run has a curve, and a band if it has an interval.

    Args:
        frame: a result of `theodolite.query.compare.comparison`.
        difference: a result of `theodolite.query.compare.difference`, which gets the last panel.
    """
    statistics = [(str(name), curves) for name, curves in frame.groupby("statistic", sort=False)]
    names = labels(frame)
    rows = len(statistics) + (difference is not None)
    figure = make_subplots(rows=rows, cols=1, shared_xaxes=True, vertical_spacing=0.05)
    for row, (statistic, curves) in enumerate(statistics, start=1):
        figure.add_traces(_curves(statistic, curves, names), rows=row, cols=1)
        figure.update_yaxes(title=title_of(statistic), exponentformat="power", row=row, col=1)
    if difference is not None:
        figure.add_traces(_difference(difference), rows=rows, cols=1)
        figure.update_yaxes(title="AUROC of the first run<br>minus the second", row=rows, col=1)
    height = _HEIGHT + _MORE * (rows - 1)
    figure.update_layout(**bare_layout(height), hovermode="closest")
    figure.update_xaxes(range=[-0.01, 1.01], dtick=0.1)
    figure.update_xaxes(title=RELATIVE_DEPTH, row=rows, col=1)
    if len(statistics) == 1 and ("variance" in statistics[0][0] or "norm" in statistics[0][0]):
        add_logarithmic_switch(figure, "yaxis", title_of(statistics[0][0]), frame["value"])
    _add_depth_switch(figure, frame, rows)
    titles = " and ".join(title_of(name) for name, _ in statistics)
    return add_about(name_lines(figure), [titles, ", ".join(names.values()) + _positions(frame)])


def _positions(frame: pd.DataFrame) -> str:
    positions = [str(position) for position in frame["position"].dropna().unique()]
    return f"; position {', '.join(positions)}" if positions else ""


def _curves(statistic: str, frame: pd.DataFrame, names: dict[str, str]) -> list[go.Scatter]:
    """Return the curves of one statistic, and its references."""
    traces: list[go.Scatter] = []
    for index, (run_id, curve) in enumerate(frame.groupby("run_id", sort=False)):
        dash, colour = _DASHES[index // len(_COLOURS) % len(_DASHES)], _COLOURS[index % len(_COLOURS)]
        if RANDOM_WEIGHTS in curve["model"].iloc[0]:
            colour = PLAIN  # an untrained model
        name = names[str(run_id)]
        for band in bands(curve["relative_depth"], curve["low"], curve["high"], colour, DARK):
            traces.append(band.update(name=f"95 % interval, {name}", showlegend=False, legendgroup=name))
        depths = [_depth_text(site, depth) for site, depth in zip(curve["site"], curve["depth"], strict=True)]
        line = _line(name, curve, colour, depths, hover_texts(curve["low"], curve["high"]))
        traces.append(line.update(line_dash=dash, legendgroup=name))
    ends = float(frame["relative_depth"].min()), float(frame["relative_depth"].max())
    return traces + [reference_line(one, ends) for one in _REFERENCES.get(statistic, ())]


def _difference(frame: pd.DataFrame) -> list[go.Scatter]:
    """Return the curve of the difference of two runs, with its simultaneous band and a line at 0."""
    x, low, high = frame["relative_depth"], frame["low"], frame["high"]
    traces = [band.update(name=BAND, showlegend=False) for band in bands(x, low, high, THIRD, PALE)]
    labels = [depth_label(depth) for depth in frame["depth"]]
    line = _line("difference", frame, THIRD, labels, hover_texts(low, high, BAND)).update(showlegend=False)
    return [*traces, line, reference_line(Reference(0.0, "equal: 0"), (float(x.min()), float(x.max())))]


def _line(name: str, curve: pd.DataFrame, colour: str, labels: list[str], ends: list[str] | None) -> go.Scatter:
    """Return a curve over relative depth, with the labels of its points and the texts of their intervals."""
    return go.Scatter(
        x=curve["relative_depth"].tolist(),
        y=curve["value"].tolist(),
        mode="lines+markers",
        marker={"size": 4},
        line={"color": colour, "width": 2.2},
        name=name,
        customdata=labels,
        text=ends,
        hovertemplate=hover_template(name, has_band=True),
    )


def _add_depth_switch(figure: go.Figure, frame: pd.DataFrame, rows: int) -> None:
    """Add a switch from relative to absolute depth if all runs have the same number of blocks."""
    later = frame[frame["relative_depth"] > 0]
    lengths = set((later["depth"] / later["relative_depth"]).round().astype(int))
    if len(lengths) != 1:
        return
    (length,) = lengths
    ticks = depth_ticks(frame["depth"].tolist())
    absolute = {**ticks, "tickvals": [tick / length for tick in ticks["tickvals"]]}
    relative = {"tickvals": None, "ticktext": None}
    axes = [f"xaxis{row}" if row > 1 else "xaxis" for row in range(1, rows + 1)]
    on, off = ({axis: dict(ticks) for axis in axes} for ticks in (relative, absolute))
    on[axes[-1]]["title"], off[axes[-1]]["title"] = {"text": RELATIVE_DEPTH}, {"text": DEPTH}
    add_switch(figure, "", "relative depth", is_on=True, on=on, off=off)


def description(statistic: str) -> str:
    """Return the description of a statistic from the registry of analyses."""
    return PROFILES[statistic].description


def width_figure(frame: pd.DataFrame) -> go.Figure | None:
    """Return the median of each run's first curve against d_model, with its range; None if all runs have one width.

    Args:
        frame: a result of `theodolite.query.compare.comparison`.
    """
    frame = frame[frame["statistic"] == frame["statistic"].iloc[0]]
    curves = frame.dropna(subset="value").groupby("run_id", sort=False)
    names, widths = labels(frame), curves["d_model"].first()
    if widths.nunique() < 2:
        return None
    low, middle, high = (curves["value"].quantile(share) for share in (0, 0.5, 1))
    figure = go.Figure()
    figure.add_scatter(
        x=widths.tolist(),
        y=middle.tolist(),
        error_y={"array": (high - middle).tolist(), "arrayminus": (middle - low).tolist(), "thickness": 1},
        mode="markers",
        marker={"size": 8, "color": _COLOURS[0]},
        customdata=[names[str(run_id)] for run_id in widths.index],
        hovertemplate="%{customdata}, d_model %{x}: %{y:.4g}<extra></extra>",
        showlegend=False,
    )
    figure.update_layout(**bare_layout(380), hovermode="closest")
    figure.update_xaxes(title="d_model", type="log", tickvals=sorted(set(widths)), ticktext=sorted(set(widths)))
    statistic = str(frame["statistic"].iloc[0]).replace("_", " ")
    figure.update_yaxes(title=f"{statistic}, median over depth", exponentformat="power")
    return figure


def scores_figure(scores: ComparedScores, frame: pd.DataFrame) -> go.Figure:
    """Return the score of each prompt in the second run against that in the first, with the correlation in each set.

    The intervals of the correlations are by Fisher's transformation. Dashed lines are the midpoints of both sets.

    Args:
        scores: a result of `theodolite.query.compare.compared_scores`.
        frame: a result of `theodolite.query.compare.comparison`, for the names of the runs and the sets.
    """
    figure = go.Figure()
    for side, colour, row in (("positive", POSITIVE, 0), ("negative", NEGATIVE, 1)):
        own = scores.rows[scores.rows["side"] == side]
        figure.add_scatter(
            x=own["first"].tolist(),
            y=own["second"].tolist(),
            name=side,
            mode="markers",
            marker={"size": 7, "color": clear(colour, 0.7)},
            customdata=own["sample"].tolist(),
            hovertemplate="%{customdata}: %{x:.2f}, %{y:.2f}",
            showlegend=False,
        )
        text = f'<span style="color:{colour}">●</span> {side} set: r = {_correlation(own["first"], own["second"])}'
        place = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
        figure.add_annotation(text=text, showarrow=False, yshift=22 - 18 * row, **place)
    dashed = {"color": PLAIN, "width": 1.2, "dash": "dash"}
    figure.add_vline(0, line=dashed)
    figure.add_hline(0, line=dashed)
    figure.update_layout(**bare_layout(_HEIGHT), hovermode="closest", margin_t=50)
    first, second = labels(frame).values()
    add_about(figure, ["Scores of each prompt", f"{first} and {second}, each where it separates best"])
    figure.update_xaxes(title=f"score in {first} ({scores.places[0]})", zeroline=False)
    figure.update_yaxes(title=f"score in {second}<br>({scores.places[1]})", zeroline=False)
    return figure


def _correlation(one: pd.Series, other: pd.Series) -> str:
    """Return a correlation with its 95 % interval as a text."""
    r = float(one.corr(other))
    if len(one) < 4 or not abs(r) < 1:
        return f"{r:.2f}"
    low, high = np.tanh(np.arctanh(r) + np.array([-1, 1]) * 1.96 / np.sqrt(len(one) - 3))
    return f"{r:.2f} [{low:.2f}, {high:.2f}]"


def _depth_text(site: str, depth: int) -> str:
    """Return the label of a point: its depth, or its block for a statistic of whole blocks."""
    return depth_label(depth) if site else f"block {depth // 2}"
