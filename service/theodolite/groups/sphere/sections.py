"""Norm layers: the norms of their inputs, and the ellipsoids on which their outputs lie."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.groups.sphere.figures import axes_figure, pairs_of_norms_map, sphere_figure
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    LARGEST,
    Figure,
    Section,
    colours_of,
    labelled,
    last_position,
    leading_sets,
    listed,
    percent,
    prompt_counts,
    token_notes,
)
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_DEAD = 1e-6  # share of the median |γ|; smaller scales are rounding of 0


def sections(run: Run) -> list[Section]:
    """Return one section: the norm layers at the last position; without prompts only their ellipsoids."""
    sphere = read_group(run, "sphere")
    norms = sphere["norm"].values.tolist()
    if not sphere.sizes["set"]:
        facts, headline = list(_axes_facts(sphere)), _axes_headline(sphere)
        return [Section("Sphere: norm layers", facts, [_axes(sphere, norms)], _maps(sphere), headline=headline)]
    position, colours = last_position(sphere), colours_of(run, sphere)
    all_labels = set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    inputs = labelled(partial(sphere_figure, sphere, position, colours), labels)
    at_position = sphere.sel(position=position, stage="before", summary="mean", quantity="norm")
    return [
        Section(
            f"Sphere: norm layers at position {position} ({prompt_counts(sphere, labels)})",
            [
                *_norm_facts(at_position, labels),
                *_axes_facts(sphere),
            ],
            [
                Figure(
                    "sphere.norms",
                    "Input of each norm layer; the band is the minimum to the maximum of the norm",
                    inputs,
                ),
                _axes(sphere, norms),
            ],
            _maps(sphere),
            notes=[*token_notes(run, labels, position), LARGEST],
            headline=_headline(at_position, leading_sets(run, labels)) or _axes_headline(sphere),
        )
    ]


def _maps(sphere: xr.Dataset) -> list[Figure]:
    """Return maps of the similarity of norm layers, if their scales differ over features."""
    captions = {
        "scale_correlation": "correlation over features between the scales γ of two norm layers",
        "ellipsoid_overlap": "overlap of the ellipsoids of two norm layers",
    }
    return [
        Figure(f"sphere.{name}", caption, partial(pairs_of_norms_map, sphere[name], caption))
        for name, caption in captions.items()
        if np.isfinite(sphere[name]).any()
    ]


def _axes(sphere: xr.Dataset, norms: Sequence[str]) -> Figure:
    shown = list(dict.fromkeys([norms[0], norms[len(norms) // 2], norms[-1]]))
    caption = "Semi-axes of the ellipsoids of the outputs"
    return Figure("sphere.axes", caption, partial(axes_figure, sphere, shown))


def _norm_facts(values: xr.Dataset, labels: Mapping[str, str]) -> Iterator[str]:
    by_set = {label: values.sel(set=name) for name, label in labels.items()}
    measured = {label: of_set for label, of_set in by_set.items() if np.isfinite(of_set["euclidean_norm"]).any()}
    if measured:
        norms = {label: of_set["euclidean_norm"].dropna("norm") for label, of_set in measured.items()}
        first, last = (str(next(iter(norms.values()))["norm"].values[index]) for index in (0, -1))
        ends = {label: f"{float(norm[0]):.3g} and {float(norm[-1]):.3g}" for label, norm in norms.items()}
        yield f"Mean norm of the input of the norm layers “{first}” (first) and “{last}” (last): {listed(ends)}."
    if spreads := {label: text for label, of_set in measured.items() if (text := _spread(of_set))}:
        yield (
            "Largest relative spread of the input's norm over prompts (standard deviation divided by mean): "
            f"{listed(spreads)}."
        )
    if lengths := {label: text for label, of_set in measured.items() if (text := _length_share(of_set))}:
        yield (
            "Share of the input's variance that is variance of its length, over norm layers (the rest is variance of "
            f"its direction): {listed(lengths)}."
        )
    # The residual of a norm layer whose input was not captured also contains rounding, so it is left out.
    captured = np.isfinite(values["euclidean_norm"])
    residual = values["ellipsoid_residual"].where(captured).max("set").dropna("norm")
    if residual.size:
        worst = str(residual["norm"].values[int(residual.values.argmax())])
        yield (
            "Largest distance of a norm layer's output, before its scale and bias, from the sphere of radius √d_model: "
            f"{float(residual.max()):.1e} of the radius, at “{worst}”. The ε in the formula of the norm causes this."
        )


def _length_share(values: xr.Dataset) -> str:
    """Return the share of a set's variance that is variance of its length, against a Gaussian; empty if unknown.

    The variance of the length is proportional to the square of the relative spread, up to the mean length, which both
    have in common.
    """
    share = values["length_variance_share"].dropna("norm")
    if not share.size:
        return ""
    text = f"median {percent(share.median(), 1)}, largest {percent(share.max(), 1)}"
    gaussian = share * (_fitted_spread(values) / values["relative_spread"]) ** 2
    top = str(share["norm"].values[int(share.values.argmax())])
    if not np.isfinite(gaussian.sel(norm=top)):
        return text
    median, there = percent(gaussian.median(), 1), percent(gaussian.sel(norm=top), 1)
    return (
        f"{text}, at “{top}” (a Gaussian with the mean and covariance of {_fitted(values)}: median about {median}, and "
        f"{there} at “{top}”)"
    )


def _fitted_spread(values: xr.Dataset) -> xr.DataArray:
    return values["relative_spread_null"].sel(null="fitted_gaussian")


def _fitted(values: xr.Dataset) -> str:
    """Return the prompts to which the Gaussian is fitted."""
    n_fitted = int(values["n_fitted"])
    return "these prompts" if n_fitted == int(values["n_samples"]) else f"the first {n_fitted} prompts"


def _spread(values: xr.Dataset) -> str:
    """Return the largest relative spread of a set's norms, against two Gaussians; empty if it is not known."""
    spread = values["relative_spread"].dropna("norm")
    if not spread.size:
        return ""
    widest = _widest(spread)
    n, fitted = int(values["n_samples"]), _fitted_spread(values)
    text = f"{percent(spread.max(), 2)} at “{widest}” (n = {n}"
    if np.isfinite(fitted.sel(norm=widest)):
        ratios = (spread / fitted).where(fitted > 0)
        low, middle, high = (float(value) for value in (ratios.min(), ratios.median(), ratios.max()))
        text += (
            f"; there a Gaussian with the mean and covariance of {_fitted(values)} gives "
            f"{percent(fitted.sel(norm=widest), 2)}; over {int(ratios.count())} norm layers, the measured value is "
            f"{low:.2f} to {high:.2f} times that of the Gaussian, median {middle:.2f}"
        )
    return f"{text})"


