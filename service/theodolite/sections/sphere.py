"""Norm layers and on the way through the blocks."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pandas as pd
import xarray as xr

from theodolite.figures.gram import axes_figure, growth_figure, sphere_figure, travel_figure
from theodolite.sections.parts import Figure, Section, colours_of, last_position, said_counts
from theodolite.sites import Site
from theodolite.store.result_reader import read_finished_table, read_group
from theodolite.store.runs import Run

_AIC_THAT_COUNTS = 2.0  # below that two fits are as good (Burnham and Anderson 2002)
_QUANTITIES = {"norm_mean": "The norm", "variance_mean": "The mean variance", "variance_max": "The largest variance"}


def sphere_section(run: Run) -> Section:
    """Return what is seen at the norm layers."""
    sphere = read_group(run, "sphere")
    norms = sphere["norm"].values.tolist()
    if not sphere.sizes["set"]:
        return Section("Norm layers", list(_axes_facts(sphere)), [_axes(sphere, norms)])
    position, colours = last_position(sphere), colours_of(run, sphere)
    return Section(
        f"Norm layers, position {position}: {said_counts(sphere, list(colours))} prompts",
        [*_sphere_facts(sphere.sel(position=position), list(colours)), *_axes_facts(sphere)],
        [
            Figure("sphere.norms", "What enters each norm layer", lambda: sphere_figure(sphere, position, colours)),
            _axes(sphere, norms),
        ],
    )


def _axes(sphere: xr.Dataset, norms: Sequence[str]) -> Figure:
    shown = list(dict.fromkeys([norms[0], norms[len(norms) // 2], norms[-1]]))
    caption = "Semi-axes of the ellipsoids that outputs lie on"
    return Figure("sphere.axes", caption, lambda: axes_figure(sphere, shown))


def _sphere_facts(at: xr.Dataset, sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        values = at.sel(set=name)
        measured = values["norm_before_mean"].dropna("norm")
        if not measured.size:
            continue
        first, last = (str(measured["norm"].values[place]) for place in (0, -1))
        spread = values["relative_spread"].dropna("norm")
        text = (
            f"{name}: the norm of what enters goes from {float(measured[0]):.3g} at {first} to "
            f"{float(measured[-1]):.3g} at {last}"
        )
        if spread.size:
            widest = str(spread["norm"].values[int(spread.values.argmax())])
            gaussian = float(values["relative_spread_gaussian"].sel(norm=widest))
            share = float(spread.max()) / gaussian
            text += (
                f"; it spreads most at {widest}, by {float(spread.max()):.2%} of its mean, {share:.2g} times what a "
                f"Gaussian of as many dimensions would ({gaussian:.2%})"
            )
        lengths = values["length_variance_share"].dropna("norm")
        if lengths.size:
            text += (
                f". Of the variance, {float(lengths.median()):.1%} in the median over norm layers (at most "
                f"{float(lengths.max()):.1%}) is in length, the rest in direction"
            )
        yield f"{text}."
    read = at["ellipsoid_residual"].where(np.isfinite(at["norm_before_mean"]))  # of others, rounding is in it too
    residual = read.max("set").dropna("norm")
    if residual.size:
        worst = str(residual["norm"].values[int(residual.values.argmax())])
        yield (
            f"Outputs, before scale and bias, lie on the sphere of radius √d but for a share of "
            f"{float(residual.max()):.1e} at most, at {worst}: what ε takes away."
        )


def _axes_facts(sphere: xr.Dataset) -> Iterator[str]:
    axes, radii = sphere["semi_axes"].values, sphere["scale_radii"].values
    longest, shortest = axes.max(axis=1), np.where(axes > 0, axes, np.inf).min(axis=1)
    stretched = int(np.nanargmax(np.where(np.isfinite(shortest), longest / shortest, np.nan)))
    yield (
        f"The most stretched ellipsoid is that of {sphere['norm'].values[stretched]}: its longest semi-axis is "
        f"{longest[stretched]:.3g}, its shortest {shortest[stretched]:.2g}."
    )
    apart = np.abs(axes[:, :-1] - radii[:, :-1]) / radii[:, :1]
    if apart.max() > 0:
        yield (
            f"Semi-axes differ from √d|γ| by at most {apart.max():.1e} of the longest, for the norms take out the mean."
        )


def travel_section(run: Run) -> Section:
    """Return what is seen of steps, and of growth along the stream."""
    travel, growth = read_group(run, "travel"), read_finished_table(run, "growth")
    position, colours = last_position(travel), colours_of(run, travel)
    figures = [Figure("travel.steps", "Steps, by layer", lambda: travel_figure(travel, position, colours))]
    moments, curves = read_group(run, "moments"), read_group(run, "curves")
    quantities = {"norm_mean": moments["norm_mean"]}
    quantities |= {name: curves[name] for name in ("variance_mean", "variance_max")}
    figures += [
        Figure(
            f"travel.growth.{name}",
            f"Growth along the stream, {name}",
            partial(growth_figure, growth, quantities, name, position),
        )
        for name in list(colours)[:1]
    ]
    return Section(
        f"Travel and growth, position {position}: {said_counts(travel, list(colours))} prompts",
        [*_travel_facts(travel.sel(position=position), list(colours)), *_growth_facts(growth, list(colours), position)],
        figures,
    )


def _travel_facts(at: xr.Dataset, sets: Sequence[str]) -> Iterator[str]:
    for name in sets:
        values = at.sel(set=name)
        if np.isfinite(values["path_ratio_std"]):
            yield (
                f"{name}: the way through the blocks is {float(values['path_ratio']):.2f} ± "
                f"{float(values['path_ratio_std']):.2f} times as long as the displacement (mean and standard deviation "
                "over prompts)."
            )
        cosines = values["step_cosine_next"].dropna("layer")
        if cosines.size:
            back = int((cosines < 0).sum())
            yield (
                f"{name}: successive blocks' steps have a cosine of {float(cosines.mean()):.2f} on average; "
                f"{back} of {cosines.size} times the next step goes against the one before."
            )


def _growth_facts(growth: pd.DataFrame, sets: Sequence[str], position: int) -> Iterator[str]:
    """Say of each quantity, where blocks begin, which law fits it better in each set, and by how much."""
    at = growth[(growth["position"] == position) & growth["set"].isin(sets)]
    sites = at["site"].unique().tolist()
    site = Site.RESID_PRE if Site.RESID_PRE in sites else next(iter(sites), "")
    for quantity, fits in at[at["site"] == site].groupby("quantity", sort=False):
        verdicts = "; ".join(f"{name}, {_verdict(of_set)}" for name, of_set in fits.groupby("set", sort=False))
        yield f"{_QUANTITIES[str(quantity)]} at {site} by depth: {verdicts}."


def _verdict(fits: pd.DataFrame) -> str:
    """Say which of two fits is better, how it grows, and on how many layers that rests."""
    exponential, power = (fits[fits["law"] == law].iloc[0] for law in ("log_linear", "power_law"))
    n, r_squared = int(exponential["n"]), [exponential["r_squared"], power["r_squared"]]
    if np.isnan(r_squared[0]):
        return f"no change (n = {n} layers)"
    by = exponential["aic"] - power["aic"]
    if not abs(by) >= _AIC_THAT_COUNTS:  # of two perfect fits the difference is no number
        return (
            f"an exponential and a power law fit equally well (R² {r_squared[0]:.3f} and {r_squared[1]:.3f}, n = {n})"
        )
    if by < 0:
        better, how = "an exponential", f"times {np.exp(exponential['slope']):.3g} in each block"
    else:
        better, how = "a power law", f"depth to the {power['slope']:.2f}"
        r_squared.reverse()
    return (
        f"{better} fits better, {how} (AIC less by {abs(by):.0f}; R² {r_squared[0]:.3f} against {r_squared[1]:.3f}; "
        f"n = {n} layers)"
    )
