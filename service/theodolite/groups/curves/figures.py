"""The curves of a contrast along depth."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.panels import (
    Line,
    Panel,
    Reference,
    along_paths,
    coinciding_ratio,
    depth_axis,
    panels_figure,
    prompts_text,
    shown_sites,
    with_ends,
)
from theodolite.drawing.style import MAIN, PLAIN, SECOND, THIRD, UNTRAINED, set_colours
from theodolite.query.curves import along_depth
from theodolite.query.published import PublishedCurve, measured_values
from theodolite.sites import HALF_BLOCKS
from theodolite.spec_parts import Label

_VARIANCES = {"variance_mean": "mean variance", "variance_max": "largest variance"}


@dataclass(frozen=True)
class ContrastView:
    """The contrast to draw, the names of its two sets, its position, and whether it is drawn on the sphere."""

    contrast: str
    positive: str
    negative: str
    position: Label
    on_sphere: bool = False

    @property
    def sets(self) -> tuple[str, str]:
        """Both sets, the positive one first."""
        return self.positive, self.negative


def contrast_figure(
    curves: xr.Dataset,
    view: ContrastView,
    published: Sequence[PublishedCurve] = (),
    twin: xr.Dataset | None = None,
    sites: Sequence[str] = (),
) -> go.Figure:
    """Return three panels of a contrast over one depth axis: cosine of means, mean variance and largest variance.

    A variance whose two lines would coincide is drawn as the ratio of the sets.

    Args:
        curves: the results of the analysis `curves`.
        view: contrast, sets and position, and whether activations are scaled to the sphere.
        published: published values of the same model, drawn for unscaled activations only.
        twin: the contrast in the results of the untrained twin, whose debiased cosine is drawn.
        sites: the sites to draw; by default the stream before and within each block.
    """
    sites = sites or shown_sites(curves)
    at = _at(curves, view, sites)
    of_contrast = at.sel(contrast=view.contrast)
    known = [] if view.on_sphere else list(_published_lines(curves, view, published))
    space = str(at["space"].values)
    untrained = None if twin is None else twin.sel(position=view.position, site=list(sites), space=space)
    lines = along_paths(sites, partial(_cosine_lines, of_contrast, untrained))
    location = along_depth(of_contrast["cosine_of_means_debiased_location"])
    cosine = [*lines, *(line for statistic, line in known if statistic == "cosine_of_means")]
    panels = [Panel("cosine of means", cosine, located=location, extreme="smallest")]
    for statistic, title in _VARIANCES.items():
        of_published = [line for name, line in known if name == statistic]
        ratio = None if of_published else _ratio(at, view, statistic)
        if ratio is None:
            lines = [*along_paths(sites, partial(_set_lines, at, view, statistic)), *of_published]
            panels.append(Panel(title, lines, positive=True))
        else:
            name = f"{title}<br>{view.positive} / {view.negative}"
            panels.append(Panel(name, [ratio], [Reference(1, "equal: 1")]))
    return panels_figure(panels, **depth_axis(along_depth(of_contrast["cosine_of_means"])))


def coincide(curves: xr.Dataset, view: ContrastView) -> bool:
    """Return whether `contrast_figure` draws the ratio of a variance instead of a line for each set."""
    at = _at(curves, view, shown_sites(curves))
    return any(_ratio(at, view, statistic) is not None for statistic in _VARIANCES)


def variances_figure(curves: xr.Dataset, view: ContrastView) -> go.Figure:
    """Return both variances of each set along the stream; arguments as in `contrast_figure`."""
    sites = shown_sites(curves)
    at = _at(curves, view, sites)
    panels = [
        Panel(title, along_paths(sites, partial(_set_lines, at, view, statistic)), positive=True)
        for statistic, title in _VARIANCES.items()
    ]
    return panels_figure(panels, **depth_axis(along_depth(at["variance_mean"].isel(set=0))))


def _at(curves: xr.Dataset, view: ContrastView, sites: Sequence[str]) -> xr.Dataset:
    return curves.sel(space="sphere" if view.on_sphere else "raw", position=view.position, site=list(sites))


def _cosine_lines(of_contrast: xr.Dataset, twin: xr.Dataset | None, path: Sequence[str]) -> Iterator[Line]:
    values = of_contrast.sel(site=list(path))
    n = prompts_text(*of_contrast["n_used"].values)
    if twin is not None:
        control = along_depth(twin["cosine_of_means_debiased"].sel(site=list(path)))
        yield Line(UNTRAINED, control["depth"].values, control.values, PLAIN, "dot", markers=False)
    plain = along_depth(values["cosine_of_means"])
    yield Line("plain", plain["depth"].values, plain.values, SECOND, markers=False, n=n)
    yield with_ends("debiased", values["cosine_of_means_debiased"], MAIN, n)


def _set_lines(at: xr.Dataset, view: ContrastView, statistic: str, path: Sequence[str]) -> Iterator[Line]:
    colours = set_colours(at["set"].values.tolist(), at.attrs["contrasts"])
    counts = at["n_used"].sel(contrast=view.contrast).values
    for name, count in zip(view.sets, counts, strict=True):
        curve = along_depth(at[statistic].sel(set=name, site=list(path)))
        yield Line(name, curve["depth"].values, curve.values, colours[name], n=prompts_text(count))


def _ratio(at: xr.Dataset, view: ContrastView, statistic: str) -> Line | None:
    """Return the ratio of both sets' variances along the stream, if their lines would coincide."""
    if not set(at["site"].values.tolist()) <= set(HALF_BLOCKS):
        return None
    one, other = (along_depth(at[statistic].sel(set=name)) for name in view.sets)
    ratio = coinciding_ratio(one.values, other.values)
    n = prompts_text(*at["n_used"].sel(contrast=view.contrast).values)
    return None if ratio is None else Line("ratio of the sets", one["depth"].values, ratio, MAIN, n=n)


def _published_lines(
    curves: xr.Dataset, view: ContrastView, published: Sequence[PublishedCurve]
) -> Iterator[tuple[str, Line]]:
    """Yield the statistic and the line of each published curve, at the depths that the run measured too.

    Lines connect adjacent depths only.
    """
    colours: Mapping[str, str] = set_colours(curves["set"].values.tolist(), curves.attrs["contrasts"])
    for known in published:
        measured = measured_values(curves, known, view.contrast, view.position)
        if known.statistic not in ("cosine_of_means", *_VARIANCES) or not known.values.keys() & measured.keys():
            continue
        depths = [depth for depth in measured if min(known.values) <= depth <= max(known.values)]
        values = np.array([known.values.get(depth, np.nan) for depth in depths])
        name = f"published, {known.prompt_set}" if known.prompt_set else "published, plain"
        colour = colours.get(known.prompt_set or "", THIRD)
        yield known.statistic, Line(name, depths, values, colour, "dash")
