"""Norm layers, steps, growth, separation and shape of clouds, as curves over the depth of the model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go
import xarray as xr

from theodolite.figures.panels import Line, Panel, panels_figure
from theodolite.figures.style import (
    COSINE,
    DASHES,
    NEGATIVE,
    PLAIN,
    POSITIVE,
    depth_ticks,
    logarithmic_axis,
    short_site,
)
from theodolite.query.curves import along_depth
from theodolite.sites import Site, depth_label

_DEPTH = "depth along the residual stream"
_LAWS = {"log_linear": ("exponential", NEGATIVE, "dash"), "power_law": ("power law", POSITIVE, "dot")}


def sphere_figure(sphere: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Draw what enters each norm layer: its norm, how that spreads beside a Gaussian's, and how much of it is length.

    Args:
        sphere: the result group.
        position: which position.
        colours: by set.
    """
    at = sphere.sel(position=position)
    labels = [str(label) for label in at["norm"].values]
    places = list(range(len(labels)))

    def line(name: str, of_set: str, ends: tuple[str, str] | None = None) -> Line:
        values = at.sel(set=of_set)
        low, high = (values[end].values.tolist() for end in ends) if ends else (None, None)
        return Line(of_set, places, values[name].values.tolist(), colours[of_set], low=low, high=high)

    gaussian = at["relative_spread_gaussian"].isel(set=0).values.tolist()
    ends = ("norm_before_min", "norm_before_max")
    panels = [
        Panel("norm, least to largest", [line("norm_before_mean", name, ends) for name in colours], logarithmic=True),
        Panel(
            "relative spread",
            [
                *(line("relative_spread", name) for name in colours),
                Line("Gaussian", places, gaussian, PLAIN, "dash", markers=False),
            ],
        ),
        Panel("variance in length", [line("length_variance_share", name) for name in colours]),
    ]
    ticks = _norm_ticks(labels)
    return panels_figure(panels, x_title="norm layer", ticks=ticks, labels=dict(zip(places, labels, strict=True)))


def _norm_ticks(labels: Sequence[str]) -> dict[str, Any]:
    """Return some eight ticks, at norms of one kind."""
    starts = [index for index, label in enumerate(labels) if label.endswith(labels[0].partition(".")[2])]
    kept = starts[:: max(1, round(len(starts) / 8))]
    return {"tickvals": kept, "ticktext": [labels[index] for index in kept]}


def axes_figure(sphere: xr.Dataset, norms: Sequence[str]) -> go.Figure:
    """Draw the semi-axes of some norms' ellipsoids beside √d|γ|.

    Args:
        sphere: the result group.
        norms: labels of norm layers.
    """
    places = list(range(1, sphere.sizes["d_model"] + 1))
    lines = []
    for label, colour in zip(norms, (COSINE, POSITIVE, NEGATIVE), strict=False):
        of_norm = sphere.sel(norm=label)
        for name, said, dash in (("semi_axes", "semi-axes", "solid"), ("scale_radii", "√d|γ|", "dot")):
            values = np.where(of_norm[name].values > 0, of_norm[name].values, np.nan)
            lines.append(Line(f"{label}, {said}", places, values.tolist(), colour, dash, markers=False))
    ticks = logarithmic_axis(places)
    return panels_figure([Panel("length", lines, logarithmic=True)], x_title="axis, the longest first", ticks=ticks)


