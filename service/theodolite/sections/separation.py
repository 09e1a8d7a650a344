"""How well each contrast's direction separates prompts that it was not fitted on."""

from collections.abc import Iterator
from functools import partial

import numpy as np
import xarray as xr

from theodolite.figures.curves import shown_sites
from theodolite.figures.separation import directions_map, separation_figure
from theodolite.query.compare import BOUND
from theodolite.query.curves import along_depth
from theodolite.sections.parts import SIDES, Figure, Section, last_position, place_of
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_UNSEEN = "On prompts the direction was not fitted on"


def sections(run: Run) -> list[Section]:
    """Return a section for each contrast: separation of held-out prompts, cosines between layers' directions."""
    separation, directions = read_group(run, "separation"), read_group(run, "directions")
    return [
        _section(separation, directions, contrast, counts)
        for contrast in separation["contrast"].values.tolist()
        if all(counts := _counts(separation, contrast))  # or else one of the sets does not keep this position
    ]


def _counts(separation: xr.Dataset, contrast: str) -> list[int]:
    at = separation.sel(contrast=contrast, position=last_position(separation))
    return [int(at[f"n_{side}"]) for side in SIDES]


def _section(separation: xr.Dataset, directions: xr.Dataset, contrast: str, counts: list[int]) -> Section:
    position, sites = last_position(separation), shown_sites(separation)
    cosines = directions["direction_cosine"].sel(contrast=contrast, position=position)
    drawn = partial(separation_figure, separation, contrast, position, sites)
    return Section(
        f"{contrast}: separation at position {position}, {counts[0]} and {counts[1]} prompts in five folds",
        list(_facts(separation.sel(contrast=contrast, position=position, site=sites))),
        [Figure(f"separation.{contrast}", _UNSEEN, drawn)],
        [_map(contrast, site, cosines.sel(site=site)) for site in sites],
    )


def _map(contrast: str, site: str, cosines: xr.DataArray) -> Figure:
    caption = f"cosine of directions, {site}"
    return Figure(f"separation.{contrast}.{site}", caption, partial(directions_map, cosines, caption))


def _facts(at: xr.Dataset) -> Iterator[str]:
    auroc, low, high = (along_depth(at[f"auroc{end}"]) for end in ("", "_low", "_high"))
    if not np.isfinite(auroc).any():
        few = min(int(at["n_positive"]), int(at["n_negative"])) < 2
        reason = "a set of one prompt has no others to fit it on" if few else "the two sets' means are equal"
        yield f"No direction can be fitted: {reason}."
        return
    best = int(np.nanargmax(auroc.values))
    right = along_depth(at["accuracy"])
    yield (
        f"Unseen prompts are told apart best at {place_of(auroc, best)}: AUROC {float(auroc[best]):.3f} (95 % interval "
        f"{float(low[best]):.3f} to {float(high[best]):.3f}), the best of {len(auroc)} places; "
        f"{float(right[best]):.1%} are on the right side of the midpoint, where naming the larger set for all has "
        f"{_larger_share(at):.1%}."
    )
    if float(low[best]) <= 0.5:
        yield "That interval holds .5, so that it may be chance."
    passed = np.flatnonzero(low.values >= BOUND)
    if len(passed):
        yield f"The interval first lies at {BOUND} or above from {place_of(low, int(passed[0]))}."
    else:
        yield f"Nowhere does the whole interval lie at {BOUND} or above."
    fisher = along_depth(at["fisher_ratio"])
    if np.isfinite(fisher).any():
        top = int(np.nanargmax(fisher.values))
        yield (
            f"The squared distance of the means is at most {float(fisher[top]):.3g} of the sum of both variances, at "
            f"{place_of(fisher, top)}."
        )
    else:
        yield "The Fisher ratio is left out: it needs a prompt of each set in each of the five folds."


def _larger_share(at: xr.Dataset) -> float:
    counts = [int(at[f"n_{side}"]) for side in SIDES]
    return max(counts) / sum(counts)
