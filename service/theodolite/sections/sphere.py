"""Norm layers: the norms of their inputs, and the ellipsoids on which their outputs lie."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.sphere import axes_figure, sphere_figure
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import Figure, Section, colours_of, labelled, last_position, percent, prompt_counts
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_DEAD = 1e-6  # share of the median |γ|; smaller scales are rounding of 0


def sections(run: Run) -> list[Section]:
    """Return one section: the norm layers at the last position; without prompts only their ellipsoids."""
    sphere = read_group(run, "sphere")
    norms = sphere["norm"].values.tolist()
    if not sphere.sizes["set"]:
        return [Section("Sphere: norm layers", list(_axes_facts(sphere)), [_axes(sphere, norms)])]
    position, colours = last_position(sphere), colours_of(run, sphere)
    all_labels = set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    inputs = labelled(partial(sphere_figure, sphere, position, colours), labels)
    return [
        Section(
            f"Sphere: norm layers at position {position} ({prompt_counts(sphere, labels)})",
            [*_norm_facts(sphere.sel(position=position), labels), *_axes_facts(sphere)],
            [
                Figure(
                    "sphere.norms",
                    "Input of each norm layer; the band is the minimum to the maximum of the norm",
                    inputs,
                ),
                _axes(sphere, norms),
            ],
        )
    ]


def _axes(sphere: xr.Dataset, norms: Sequence[str]) -> Figure:
    shown = list(dict.fromkeys([norms[0], norms[len(norms) // 2], norms[-1]]))
    caption = "Semi-axes of the ellipsoids of the outputs"
    return Figure("sphere.axes", caption, partial(axes_figure, sphere, shown))


def _norm_facts(values: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    for name, label in labels.items():
        sentences = list(_input_sentences(values.sel(set=name)))
        if sentences:
            yield f"{label}: {' '.join(sentences)}"
    # The residual of a norm layer whose input was not captured also contains rounding, so it is left out.
    captured = np.isfinite(values["norm_before_mean"])
    residual = values["ellipsoid_residual"].where(captured).max("set").dropna("norm")
    if residual.size:
        worst = str(residual["norm"].values[int(residual.values.argmax())])
        yield (
            "Largest distance of an output, before scale and bias, from the sphere of radius √d: "
            f"{float(residual.max()):.1e} of the radius, at the norm layer “{worst}”. Its ε causes the distance."
        )


def _input_sentences(values: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the norms that enter the norm layers, for one set."""
    norms = values["norm_before_mean"].dropna("norm")
    if not norms.size:
        return
    first, last = (str(norms["norm"].values[index]) for index in (0, -1))
    yield (
        f"the input of the first norm layer (“{first}”) has a mean norm of {float(norms[0]):.3g}, that of the last "
        f"(“{last}”) {float(norms[-1]):.3g}."
    )
    yield from _spread_sentences(values)
    lengths = values["length_variance_share"].dropna("norm")
    if lengths.size:
        yield (
            f"Share of the input's variance that is variance of its length: {percent(lengths.median(), 1)} (median "
            f"over norm layers), at most {percent(lengths.max(), 1)}; the rest is variance of its direction."
        )


def _spread_sentences(values: xr.Dataset) -> Iterator[str]:
    """Yield sentences about the spread of the norm, against two Gaussians, for one set."""
    spread = values["relative_spread"].dropna("norm")
    if not spread.size:
        return
    widest = str(spread["norm"].values[int(spread.values.argmax())])
    isotropic, fitted = (values[f"relative_spread_gaussian{suffix}"] for suffix in ("", "_fitted"))
    yield (
        f"Largest relative standard deviation of the input's norm over prompts: {percent(spread.max(), 2)}, at the "
        f"norm layer “{widest}”; a standard Gaussian with d_model dimensions has {_against(spread, isotropic, widest)}."
    )
    if np.isfinite(fitted.sel(norm=widest)):
        yield (
            f"A Gaussian with the mean and the covariance of {int(values['n_fitted'])} of these prompts has "
            f"{_against(spread, fitted, widest)}."
        )


def _against(spread: xr.DataArray, gaussian: xr.DataArray, widest: str) -> str:
    """Return a Gaussian's spread at one norm layer, and the measured one as a multiple, there and over norm layers."""
    ratios = spread / gaussian
    return (
        f"{percent(gaussian.sel(norm=widest), 2)} (the measured value is {float(ratios.sel(norm=widest)):.2f} times "
        f"that; the median of this ratio over norm layers is {float(ratios.where(gaussian > 0).median()):.2f})"
    )


def _axes_facts(sphere: xr.Dataset) -> Iterator[str]:
    axes, radii = sphere["semi_axes"].values, sphere["scale_radii"].values
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # a norm layer of zeros has no quantile
        low, middle, high = np.nanquantile(np.where(axes > 0, axes, np.nan), (0.05, 0.5, 0.95), axis=1)
    ratios = high / low
    if np.isfinite(ratios).any():
        widest = int(np.nanargmax(ratios))
        yield (
            "Quantiles (5 %, 50 %, 95 %) of the semi-axes of the ellipsoid of outputs: "
            f"{low[widest]:.3g}, {middle[widest]:.3g} and {high[widest]:.3g} at the norm layer "
            f"“{sphere['norm'].values[widest]}”. There the last is {ratios[widest]:.2g} times the first, the largest "
            f"ratio of {len(ratios)} norm layers (median {np.nanmedian(ratios):.2g}); on a sphere it is 1."
        )
    dead = radii <= _DEAD * np.median(radii, axis=1, keepdims=True)
    yield (
        f"Dead features (|γ| of at most {_DEAD:g} of the norm layer's median): {int(dead.sum())} of {dead.size} in "
        f"{len(radii)} norm layers."
    )
    difference = np.abs(axes[:, :-1] - radii[:, :-1]) / radii[:, :1]
    if difference.max() > 0:
        yield (
            f"Semi-axes differ from √d|γ| by at most {difference.max():.1e} of the longest, because the norms subtract "
            "the mean."
        )
