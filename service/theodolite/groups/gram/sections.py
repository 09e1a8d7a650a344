"""The shape of each set's point cloud, and the similarity of layers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.drawing.maps import layer_map, scale_limits
from theodolite.drawing.panels import shown_sites
from theodolite.groups.gram.figures import blocks_figure, shape_figure
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    LARGEST,
    MISSING,
    Figure,
    Section,
    Table,
    colours_of,
    labelled,
    last_position,
    leading_sets,
    listed,
    percent,
    prompt_counts,
    token_notes,
)
from theodolite.spec_parts import Label
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_FROM_CURVES = ("cosine_of_means", "difference_norm")  # columns that the analysis `curves` stores
_ONE_DIRECTION = 2.0  # below this participation ratio, most variance lies in one direction
_STEPS = {"attention": "attention", "mlp": "the MLP", "block": "the whole block"}
_COLUMNS: Mapping[str, tuple[str, ...]] = {  # an array, and its labels of `centre` and `prompt_side`
    "cos(P, N)": ("cosine_of_means",),
    "cos(P*, N*)": ("cosine_of_medians",),
    "cos(P, r)": ("cosine_with_difference", "mean", "positive"),
    "cos(P*, r*)": ("cosine_with_difference", "median", "positive"),
    "cos(N, r)": ("cosine_with_difference", "mean", "negative"),
    "cos(N*, r*)": ("cosine_with_difference", "median", "negative"),
    "|P|": ("norm_of_centre", "mean", "positive"),
    "|P*|": ("norm_of_centre", "median", "positive"),
    "|N|": ("norm_of_centre", "mean", "negative"),
    "|N*|": ("norm_of_centre", "median", "negative"),
    "|r|": ("difference_norm",),
    "|r*|": ("difference_of_medians",),
    "silhouette": ("silhouette",),
}


CKA_NOTE = (
    "a debiased CKA is 1 for equal geometry, and 0 for independent activations. A step is output minus input. There "
    "are two controls: the CKA between the input and the sum of the input and another prompt's step, and the CKA "
    "between the input and the step alone"
)
_ROTATED = (
    "samples rotated at random: 10 random rotations mix the samples with each other, and keep their mean and "
    "covariance; their TwoNN dimension is stated as mean ± standard deviation"
)
_SIZES = "participation ratio and TwoNN dimension depend on n, so compare sets only if their n is equal"


def sections(run: Run) -> list[Section]:
    """Return one section: shape and similarity of each set at one site and the last position."""
    gram = read_group(run, "gram")
    position, colours = last_position(gram), colours_of(run, gram)
    site, all_labels = shown_sites(gram)[0], set_labels(run, position)
    labels = {name: all_labels[name] for name in colours}
    shape = labelled(partial(shape_figure, gram, position, site, colours), labels)
    blocks = labelled(partial(blocks_figure, gram, position, colours), labels)
    figures = [
        Figure("gram.shape", f"Shape of each set at {site}", shape),
        Figure(
            "gram.blocks",
            "Debiased CKA between the input of attention, MLP or block and its output, and between the input and its "
            "step",
            blocks,
        ),
    ]
    similarity = gram["linear_cka_debiased"].sel(site=site, position=position, space="raw")
    limits = scale_limits(*(similarity.sel(set=name).values for name in labels))
    maps = [_map(name, label, similarity.sel(set=name), limits) for name, label in labels.items()]
    facts = list(_shape_facts(gram.sel(position=position), site, labels))
    title = f"Shape and similarity at position {position} ({prompt_counts(gram, labels)})"
    tables, notes = _mean_tables(run, gram, site, position, all_labels), token_notes(run, labels, position)
    notes += [LARGEST, _SIZES, _ROTATED, CKA_NOTE]
    headline = _headline(gram.sel(position=position, site=site), leading_sets(run, labels))
    return [Section(title, facts, figures, maps, tables, notes, headline=headline)]


def _map(name: str, label: str, similarity: xr.DataArray, limits: tuple[float, float]) -> Figure:
    caption = f"debiased CKA between layers, {label}"
    return Figure(f"gram.cka.{name}", caption, partial(layer_map, similarity, caption, limits=limits))


def _shape_facts(values: xr.Dataset, site: str, labels: Mapping[str, str]) -> Iterator[str]:
    by_set = {label: values.sel(set=name, site=site) for name, label in labels.items()}
    raw = {label: of_set.sel(space="raw") for label, of_set in by_set.items()}
    varied = {label: of_set for label, of_set in raw.items() if np.isfinite(of_set["participation_ratio"]).any()}
    if constant := [label for label in by_set if label not in varied]:
        yield (
            f"No layer of {' or '.join(constant)} at {site} has a variance: a variance needs at least two different "
            "prompts."
        )
    if varied:
        ratios = {label: _participation_ratio(by_set[label]) for label in varied}
        yield f"Largest participation ratio over layers at {site}: {listed(ratios)}."
        # Where all prompts have the same input, the cosine is 1 by construction.
        cosines = {
            label: of_set["mean_cosine"].where(of_set["participation_ratio"].notnull())
            for label, of_set in varied.items()
        }
        ranges = {label: f"{float(one.min()):.2f} to {float(one.max()):.2f}" for label, one in cosines.items()}
        yield f"Mean cosine between two prompts, over layers at {site}: {listed(ranges)}."
    if dimensions := {label: text for label, of_set in varied.items() if (text := _dimension(of_set))}:
        yield (f"Largest TwoNN dimension over layers at {site}: {listed(dimensions)}.")
    yield from _similarity_facts(values.sel(space="raw"), site, labels)
    yield from _orthant_facts(values.sel(set=list(labels)))


def _headline(values: xr.Dataset, names: Sequence[str]) -> str:
    """Return the largest participation ratio of each named set, beside that of Gaussian samples."""
    ratios = values["participation_ratio"].sel(set=list(names), space="raw").max("layer").dropna("set")
    if not ratios.size:
        return f"No layer of {' and '.join(names)} has a variance, so nothing can be concluded." if names else ""
    largest = ", ".join(f"{name} {ratio:.1f}" for name, ratio in zip(ratios["set"].values, ratios.values, strict=True))
    gaussian = values["participation_ratio_gaussian"].sel(set=ratios["set"]).dropna("set").values
    given = " and ".join(dict.fromkeys(f"{one:.0f}" for one in gaussian))
    control = f"; isotropic Gaussian samples of the same size give {given}" if given else ""
    return f"Largest participation ratio over layers: {largest}{control}."


def _participation_ratio(values: xr.Dataset) -> str:
    """Return the largest participation ratio of one set, where it is, and what it is compared with."""
    ratios = values["participation_ratio"]
    ratio = ratios.sel(space="raw").dropna("layer")
    top = int(ratio["layer"][int(ratio.values.argmax())])
    standardised = float(ratios.sel(space="standardised", layer=top))
    return (
        f"{float(ratio.max()):.1f} in layer {top} ({standardised:.1f} with standardised features; an "
        f"isotropic Gaussian sample of the same size gives {float(values['participation_ratio_gaussian']):.0f}; "
        f"n = {int(values['n_samples'])})"
    )


def _dimension(values: xr.Dataset) -> str:
    """Return the largest TwoNN dimension of one set, against Gaussian samples; empty if it is not known."""
    measured = values["intrinsic_dimension"].values
    gaussian, sd = values["intrinsic_dimension_null"].sel(null=["mean", "sd"]).values.T
    known = np.isfinite(measured + gaussian)
    if not known.any():
        return ""
    top = int(np.nanargmax(np.where(known, measured, np.nan)))
    shares = measured[known] / gaussian[known]
    return (
        f"{measured[top]:.1f} in layer {int(values['layer'][top])} (samples rotated at random give "
        f"{gaussian[top]:.1f} ± {sd[top]:.1f}; over layers, the estimate is {shares.min():.2f} to {shares.max():.2f} "
        f"times that of rotated samples, n = {int(values['n_samples'])})"
    )


def _similarity_facts(values: xr.Dataset, site: str, labels: Mapping[str, str]) -> Iterator[str]:
    """Yield sentences about the similarity of the blocks' inputs and outputs, and about the branches alone."""
    ratios = values["participation_ratio"].sel(site=site)
    narrow = [name for name in labels if bool((ratios.sel(set=name) < _ONE_DIRECTION).mean() > 0.5)]
    shown = values.sel(set=[name for name in labels if name not in narrow])
    for sublayer, step in _STEPS.items():
        at = shown.sel(sublayer=sublayer)
        texts = {labels[name]: text for name in at["set"].values.tolist() if (text := _cka(at.sel(set=name)))}
        if texts:
            yield f"Debiased CKA between the input and the output of {step}, median over layers: {listed(texts)}."
    if narrow:
        yield (
            f"The medians of CKA leave out {', '.join(labels[name] for name in narrow)}: the participation ratio is "
            f"below {_ONE_DIRECTION:g} at most depths, so most of the variance lies in one direction, which decides "
            "the CKA."
        )


