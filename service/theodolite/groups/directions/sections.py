"""The direction of each contrast: how well it would repeat with other prompts, and how it turns between layers."""

from collections.abc import Iterator, Mapping
from functools import partial
from statistics import NormalDist

import numpy as np
import xarray as xr
from numpy.typing import NDArray

from theodolite.drawing.maps import layer_map, scale_limits
from theodolite.drawing.panels import shown_sites
from theodolite.groups.directions.figures import reliability_figure
from theodolite.groups.directions.sections_contrasts import pair_sections
from theodolite.groups.schema import LEVEL, SIDES
from theodolite.query.curves import along_depth
from theodolite.query.directions import RELIABLE, is_unreliable
from theodolite.query.first_tokens import set_labels
from theodolite.query.twin import read_twin
from theodolite.sections.parts import (
    Figure,
    Section,
    last_position,
    layer_of,
    listed,
    number,
    percent,
    quoted,
    same_token_notes,
    side_counts,
    without_spread,
)
from theodolite.sections.twin import twin_cosine_between_layers
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast that has a direction at the last position, and one for their pairs."""
    directions = read_group(run, "directions")
    tests = read_group(run, "permutations") if "permutations" in finished_groups(run) else None
    twins = read_twin(run, "directions")
    contrasts = directions["contrast"].values.tolist()
    found = [_section(run, directions, tests, twins.get(contrast, {}), contrast) for contrast in contrasts]
    return [*(section for section in found if section), *pair_sections(run, directions, tests)]


def _section(
    run: Run, directions: xr.Dataset, tests: xr.Dataset | None, twin: Mapping[str, xr.Dataset], contrast: str
) -> Section | None:
    """Return the section of a contrast, or None if it has no direction at the last position.

    `twin` holds the contrast in the analysis `directions` of the untrained twin, if there is one.
    """
    position, sites = last_position(directions), shown_sites(directions)
    shown = {"position": position, "site": sites}
    own = directions.sel({"contrast": contrast, **shown})
    sets = [directions.attrs["contrasts"][contrast][side] for side in SIDES]
    if not np.isfinite(own["reliability"]).any() or without_spread(run, sets, position, sites):
        return None
    null = None if tests is None else tests["direction_cosine_null"].sel({"contrast": contrast, **shown})
    labels = set_labels(run, position)
    sides = side_counts(own, [labels[name] for name in sets])
    limits = scale_limits(*own["direction_cosine"].transpose("site", ...).values)
    return Section(
        f"Direction of {quoted(contrast)} at position {position}: {sides} prompts",
        [
            _reliability_fact(own, "separation" in finished_groups(run)),
            *(() if null is None else _cosine_facts(own, null)),
            *(twin_cosine_between_layers(twin["directions"].sel(shown)) if "directions" in twin else ()),
        ],
        [
            Figure(
                f"directions.{contrast}",
                "Reliability of the direction",
                partial(reliability_figure, directions, contrast, position, sites),
            )
        ],
        [_map(directions, null, contrast, site, limits) for site in sites],
        notes=same_token_notes(run, sets, labels, position),
        headline=_headline(own),
    )


def _map(
    directions: xr.Dataset, null: xr.DataArray | None, contrast: str, site: str, limits: tuple[float, float]
) -> Figure:
    caption = f"cosine between directions, {site}"
    cosines = directions["direction_cosine"].sel(contrast=contrast, site=site, position=last_position(directions))
    chance = None if null is None else null.sel(site=site, null="mean")
    pale = is_unreliable(directions, contrast, site).tolist()
    return Figure(
        f"directions.{contrast}.{site}",
        caption,
        partial(layer_map, cosines, caption, limits=limits, chance=chance, pale=pale),
    )


def _reliability_fact(directions: xr.Dataset, has_separation: bool) -> str:
    """Return how well a contrast's direction would repeat with other prompts, where it does so worst."""
    reliability, share = along_depth(directions["reliability"]), along_depth(directions["noise_share"])
    lowest = int(np.nanargmin(reliability.values))
    sentence = (
        "Smallest reliability of the direction (expected cosine with a direction from as many new prompts of the same "
        f"kind): {float(reliability[lowest]):.2f} at {layer_of(reliability, lowest)}, where "
        f"{percent(share[lowest], 0)} of the squared distance of the means is noise (estimated from the variances)."
    )
    many, total = _reliable(reliability)
    sentence += f" At {many} of {total} depths the reliability is at least {RELIABLE}."
    if many < total:
        sentence += " Maps draw the direction at any other depth grey, and statistics of heads leave it out"
        sentence += "; the numbers of depths under Separation include it." if has_separation else "."
    return sentence


def _reliable(reliability: xr.DataArray) -> tuple[int, int]:
    """Return at how many depths a contrast's direction is reliable, and the number of depths that have one."""
    return int((reliability >= RELIABLE).sum()), int(np.isfinite(reliability).sum())


def _headline(directions: xr.Dataset) -> str:
    """Return at how many depths a contrast's direction is reliable, and where it is least so."""
    reliability = along_depth(directions["reliability"])
    (many, total), lowest = _reliable(reliability), int(np.nanargmin(reliability.values))
    return (
        f"The direction is reliable (at least {RELIABLE}) at {many} of {total} depths; smallest reliability "
        f"{float(reliability[lowest]):.2f}, at {layer_of(reliability, lowest)}."
    )


def _cosine_facts(directions: xr.Dataset, null: xr.DataArray) -> Iterator[str]:
    """Yield a sentence about the cosines between neighbouring layers' directions.

    Args:
        directions: those of one contrast at one position.
        null: the cosines with permuted labels, (site, layer, layer_other, null).
    """
    texts = {}
    for site in directions["site"].values.tolist():
        cosines = np.diagonal(directions["direction_cosine"].sel(site=site), offset=1)
        permuted, spread = (np.diagonal(null.sel(site=site, null=part), offset=1) for part in ("mean", "sd"))
        if np.isfinite(cosines + permuted).any():
            excess = cosines - permuted
            middle = float(np.nanmedian(excess))
            text = f"permuted labels give {np.nanmedian(permuted):.2f}; median difference {number(middle, 2)}"
            text += f"{', below chance' if middle < 0 else ''}{_distinct(excess, spread)}"
            texts[site] = f"{np.nanmedian(cosines):.2f} ({text})"
    if texts:
        yield (
            "Median cosine between the directions of neighbouring layers, which share most of the stream: "
            f"{listed(texts)}."
        )


def _distinct(excess: NDArray[np.float64], spread: NDArray[np.float64]) -> str:
    """Return how many of several cosines exceed chance, by Bonferroni's limit; empty without their spread."""
    z = (excess / spread)[np.isfinite(excess / spread)]
    if not len(z):
        return ""
    limit = NormalDist().inv_cdf(1 - LEVEL / len(z))
    return f"; {int((z > limit).sum())} of {len(z)} pairs of layers above Bonferroni's limit, z = {limit:.1f}"
