"""Norm layers: the norms that enter them, and the ellipsoids that their outputs lie on."""

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.sphere import axes_figure, sphere_figure
from theodolite.sections.parts import Figure, Section, colours_of, last_position, said_counts
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run


def sections(run: Run) -> list[Section]:
    """Return one section: the norm layers at the last position, or their ellipsoids alone without prompts."""
    sphere = read_group(run, "sphere")
    norms = sphere["norm"].values.tolist()
    if not sphere.sizes["set"]:
        return [Section("Norm layers", list(_axes_facts(sphere)), [_axes(sphere, norms)])]
    position, colours = last_position(sphere), colours_of(run, sphere)
    entering = partial(sphere_figure, sphere, position, colours)
    return [
        Section(
            f"Norm layers, position {position}: {said_counts(sphere, list(colours))} prompts",
            [*_norm_facts(sphere.sel(position=position), list(colours)), *_axes_facts(sphere)],
            [Figure("sphere.norms", "What enters each norm layer", entering), _axes(sphere, norms)],
        )
    ]


def _axes(sphere: xr.Dataset, norms: Sequence[str]) -> Figure:
    shown = list(dict.fromkeys([norms[0], norms[len(norms) // 2], norms[-1]]))
    caption = "Semi-axes of the ellipsoids that outputs lie on"
    return Figure("sphere.axes", caption, partial(axes_figure, sphere, shown))


def _norm_facts(at: xr.Dataset, sets: Sequence[str]) -> Iterator[str]:
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