def _cka(values: xr.Dataset) -> str:
    """Return the median CKA of a step of one set over layers, beside its controls; empty if there is none."""
    cka, branch = values["sublayer_cka"].sel(output=["output", "branch"]).values.T
    controls = values["sublayer_cka_permuted"].values, branch
    if not np.isfinite(cka).any():
        return ""
    other, alone = (f"{np.nanmedian(one):.3f}" if np.isfinite(one).any() else "unknown" for one in controls)
    known = np.isfinite(cka + controls[0])
    smaller = f", smaller in {int((cka > controls[0]).sum())} of {known.sum()} layers" if known.any() else ""
    return f"{np.nanmedian(cka):.3f} (controls: input plus another prompt's step {other}{smaller}; step alone {alone})"


def _orthant_facts(values: xr.Dataset) -> Iterator[str]:
    """Yield a sentence about the active hidden units of the MLPs."""
    active, overlap = values["orthant_occupancy"], values["orthant_overlap"]
    if not np.isfinite(active).any():
        yield (
            "The active hidden units of the MLPs were not counted. Possible reasons: the MLP of this model family is "
            "not known, or a block has several MLPs."
        )
    else:
        equal = active**2 + (1 - active) ** 2
        yield (
            "A hidden unit of an MLP is active if its activation function gets a positive input. Share of active "
            f"units, mean over all prompts that are not left out: {percent(active.min(), 0)} to "
            f"{percent(active.max(), 0)} over layers and sets. Two prompts of a set agree in "
            f"{percent(overlap.min(), 0)} to {percent(overlap.max(), 0)} of the hidden units on whether a unit is "
            "active. If all units of a layer were active equally often, and two prompts had nothing in common, they "
            f"would agree in {percent(equal.min(), 0)} to {percent(equal.max(), 0)}; units that are active more often "
            "than others make the agreement larger, even if the prompts have nothing in common."
        )


