"""The curves of a contrast along depth."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go
import xarray as xr
from plotly.subplots import make_subplots

from theodolite.figures.panels import bands, legend_above
from theodolite.figures.style import (
    COSINE,
    DASHES,
    DEPTH,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    UNTRAINED,
    bare_layout,
    depth_ticks,
    short_site,
    sides_by_side,
)
from theodolite.query.curves import along_depth
from theodolite.query.published import PublishedCurve, measured_values
from theodolite.sites import HALF_BLOCKS, Site, depth_label

_PUBLISHED = "#2a9d8f"  # for cosines; variances have the colour of their set
_ROWS = {"cosine_of_means": 1, "variance_mean": 2, "variance_max": 3}


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
        curves: the result group `curves`.
        view: contrast, sets and position, and whether activations are scaled to the sphere.
        published: published values of the same model, drawn for unscaled activations only.
        twin: the contrast in the result group of the untrained twin, whose debiased cosine is drawn.
    """
    prefix = "on_sphere_" if view.on_sphere else ""
    figure = make_subplots(rows=3, cols=1, shared_xaxes=True, row_heights=[0.38, 0.31, 0.31], vertical_spacing=0.07)
    for site in curves["site"].values.tolist():
        visible = True if site in shown_sites(curves) else "legendonly"
        for trace in _cosine_traces(curves, view, prefix, site):
            figure.add_trace(trace.update(visible=visible), row=1, col=1)
        if twin is not None:
            cosines = twin[f"{prefix}cosine_of_means_debiased"].sel(position=view.position, site=[site])
            line = _line(cosines, UNTRAINED, site, PLAIN, legend="legend", width=1.2)
            figure.add_trace(line.update(mode="lines", visible=visible), row=1, col=1)
        for row, statistic in ((2, "variance_mean"), (3, "variance_max")):
            for index, (name, colour) in enumerate(((view.positive, POSITIVE), (view.negative, NEGATIVE))):
                values = curves[prefix + statistic].sel(set=name, position=view.position, site=[site])
                line = _line(values, name, site, colour, legend="legend2").update(meta={"site": site, "set": name})
                # Both variance graphs share one legend.
                line.update(legendgroup=line.name, showlegend=row == 2, visible=visible, **sides_by_side(index))
                figure.add_trace(line, row=row, col=1)
    if not view.on_sphere:
        for row, line in _published_lines(curves, view, published):
            figure.add_trace(line, row=row, col=1)
    depths = along_depth(curves[f"{prefix}variance_mean"].isel(set=0, position=0))["depth"].values
    _label_axes(figure, depths.tolist())
    return figure


def shown_sites(curves: xr.Dataset) -> list[str]:
    """Return the sites that a figure shows first: resid_pre and resid_mid if measured, or else all sites.

    The legend lists the other sites, which a click shows.
    """
    sites: list[str] = curves["site"].values.tolist()
    return [site for site in sites if site in HALF_BLOCKS] or sites


def _cosine_traces(curves: xr.Dataset, view: ContrastView, prefix: str, site: str) -> Iterator[go.Scatter]:
    def values(suffix: str) -> xr.DataArray:
        cosines = curves[f"{prefix}cosine_of_means{suffix}"]
        return cosines.sel(contrast=view.contrast, position=view.position, site=[site])

    low, high = along_depth(values("_low")), along_depth(values("_high"))
    first = site == curves["site"].values[0]
    group = None if first else f"debiased, {site}"  # a band without a legend entry is shown and hidden with its curve
    for index, band in enumerate(bands(low["depth"].values, low.values, high.values, COSINE)):
        shared = {"legend": "legend", "legendgroup": group, "meta": {"site": site}}
        yield band.update(name="95 % interval", showlegend=first and index == 0, **shared)
    debiased = _line(values("_debiased"), "debiased", site, COSINE, legend="legend")
    yield debiased.update(legendgroup=group)
    yield _line(values(""), "plain", site, PLAIN, legend="legend", width=1.2)


def _published_lines(
    curves: xr.Dataset, view: ContrastView, published: Sequence[PublishedCurve]
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
        colour = {view.positive: POSITIVE, view.negative: NEGATIVE}.get(known.prompt_set or "", _PUBLISHED)
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


def _line(values: xr.DataArray, name: str, site: str, colour: str, legend: str, width: float = 2.2) -> go.Scatter:
    curve, title = along_depth(values), f"{name}, {short_site(site)}"
    depths = curve["depth"].values.tolist()
    return go.Scatter(
        x=depths,
        y=curve.values.tolist(),
        mode="lines+markers",
        marker={"size": 4},
        name=title,
        line={"color": colour, "width": width, "dash": DASHES[Site(site)]},
        customdata=[depth_label(depth) for depth in depths],
        hovertemplate="%{customdata}: %{y:.4g}<extra>" + title + "</extra>",
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
