"""The same curve of several runs in one figure, on relative depth."""

import pandas as pd
import plotly.graph_objects as go

from theodolite.drawing.panels import bands, hover_template, hover_texts, legend_above
from theodolite.drawing.references import Reference, reference_lines
from theodolite.drawing.style import DEPTH, RELATIVE_DEPTH, bare_layout, depth_ticks
from theodolite.drawing.switches import add_logarithmic_switch, add_switch
from theodolite.query.compare import BOUND, labels
from theodolite.query.curves import title_of
from theodolite.query.profiles import PROFILES
from theodolite.sites import depth_label

# Readable on white and on near-black; people with any colour vision can distinguish neighbours. Then dashes differ.
_COLOURS = ("#8a63d2", "#d9622b", "#3b82c4", "#2e9e6b", "#c2478e", "#b8862a", "#1a9ba3", "#8b9098")
_REFERENCES = {
    "paired_accuracy": (Reference(0.5, "chance: 0.5"),),
    **{
        name: (Reference(0.5, "chance: 0.5"), Reference(BOUND, f"separated: {BOUND}"))
        for name in ("auroc", "score_auroc@scored_by=on_sphere")
    },
}
_DASHES = ("solid", "dash", "dot", "dashdot")


def comparison_figure(frame: pd.DataFrame) -> go.Figure:
    """Return a figure with one curve for each run, and its 95 % interval as a band if it has one.

    Args:
        frame: a result of `theodolite.query.compare.comparison`.
    """
    figure = go.Figure()
    names = labels(frame)
    for index, (run_id, curve) in enumerate(frame.groupby("run_id", sort=False)):
        dash, colour = _DASHES[index // len(_COLOURS) % len(_DASHES)], _COLOURS[index % len(_COLOURS)]
        name = names[str(run_id)]
        for band in bands(curve["relative_depth"], curve["low"], curve["high"], colour, opacity=0.16):
            figure.add_trace(band.update(name=f"95 % interval, {name}", showlegend=False, legendgroup=name))
        figure.add_scatter(
            x=curve["relative_depth"].tolist(),
            y=curve["value"].tolist(),
            mode="lines+markers",
            marker={"size": 4},
            line={"color": colour, "width": 2.2, "dash": dash},
            name=name,
            legendgroup=name,
            customdata=[_depth_text(site, depth) for site, depth in zip(curve["site"], curve["depth"], strict=True)],
            text=hover_texts(curve["low"], curve["high"]),
            hovertemplate=hover_template(name, has_band=True),
        )
    statistic = str(frame["statistic"].iloc[0])
    figure.add_traces(reference_lines(_REFERENCES.get(statistic, ()), [(frame["relative_depth"], frame["value"])]))
    figure.update_layout(**bare_layout(520), hovermode="closest", legend=legend_above(1))
    figure.update_xaxes(title=RELATIVE_DEPTH, range=[-0.01, 1.01], dtick=0.1)
    figure.update_yaxes(title=title_of(statistic), exponentformat="power")
    if "variance" in statistic or "norm" in statistic:
        add_logarithmic_switch(figure, "yaxis", title_of(statistic), frame["value"])
    _add_depth_switch(figure, frame)
    return figure


def _add_depth_switch(figure: go.Figure, frame: pd.DataFrame) -> None:
    """Add a switch from relative to absolute depth if all runs have the same number of blocks."""
    later = frame[frame["relative_depth"] > 0]
    lengths = set((later["depth"] / later["relative_depth"]).round().astype(int))
    if len(lengths) != 1:
        return
    (length,) = lengths
    ticks = depth_ticks(frame["depth"].tolist())
    absolute = {**ticks, "tickvals": [tick / length for tick in ticks["tickvals"]], "title": {"text": DEPTH}}
    relative = {"tickvals": None, "ticktext": None, "title": {"text": RELATIVE_DEPTH}}
    add_switch(figure, "", "relative depth", is_on=True, on={"xaxis": relative}, off={"xaxis": absolute})


def description(statistic: str) -> str:
    """Return the description of a statistic from the registry of analyses."""
    return PROFILES[statistic].description


def width_figure(frame: pd.DataFrame) -> go.Figure | None:
    """Return the median of each run's curve against d_model, with its range; None if all runs have the same width.

    Args:
        frame: a result of `theodolite.query.compare.comparison`.
    """
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


def _depth_text(site: str, depth: int) -> str:
    """Return the label of a point: its depth, or its block for a statistic of whole blocks."""
    return depth_label(depth) if site else f"block {depth // 2}"
