"""How similar the directions of several contrasts are."""

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np
import xarray as xr

from theodolite.drawing.panels import shown_sites
from theodolite.groups.directions.figures_contrasts import DISTINCT, contrast_map
from theodolite.groups.schema import SIDES
from theodolite.query.curves import along_depth
from theodolite.query.effects import places
from theodolite.sections.parts import CHANCE, Figure, Section, last_position, layer_text, number
from theodolite.sites import Site, depth
from theodolite.spec_parts import Label
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_group
from theodolite.store.runs import Run

_SHARED = (
    "{} of {} pairs of contrasts share a prompt set. The set's mean and its sampling error are then a part of both "
    "directions and make them similar, whatever the other sets are. No permutation of labels keeps this and nothing "
    "else, so these pairs have no comparison with chance"
)

_HOW_TO_READ = (
    "A cell is the cosine between the directions of two contrasts: 1 for the same direction, 0 for a right angle, -1 "
    "for opposite ones. A dot marks cosines that differ from permuted labels by 3 standard deviations or more. If a "
    "few features have most of the variance, permuted labels give cosines far from 0 too."
)


def pair_sections(run: Run, directions: xr.Dataset, tests: xr.Dataset | None) -> list[Section]:
    """Return the section about all pairs of contrasts; none with fewer than two contrasts that have a direction."""
    position, sites = last_position(directions), shown_sites(directions)
    cosines = directions["contrast_cosine"].sel(position=position, site=sites)
    names = [name for name in directions["contrast"].values.tolist() if np.isfinite(cosines.sel(contrast=name)).any()]
    if len(names) < 2:
        return []
    place = _place(run, directions, position, names)
    at = {"contrast": names, "contrast_other": names}
    here = cosines.sel(place).sel(at)
    null = None if tests is None else tests["contrast_cosine_null"].sel({"position": position, **place}).sel(at)
    where = layer_text(depth(Site(place["site"]), place["layer"]))
    caption = f"cosine between directions of contrasts, {where}"
    pairs = [pair for pair in combinations(names, 2) if np.isfinite(_cell(here, pair))]
    n_shared = _n_shared(directions, pairs)
    shared = _SHARED.format(n_shared, len(pairs))
    return [
        Section(
            f"Directions of {len(names)} contrasts at position {position}, {where}",
            list(_facts(here, null, pairs, where)),
            maps=[Figure("directions.between.contrasts", caption, partial(contrast_map, here, null, caption))],
            notes=[*([CHANCE] if null is not None else []), *([shared] if n_shared else [])],
            how_to_read=_HOW_TO_READ,
            headline=_headline(here, pairs, where),
        )
    ]


def _place(run: Run, directions: xr.Dataset, position: Label, names: Sequence[str]) -> dict[str, Any]:
    """Return the site and the layer with the largest mean AUROC of the contrasts, or those of the last depth."""
    ordered = places(directions.sel(site=shown_sites(directions)))
    if "separation" not in finished_groups(run):
        return ordered[-1]
    separation = read_group(run, "separation")
    known = [name for name in names if name in separation["contrast"].values]
    values = separation["auroc"].sel(contrast=known, position=position, site=shown_sites(directions))
    curve = along_depth(values.mean("contrast")).values
    return ordered[int(np.nanargmax(curve))] if np.isfinite(curve).any() else ordered[-1]


def _cell(values: xr.DataArray, pair: tuple[str, str]) -> float:
    return float(values.sel(contrast=pair[0], contrast_other=pair[1]))


def _n_shared(directions: xr.Dataset, pairs: Sequence[tuple[str, str]]) -> int:
    """Return the number of pairs with a common prompt set."""
    sets = {name: {sides[side] for side in SIDES} for name, sides in directions.attrs["contrasts"].items()}
    return sum(not sets[one].isdisjoint(sets[other]) for one, other in pairs)


def _headline(cosines: xr.DataArray, pairs: Sequence[tuple[str, str]], where: str) -> str:
    """Return the finding in at most 25 words."""
    if not pairs:
        return ""
    pair = max(pairs, key=lambda one: abs(_cell(cosines, one)))
    return f"At {where}, the most similar directions are “{pair[0]}” and “{pair[1]}”: cosine {_two(cosines, pair)}."


def _two(cosines: xr.DataArray, pair: tuple[str, str]) -> str:
    return number(_cell(cosines, pair), 2)


def _facts(
    cosines: xr.DataArray, null: xr.DataArray | None, pairs: Sequence[tuple[str, str]], where: str
) -> Iterator[str]:
    """Yield sentences about the largest cosine, and about those that are compared with permuted labels."""
    if not pairs:
        yield f"At {where}, no two contrasts have a direction."
        return
    largest = max(pairs, key=lambda one: abs(_cell(cosines, one)))
    yield (
        f"Largest absolute cosine between the directions of two contrasts at {where}: {_two(cosines, largest)}, of "
        f"“{largest[0]}” and “{largest[1]}” ({len(pairs)} {'pair' if len(pairs) == 1 else 'pairs'})."
    )
    if null is None:
        return
    z = {pair: _cell(null.sel(null="z"), pair) for pair in pairs}
    tested = [pair for pair in pairs if np.isfinite(z[pair])]
    if not tested:
        yield "No pair of contrasts without a common set can be compared with permuted labels."
        return
    best = max(tested, key=lambda one: abs(z[one]))
    mean, sd = (_cell(null.sel(null=part), best) for part in ("mean", "sd"))
    yield (
        f"{sum(abs(z[pair]) >= DISTINCT for pair in tested)} of {len(tested)} cosines between contrasts without a "
        f"common set differ from independently permuted labels by {DISTINCT:g} standard deviations or more. The "
        f"largest |z| is that of “{best[0]}” and “{best[1]}” (cosine {_two(cosines, best)}; permuted labels give "
        f"{number(mean, 2)} ± {sd:.2f}, z = {number(z[best], 1)})."
    )