def _mean_tables(run: Run, gram: xr.Dataset, site: str, position: Label, labels: Mapping[str, str]) -> list[Table]:
    """Return a table for each contrast: cosines and norms of means, geometric medians (*) and their differences r."""
    from_curves = read_group(run, "curves")[list(_FROM_CURVES)].sel(space="raw", drop=True)
    selected = gram.assign(from_curves.data_vars).sel(site=site, position=position, space="raw")
    tables = []
    for contrast, sides in gram.attrs["contrasts"].items():
        values = selected.sel(contrast=contrast)
        if not np.isfinite(values["norm_of_centre"]).any():
            continue
        columns = (values[name].loc[:, *at] for name, *at in _COLUMNS.values())
        by_layer = zip(values["layer"].values, *(column.values for column in columns), strict=True)
        rows = [[str(layer), *map(_cell, numbers)] for layer, *numbers in by_layer]
        note = (
            f"P is the mean of {labels[sides['positive']]}, N the mean of {labels[sides['negative']]}, and r = P - N, "
            "without subtraction of noise. * marks geometric medians."
        )
        if any(MISSING in row for row in rows):
            note += f" {MISSING} marks a missing value, such as a cosine with r = 0 or r* = 0."
        tables.append(Table(f"Means and geometric medians: {contrast} at {site}", ["layer", *_COLUMNS], rows, note))
    return tables


def _cell(number: float) -> str:
    return MISSING if np.isnan(number) else f"{number:.4g}"
