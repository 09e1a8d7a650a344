"""The curves of a contrast along depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from theodolite.drawing.brackets import bracket
from theodolite.drawing.panels import bands, hover_template, hover_texts, legend_above, prompts_text, shown_sites
from theodolite.drawing.style import (
    DASHES,
    DEPTH,
    MAIN,
    PLAIN,
    SECOND,
    THIRD,
    UNTRAINED,
    bare_layout,
    depth_ticks,
    set_colours,
    short_site,
    sides_by_side,
    symbol_of,
)
from theodolite.drawing.switches import add_logarithmic_switch
from theodolite.groups.schema import INTERVAL
from theodolite.query.curves import along_depth
from theodolite.query.published import PublishedCurve, measured_values
from theodolite.sites import Site, depth_label

_PUBLISHED = THIRD  # for cosines; variances have the colour of their set
_ROWS = {"cosine_of_means": 1, "variance_mean": 2, "variance_max": 3}
_VARIANCES = {2: "mean variance", 3: "largest variance"}


@dataclass(frozen=True)
class ContrastView:
    """The contrast to draw, the names of its two sets, its position, and whether it is drawn on the sphere."""

    contrast: str
    positive: str
    negative: str
    position: int
    on_sphere: bool = False


def contrast_figure(
    curves: xr.Dataset,
    view: ContrastView,
    published: Sequence[PublishedCurve] = (),
    twin: xr.Dataset | None = None,
) -> go.Figure:
    """Return three graphs of a contrast over one depth axis: cosine of means, mean variance and largest variance.

    Args:
        curves: the results of the analysis `curves`.
        view: contrast, sets and position, and whether activations are scaled to the sphere.
        published: published values of the same model, drawn for unscaled activations only.
        twin: the contrast in the results of the untrained twin, whose debiased cosine is drawn.
    """
    whole, curves = curves, curves.sel(space="sphere" if view.on_sphere else "raw")
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, row_heights=[0.38, 0.31, 0.31], vertical_spacing=0.07)
    colours = set_colours(curves["set"].values.tolist(), curves.attrs["contrasts"])
    counts = curves["n_used"].sel(contrast=view.contrast, position=view.position).values
    of_cosine, of_sets = prompts_text(*counts), [prompts_text(count) for count in counts]
    for site in curves["site"].values.tolist():
        visible = True if site in shown_sites(curves) else "legendonly"
        for trace in _cosine_traces(curves, view, site, of_cosine):
            figure.add_trace(trace.update(visible=visible), row=1, col=1)
        if twin is not None:
            cosines = twin["cosine_of_means_debiased"].sel(position=view.position, site=[site], space=curves["space"])
            line = _line(cosines, UNTRAINED, site, PLAIN, legend="legend", width=1.2)
            figure.add_trace(line.update(mode="lines", visible=visible), row=1, col=1)
        for row, statistic in ((2, "variance_mean"), (3, "variance_max")):
            for index, name in enumerate((view.positive, view.negative)):
                values = curves[statistic].sel(set=name, position=view.position, site=[site])
                line = _line(values, name, site, colours[name], legend="legend2", n=of_sets[index])
                line.update(meta={"site": site, "set": name})
                # Both variance graphs share one legend.
                line.update(legendgroup=line.name, showlegend=row == 2, visible=visible, **sides_by_side(index))
                figure.add_trace(line, row=row, col=1)
    chosen = curves.sel(contrast=view.contrast, position=view.position, site=shown_sites(curves))
    debiased = chosen["cosine_of_means_debiased"]
    heights = np.concatenate([np.ravel(one) for one in (chosen["cosine_of_means"], debiased.sel(estimate=[*INTERVAL]))])
    for line in bracket(along_depth(chosen["cosine_of_means_debiased_location"]), heights, smallest=True):
        figure.add_trace(line, row=1, col=1)
    if not view.on_sphere:
        for row, line in _published_lines(whole, view, published, colours):
            figure.add_trace(line, row=row, col=1)
    depths = along_depth(curves["variance_mean"].isel(set=0, position=0))["depth"].values
    _label_axes(figure, depths.tolist())
    for row, label in _VARIANCES.items():
        drawn = [trace.y for trace in figure.data if trace.yaxis == f"y{row}" and trace.visible is True]
        add_logarithmic_switch(figure, f"yaxis{row}", label, np.concatenate([np.asarray(y, np.float64) for y in drawn]))
    return figure


def _cosine_traces(curves: xr.Dataset, view: ContrastView, site: str, n: str) -> Iterator[go.Scatter]:
    values = curves.sel(contrast=view.contrast, position=view.position, site=[site])
    low, high = (along_depth(values["cosine_of_means_debiased"], end) for end in ("low", "high"))
    first = site == curves["site"].values[0]
    group = None if first else f"debiased, {site}"  # a band without a legend entry is shown and hidden with its curve
    for index, band in enumerate(bands(low["depth"].values, low.values, high.values, MAIN)):
        shared = {"legend": "legend", "legendgroup": group, "meta": {"site": site}}
        yield band.update(name="95 % interval", showlegend=first and index == 0, **shared)
    interval = hover_texts(low, high)
    debiased = _line(
        values["cosine_of_means_debiased"], "debiased", site, MAIN, legend="legend", n=n, interval=interval
    )
    yield debiased.update(legendgroup=group)
    yield _line(values["cosine_of_means"], "plain", site, SECOND, legend="legend", width=1.2, n=n)


def _published_lines(
    curves: xr.Dataset, view: ContrastView, published: Sequence[PublishedCurve], colours: Mapping[str, str]
) -> Iterator[tuple[int, go.Scatter]]:
    """Yield the row and the line of each published curve, at the depths that the run measured too.

    Lines connect adjacent depths only.
    """
    named: set[str] = set()  # the variances share one legend entry, since their legend is long
    for known in published:
        measured = measured_values(curves, known, view.contrast, view.position)
        if known.statistic not in _ROWS or not known.values.keys() & measured.keys():
            continue
        depths = [depth for depth in measured if min(known.values) <= depth <= max(known.values)]
        name = "published, variance" if known.prompt_set else "published, plain"
        colour = colours.get(known.prompt_set or "", _PUBLISHED)
        line = go.Scatter(
            x=depths,
            y=[known.values.get(depth) for depth in depths],
            mode="lines+markers",
            marker={"size": 5, "symbol": "diamond-open"},
            name=name,
            line={"color": colour, "width": 1.2, "dash": "dash"},
            customdata=[depth_label(depth) for depth in depths],
            hovertemplate="%{customdata}: %{y:.4g}<extra>published, " + (known.prompt_set or "plain") + "</extra>",
            legend="legend2" if known.prompt_set else "legend",
            legendgroup=name,
            showlegend=name not in named,
        )
        named.add(name)
        yield _ROWS[known.statistic], line


def _line(
    values: xr.DataArray,
    name: str,
    site: str,
    colour: str,
    legend: str,
    width: float = 2.2,
    n: str = "",
    interval: Sequence[str] | None = None,
) -> go.Scatter:
    curve, title = along_depth(values), f"{name}, {short_site(site)}"
    depths = curve["depth"].values.tolist()
    return go.Scatter(
        x=depths,
        y=curve.values.tolist(),
        mode="lines+markers",
        marker={"size": 4, "symbol": symbol_of(colour)},
        name=title,
        line={"color": colour, "width": width, "dash": DASHES[Site(site)]},
        customdata=[depth_label(depth) for depth in depths],
        text=interval,
        hovertemplate=hover_template(title, n, has_band=interval is not None),
        legend=legend,
        meta={"site": site},  # the page shows and hides traces by site and set
    )


def _label_axes(figure: go.Figure, depths: list[int]) -> None:
    figure.update_xaxes(**depth_ticks(depths))
    figure.update_xaxes(title=DEPTH, row=3, col=1)
    for row, title in enumerate(("cosine of means", "mean variance", "largest variance"), start=1):
        figure.update_yaxes(title=title, row=row, col=1, exponentformat="power")
    figure.update_layout(
        **bare_layout(900),
        hovermode="x",
        legend=legend_above(figure.layout.yaxis.domain[1]),
        legend2=legend_above(figure.layout.yaxis2.domain[1]),
    )
