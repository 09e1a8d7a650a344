"""Norm layers: the norms of their inputs, and the ellipsoids on which their outputs lie."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go
import xarray as xr

from theodolite.drawing.maps import pair_map
from theodolite.drawing.panels import Line, Panel, panels_figure, prompts_text
from theodolite.drawing.style import MAIN, PLAIN, SECOND, THIRD, logarithmic_axis
from theodolite.groups.sphere.record import NULL
from theodolite.spec_parts import Label


def sphere_figure(sphere: xr.Dataset, position: Label, colours: Mapping[str, str]) -> go.Figure:
    """Return the input of each norm layer: its norm, the spread of the norm, and the share of variance in length.

    Args:
        sphere: the results.
        position: token position.
        colours: colour of each set.
    """
    selected = sphere.sel(position=position, quantity="norm")
    norms = selected["euclidean_norm"].sel(stage="before")
    labels: dict[float, str] = dict(enumerate(selected["norm"].values.tolist()))
    indices = list(labels)

    def line(
        set_name: str, values: xr.DataArray, low: xr.DataArray | None = None, high: xr.DataArray | None = None
    ) -> Line:
        n, band = prompts_text(selected["n_samples"].sel(set=set_name)), "minimum to maximum"
        return Line(set_name, indices, values, colours[set_name], low=low, high=high, n=n, band=band)

    def norm(set_name: str) -> Line:
        mean, low, high = (norms.sel(set=set_name, summary=one) for one in ("mean", "min", "max"))
        return line(set_name, mean, low, high)

    isotropic, fitted = (selected["relative_spread_null"].sel(null=one) for one in NULL)
    isotropic = isotropic.isel(set=0)
    gaussians = [Line("standard Gaussian", indices, isotropic, PLAIN, "dash", markers=False)]
    gaussians += [
        Line(f"{name}, fitted Gaussian", indices, fitted.sel(set=name), colour, "dash", markers=False)
        for name, colour in colours.items()
        if np.isfinite(fitted.sel(set=name)).any()
    ]
    spreads, shares = (
        [line(one, selected[name].sel(set=one)) for one in colours]
        for name in ("relative_spread", "length_variance_share")
    )
    panels = [
        Panel("norm", [norm(name) for name in colours], positive=True),
        Panel("relative spread", [*spreads, *gaussians]),
        Panel("share of variance in length", shares),
    ]
    shown = _ticks(list(labels.values()))
    ticks = {"tickvals": shown, "ticktext": [labels[index].partition(".")[0] for index in shown]}
    return panels_figure(panels, x_title="block of the norm layer", ticks=ticks, labels=labels)


def _ticks(labels: Sequence[str]) -> list[int]:
    """Return the indices of about eight norm layers of the first kind."""
    kind = labels[0].partition(".")[2]
    starts = [index for index, label in enumerate(labels) if label.endswith(kind)]
    return starts[:: max(1, round(len(starts) / 8))]


def axes_figure(sphere: xr.Dataset, norms: Sequence[str]) -> go.Figure:
    """Return the semi-axes of the ellipsoids of some norm layers, and √d|γ| for comparison.

    Args:
        sphere: the results.
        norms: labels of norm layers.
    """
    ranks = list(range(1, sphere.sizes["d_model"] + 1))
    lines = []
    for label, colour in zip(norms, (MAIN, SECOND, THIRD), strict=False):
        norm = sphere.sel(norm=label)
        for name, title, dash in (("semi_axes", "semi-axes", "solid"), ("scale_radii", "√d|γ|", "dot")):
            lengths = norm[name].where(norm[name] > 0)
            lines.append(Line(f"{label}, {title}", ranks, lengths, colour, dash, markers=False))
    title = "semi-axis, in descending order of length"
    return panels_figure([Panel("length", lines, positive=True)], x_title=title, ticks=logarithmic_axis(ranks))


def pairs_of_norms_map(values: xr.DataArray, title: str) -> go.Figure:
    """Return a map of a number of each pair of norm layers, in the order of the stream.

    Args:
        values: (norm, norm_other).
        title: name of the number, above the map.
    """
    labels = values["norm"].values.tolist()
    pairs = [[f"{one} and {other}" for other in labels] for one in labels]
    hover: dict[str, Any] = {"customdata": pairs, "hovertemplate": "%{customdata}: %{z:.3f}"}
    figure = pair_map(values.values, title, axes=("block of the norm layer",) * 2, **hover)
    shown = _ticks(labels)
    ticks = {"tickvals": shown, "ticktext": [labels[index].partition(".")[0] for index in shown]}
    figure.update_xaxes(**ticks)
    figure.update_yaxes(**ticks)
    return figure