def travel_figure(travel: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Draw the steps of attention and MLP, and how steps lie to each other and to the stream, by layer.

    Args:
        travel: the result group.
        position: which position.
        colours: by set.
    """
    at = travel.sel(position=position)
    layers = at["layer"].values.tolist()

    def lines(name: str, said: str, dash: str) -> Iterator[Line]:
        for of_set, colour in colours.items():
            values = at[name].sel(set=of_set).values
            if np.isfinite(values).any():
                yield Line(f"{of_set}{said}", layers, values.tolist(), colour, dash)

    norms = [*lines("step_norm_attn", ", attention", "solid"), *lines("step_norm_mlp", ", MLP", "dot")]
    norms = norms or list(lines("step_norm_block", ", block", "solid"))
    panels = [
        Panel("norm of the step", norms, logarithmic=True),
        Panel(
            "cosine",
            [*lines("step_cosine_next", ", next step", "solid"), *lines("step_cosine_stream", ", stream", "dot")],
        ),
    ]
    return panels_figure(panels, x_title="layer", ticks={})


def growth_figure(growth: pd.DataFrame, curves: Mapping[str, xr.DataArray], of_set: str, position: int) -> go.Figure:
    """Draw what grows along the stream with both fitted laws over it.

    Args:
        growth: the table of fits.
        curves: by quantity, (set, site, position, layer).
        of_set: which set.
        position: which position.
    """
    panels, depths = [], [0]
    for quantity, values in curves.items():
        site = str(values["site"].values[0])
        curve = along_depth(values.sel(set=of_set, position=position, site=[site]))
        depths = curve["depth"].values.tolist()
        lines = [Line("measured", depths, _positive(curve.values), COSINE)]
        at = growth[(growth["quantity"] == quantity) & (growth["set"] == of_set) & (growth["position"] == position)]
        for fit in at[at["site"] == site].to_dict("records"):
            name, colour, dash = _LAWS[str(fit["law"])]
            blocks = np.asarray(depths) / 2
            axis = blocks if fit["law"] == "log_linear" else np.log(np.where(blocks > 0, blocks, np.nan))
            fitted = np.where(blocks > 0, np.exp(fit["intercept"] + fit["slope"] * axis), np.nan)
            lines.append(Line(name, depths, fitted.tolist(), colour, dash, markers=False))
        panels.append(Panel(f"{quantity.replace('_', ' ')}, {site.removeprefix('resid_')}", lines, logarithmic=True))
    return panels_figure(panels, x_title=_DEPTH, ticks=depth_ticks(depths), labels=_labels(depths))


def _positive(values: Any) -> list[float]:
    return [float(value) if value > 0 else float("nan") for value in values]


def separation_figure(separation: xr.Dataset, contrast: str, position: int, sites: Sequence[str]) -> go.Figure:
    """Draw how well a contrast's direction tells unseen prompts apart, with 95 % intervals, along depth.

    Args:
        separation: the result group.
        contrast: which contrast.
        position: which position.
        sites: which sites.
    """
    at = separation.sel(contrast=contrast, position=position)
    panels = []
    for name, said in (("auroc", "AUROC"), ("accuracy", "accuracy"), ("fisher_ratio", "Fisher ratio")):
        lines = []
        for site, colour in zip(sites, (COSINE, POSITIVE, NEGATIVE), strict=False):
            value, low, high = (along_depth(at[name + end].sel(site=[site])) for end in ("", "_low", "_high"))
            depths = value["depth"].values.tolist()
            ends = {"low": low.values.tolist(), "high": high.values.tolist()}
            lines.append(Line(short_site(site), depths, value.values.tolist(), colour, DASHES[Site(site)], **ends))
        panels.append(Panel(said, lines))
    depths = along_depth(at["auroc"].sel(site=list(sites)))["depth"].values.tolist()
    return panels_figure(panels, x_title=_DEPTH, ticks=depth_ticks(depths), labels=_labels(depths))


def shape_figure(gram: xr.Dataset, position: int, site: str, colours: Mapping[str, str]) -> go.Figure:
    """Draw the shape of each set's cloud at one site along depth: anisotropy and three measures of dimension.

    Args:
        gram: the result group.
        position: which position.
        site: which site.
        colours: by set.
    """
    at = gram.sel(position=position)
    panels = []
    names = {
        "mean_cosine": "mean cosine",
        "participation_ratio": "participation ratio",
        "effective_rank": "effective rank",
        "intrinsic_dimension": "TwoNN dimension",
    }
    depths: list[int] = []
    for name, said in names.items():
        lines = []
        for prefix, dash in (("", "solid"), ("standardised_", "dot")):
            for of_set, colour in colours.items():
                curve = along_depth(at[prefix + name].sel(set=of_set, site=[site]))
                depths = curve["depth"].values.tolist()
                suffix = ", features standardised" if prefix else ""
                lines.append(Line(of_set + suffix, depths, curve.values.tolist(), colour, dash))
        panels.append(Panel(said, lines, logarithmic=name != "mean_cosine"))
    return panels_figure(panels, x_title=_DEPTH, ticks=depth_ticks(depths), labels=_labels(depths))


def blocks_figure(gram: xr.Dataset, position: int, colours: Mapping[str, str]) -> go.Figure:
    """Draw how alike geometry stays through attention, MLP and block, and how much of the MLP's units are positive.

    Args:
        gram: the result group.
        position: which position.
        colours: by set.
    """
    at = gram.sel(position=position)
    layers = at["layer"].values.tolist()
    panels = []
    groups = {
        "debiased CKA": {"cka_attention": "attention", "cka_mlp": "MLP", "cka_block": "block"},
        "MLP units": {"orthant_occupancy": "positive", "orthant_overlap": "sign shared by two prompts"},
    }
    for title, names in groups.items():
        lines = [
            Line(f"{of_set}, {said}", layers, at[name].sel(set=of_set).values.tolist(), colour, dash)
            for (name, said), dash in zip(names.items(), ("solid", "dot", "dash"), strict=False)
            for of_set, colour in colours.items()
            if np.isfinite(at[name].sel(set=of_set)).any()
        ]
        if lines:
            panels.append(Panel(title, lines))
    return panels_figure(panels, x_title="layer", ticks={})


def _labels(depths: Sequence[int]) -> dict[float, str]:
    return {depth: depth_label(depth) for depth in depths}