def _widest(spread: xr.DataArray) -> str:
    """Return the norm layer whose input has the largest relative spread."""
    return str(spread["norm"].values[int(spread.values.argmax())])


def _headline(values: xr.Dataset, names: Sequence[str]) -> str:
    """Return how much the norm of an input varies at most, of the first named set with a spread; empty if unknown."""
    for name in names:
        of_set = values.sel(set=name)
        spread = of_set["relative_spread"].dropna("norm")
        if spread.size:
            fitted = _fitted_spread(of_set).sel(norm=_widest(spread))
            given = f" (Gaussian with the same covariance: {percent(fitted, 2)})" if np.isfinite(fitted) else ""
            varies = f"The norm of a layer's input varies by at most {percent(spread.max(), 2)}"
            return f"{varies} over {name} prompts{given}."
    return ""


def _axes_headline(sphere: xr.Dataset) -> str:
    """Return by how much the semi-axes of the ellipsoids differ; empty if it is unknown."""
    low, _, high = _axes_quantiles(sphere)
    ratios = high / low
    if not np.isfinite(ratios).any():
        return ""
    return (
        "The 95 % quantile of an output ellipsoid's semi-axes is at most "
        f"{np.nanmax(ratios):.2g} times the 5 % quantile (median norm layer: {np.nanmedian(ratios):.2g})."
    )


