"""The shape of each set's point cloud, and the similarity of layers."""

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.curves import shown_sites
from theodolite.figures.gram import blocks_figure, shape_figure, similarity_map
from theodolite.query.curves import along_depth
from theodolite.sections.parts import Figure, Section, Table, colours_of, last_position, place_of, said_counts
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_OF_MEANS = ("cosine_of_means", "difference_norm")  # which `curves` has
_RESIDUALS = {
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
    """Return one section: shape and similarity of each set at one site, at the last position."""
    gram = read_group(run, "gram")
    position, colours = last_position(gram), colours_of(run, gram)
    site = shown_sites(gram)[0]
    figures = [
        Figure("gram.shape", f"Shape of each set at {site}", partial(shape_figure, gram, position, site, colours)),
        Figure("gram.blocks", "From block to block", partial(blocks_figure, gram, position, colours)),
    ]
    similar = gram["linear_cka_debiased"].sel(site=site, position=position)
    maps = [_map(name, similar.sel(set=name)) for name in colours]
    facts = list(_shape_facts(gram.sel(position=position), site, list(colours), gram.attrs["contrasts"]))
    title = f"Shape and similarity, position {position}: {said_counts(gram, list(colours))} prompts"
    return [Section(title, facts, figures, maps, _residuals(run, gram, site, position))]


def _map(name: str, similarity: xr.DataArray) -> Figure:
    caption = f"debiased CKA, {name}"
    return Figure(f"gram.cka.{name}", caption, partial(similarity_map, similarity, caption))


def _shape_facts(
    at: xr.Dataset, site: str, sets: Sequence[str], contrasts: Mapping[str, Mapping[str, str]]
) -> Iterator[str]:
    for name in sets:
        values = at.sel(set=name, site=site)
        ratio, cosine = values["participation_ratio"].dropna("layer"), values["mean_cosine"].dropna("layer")
        if not ratio.size:
            yield f"{name}: at no layer of {site} is there a variance, which needs two prompts that differ."
            continue
        top = int(ratio["layer"][int(ratio.values.argmax())])
        yield (
            f"{name} at {site}: the variance spreads over most directions in layer {top}, a participation ratio of "
            f"{float(ratio.max()):.1f} ({float(values['standardised_participation_ratio'].sel(layer=top)):.1f} with "
            f"features standardised), where a Gaussian of as many prompts and features has "
            f"{float(values['participation_ratio_gaussian']):.0f}; two prompts have a mean cosine of "
            f"{float(cosine.min()):.2f} to {float(cosine.max()):.2f}, by layer."
        )
    alike = {said: at[f"cka_{said}"].sel(set=list(sets)) for said in ("attention", "mlp", "block")}
    if all(np.isfinite(values).any() for values in alike.values()):
        medians = {said: float(np.nanmedian(values)) for said, values in alike.items()}
        least = float(np.nanmin(alike["block"]))
        yield (
            f"Through attention the geometry keeps a debiased CKA of {medians['attention']:.3f} in the median over "
            f"layers and sets, through the MLP {medians['mlp']:.3f}, from block to block {medians['block']:.3f} "
            f"(least {least:.3f})."
        )
    occupied = at["orthant_occupancy"].sel(set=list(sets))
    if not np.isfinite(occupied).any():
        yield (
            "Hidden units of MLPs were not counted: the family's are not known, a block has several MLPs, or the run "
            "was begun before they were."
        )
    else:
        overlap = at["orthant_overlap"].sel(set=list(sets))
        yield (
            f"Between {float(occupied.min()):.0%} and {float(occupied.max()):.0%} of an MLP's hidden units are "
            f"positive before gating, by layer and set, over all usable prompts; two of a set share the sign of "
            f"{float(overlap.min()):.0%} to {float(overlap.max()):.0%} of them."
        )
    for contrast in contrasts:
        silhouettes = along_depth(at["silhouette"].sel(contrast=contrast))
        if np.nan_to_num(silhouettes.values).any():
            best = int(np.nanargmax(silhouettes.values))
            yield (
                f"{contrast}: as clusters its two sets have a mean silhouette of {float(silhouettes[best]):.3f} at "
                f"best, at {place_of(silhouettes, best)} (1 is two points, 0 no clusters)."
            )


def _residuals(run: Run, gram: xr.Dataset, site: str, position: int) -> list[Table]:
    """Return cosines and norms of means, geometric medians (*) and their differences r, a table for each contrast."""
    curves = read_group(run, "curves")
    both = xr.merge([gram[list(_RESIDUALS.keys() & gram.data_vars)], curves[list(_OF_MEANS)]], compat="override")
    at = both.sel(site=site, position=position)
    found = []
    for contrast, sides in gram.attrs["contrasts"].items():
        values = at.sel(contrast=contrast)
        if not np.isfinite(values["norm_of_mean_positive"]).any():
            continue
        rows = [
            [str(int(layer)), *(f"{float(values[name].sel(layer=layer)):.4g}" for name in _RESIDUALS)]
            for layer in values["layer"]
        ]
        caption = (
            f"{contrast} at {site}: P is the mean of {sides['positive']}, N of {sides['negative']}, r = P - N; a star "
            "is the geometric median"
        )
        found.append(Table(caption, ["layer", *_RESIDUALS.values()], rows))
    return found
