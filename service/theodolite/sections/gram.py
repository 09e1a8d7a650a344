"""The shape of each set's point cloud, and the similarity of layers."""

from collections.abc import Iterator, Mapping
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.curves import shown_sites
from theodolite.figures.gram import blocks_figure, shape_figure
from theodolite.figures.panels import layer_map
from theodolite.query.curves import along_depth
from theodolite.query.first_tokens import set_labels
from theodolite.sections.parts import (
    Figure,
    Section,
    Table,
    colours_of,
    labelled,
    last_position,
    layer_of,
    percent,
    prompt_counts,
)
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_FROM_CURVES = ("cosine_of_means", "difference_norm")  # columns that the group `curves` stores
_MISSING = "\N{EN DASH}"  # a number that is missing in a table
_COLUMNS = {
    "cosine_of_means": "cos(P, N)",
    "cosine_of_medians": "cos(P*, N*)",
    "cosine_mean_positive_difference": "cos(P, r)",
    "cosine_median_positive_difference": "cos(P*, r*)",
    "cosine_mean_negative_difference": "cos(N, r)",
    "cosine_median_negative_difference": "cos(N*, r*)",
    "norm_of_mean_positive": "|P|",
    "norm_of_median_positive": "|P*|",
    "norm_of_mean_negative": "|N|",
    "norm_of_median_negative": "|N*|",
    "difference_norm": "|r|",
    "difference_of_medians": "|r*|",
    "silhouette": "silhouette",
}


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
        Figure("gram.blocks", "Debiased CKA between input and output of attention, MLP and block", blocks),
    ]
    similarity = gram["linear_cka_debiased"].sel(site=site, position=position)
    maps = [_map(name, label, similarity.sel(set=name)) for name, label in labels.items()]
    facts = list(_shape_facts(gram.sel(position=position), site, labels, gram.attrs["contrasts"]))
    title = f"Shape and similarity at position {position} ({prompt_counts(gram, labels)})"
    return [Section(title, facts, figures, maps, _mean_tables(run, gram, site, position))]


def _map(name: str, label: str, similarity: xr.DataArray) -> Figure:
    caption = f"debiased CKA between layers, {label}"
    return Figure(f"gram.cka.{name}", caption, partial(layer_map, similarity, caption, (0, 1)))


def _shape_facts(
    values: xr.Dataset, site: str, labels: Mapping[str, str], contrasts: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    for name, label in labels.items():
        yield from _set_facts(values.sel(set=name, site=site), label, site)
    yield from _block_facts(values.sel(set=list(labels)))
    for contrast in contrasts:
        silhouettes = along_depth(values["silhouette"].sel(contrast=contrast))
        if np.nan_to_num(silhouettes.values).any():
            best = int(np.nanargmax(silhouettes.values))
            yield (
                f"Largest mean silhouette of the two sets of {contrast}: {float(silhouettes[best]):.3f} at "
                f"{layer_of(silhouettes, best)}; 1 means that each set is a single point, "
                "0 that the sets form no clusters."
            )


def _set_facts(values: xr.Dataset, name: str, site: str) -> Iterator[str]:
    """Yield sentences about the dimension and the anisotropy of one set at one site."""
    ratio, cosine = values["participation_ratio"].dropna("layer"), values["mean_cosine"].dropna("layer")
    if not ratio.size:
        yield f"No layer of {name} at {site} has a variance: a variance needs at least two different prompts."
        return
    top = int(ratio["layer"][int(ratio.values.argmax())])
    yield (
        f"Largest participation ratio of {name} at {site}: {float(ratio.max()):.1f} in layer {top} "
        f"({float(values['standardised_participation_ratio'].sel(layer=top)):.1f} with standardised features; a "
        "Gaussian with as many prompts and features gives "
        f"{float(values['participation_ratio_gaussian']):.0f}). Mean cosine between two prompts: "
        f"{float(cosine.min()):.2f} to {float(cosine.max()):.2f} over layers."
    )


def _block_facts(values: xr.Dataset) -> Iterator[str]:
    """Yield sentences about similarity through the blocks, and about the active hidden units of the MLPs."""
    similarity = {step: values[f"cka_{step}"] for step in ("attention", "mlp", "block")}
    if all(np.isfinite(cka).any() for cka in similarity.values()):
        medians = {step: float(np.nanmedian(cka)) for step, cka in similarity.items()}
        smallest = float(np.nanmin(similarity["block"]))
        yield (
            "Median debiased CKA between input and output, over layers and sets: "
            f"{medians['attention']:.3f} for attention, {medians['mlp']:.3f} for the MLP, {medians['block']:.3f} for "
            f"the whole block (smallest {smallest:.3f}). Equal geometry gives 1."
        )
    active, overlap = values["orthant_occupancy"], values["orthant_overlap"]
    if not np.isfinite(active).any():
        yield (
            "The active hidden units of the MLPs were not counted. Possible reasons: the MLP of this model family is "
            "not known, a block has several MLPs, or an older version started the capture."
        )
    else:
        yield (
            "Share of active hidden units of the MLPs (positive before gating), mean over all usable prompts: "
            f"{percent(active.min(), 0)} to {percent(active.max(), 0)} over layers and sets. Two prompts of "
            f"a set have equal signs in {percent(overlap.min(), 0)} to {percent(overlap.max(), 0)} of the hidden units."
        )


def _mean_tables(run: Run, gram: xr.Dataset, site: str, position: int) -> list[Table]:
    """Return a table for each contrast: cosines and norms of means, geometric medians (*) and their differences r."""
    from_curves = read_group(run, "curves")[list(_FROM_CURVES)]
    selected = gram.assign(from_curves.data_vars).sel(site=site, position=position)
    tables = []
    for contrast, sides in gram.attrs["contrasts"].items():
        values = selected.sel(contrast=contrast)
        if not np.isfinite(values["norm_of_mean_positive"]).any():
            continue
        by_layer = zip(values["layer"].values, *(values[name].values for name in _COLUMNS), strict=True)
        rows = [[str(layer), *map(_cell, numbers)] for layer, *numbers in by_layer]
        caption = (
            f"{contrast} at {site}: P is the mean of {sides['positive']}, N the mean of {sides['negative']}, "
            "r = P - N; * marks geometric medians"
        )
        if any(_MISSING in row for row in rows):
            caption += f"; {_MISSING} marks a missing number, such as a cosine with r = 0 or r* = 0"
        tables.append(Table(caption, ["layer", *_COLUMNS.values()], rows))
    return tables


def _cell(number: float) -> str:
    return _MISSING if np.isnan(number) else f"{number:.4g}"