def _axes_quantiles(sphere: xr.Dataset) -> NDArray[np.float64]:
    """Return the quantiles 5 %, 50 % and 95 % of the semi-axes of each norm layer, (quantile, norm)."""
    axes = sphere["semi_axes"].values
    with warnings.catch_warnings(category=RuntimeWarning, action="ignore"):  # a norm layer of zeros has no quantile
        return np.nanquantile(np.where(axes > 0, axes, np.nan), (0.05, 0.5, 0.95), axis=1)


def _axes_facts(sphere: xr.Dataset) -> Iterator[str]:
    axes, radii = sphere["semi_axes"].values, sphere["scale_radii"].values
    low, middle, high = _axes_quantiles(sphere)
    ratios = high / low
    if np.isfinite(ratios).any():
        widest = int(np.nanargmax(ratios))
        yield (
            "Quantiles (5 %, 50 %, 95 %) of the semi-axes of the ellipsoid of outputs: "
            f"{low[widest]:.3g}, {middle[widest]:.3g} and {high[widest]:.3g} at the norm layer "
            f"“{sphere['norm'].values[widest]}”. There the 95 % quantile is {ratios[widest]:.2g} times the 5 % "
            f"quantile, the largest ratio of {len(ratios)} norm layers (median {np.nanmedian(ratios):.2g}); on a "
            "sphere it is 1."
        )
    yield from _shared_facts(sphere)
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


def _shared_facts(sphere: xr.Dataset) -> Iterator[str]:
    """Yield sentences about how similar the ellipsoids of different norm layers are."""
    pairs = np.triu_indices(sphere.sizes["norm"], 1)

    def median(name: str) -> float:
        values = sphere[name].values[pairs]
        return float(np.nanmedian(values)) if np.isfinite(values).any() else np.nan

    names = ("scale_correlation", "ellipsoid_overlap", "ellipsoid_overlap_permuted")
    correlation, overlap, permuted = (median(name) for name in names)
    if np.isfinite(correlation):
        yield (
            f"Correlation over features between the scales γ of two norm layers: {correlation:.2f} "
            f"({_by_kind(sphere)}; medians over pairs; permuted features give 0 ± "
            f"{sphere.sizes['d_model'] ** -0.5:.2f})."
        )
    if np.isfinite(overlap):
        yield (
            "Overlap of the ellipsoids of two norm layers along a feature (the range that both cover, divided by the "
            f"range that at least one covers): {percent(overlap, 0)} (mean over features, median over pairs; permuted "
            f"features give {percent(permuted, 0)}, equal ellipsoids 100 %). If one ellipsoid is only "
            "larger by a constant factor, the overlap is also below 100 %."
        )
    normals = median("plane_normal_cosine")
    random = 0.674 / sphere.sizes["d_model"] ** 0.5  # the median of |N(0, 1)| is 0.674
    if np.isfinite(normals):
        yield (
            "Median absolute cosine between the normals of the hyperplanes in which the outputs of two layer norms "
            f"lie: {normals:.2f}; one shared plane gives 1, random directions about {random:.2f}."
        )


def _by_kind(sphere: xr.Dataset) -> str:
    """Return the median correlation of the scales of norm layers of the same kind, and of different kinds."""
    kinds = np.array([str(name).rpartition(".")[2] for name in sphere["norm"].values])
    values, first, second = sphere["scale_correlation"].values, *np.triu_indices(len(kinds), 1)
    same = kinds[first] == kinds[second]
    both = {"between norm layers of the same kind": same, "between kinds (attention, MLP, final)": ~same}
    medians = {text: values[first[chosen], second[chosen]] for text, chosen in both.items()}
    return ", ".join(f"{np.nanmedian(one):.2f} {text}" for text, one in medians.items() if np.isfinite(one).any())
