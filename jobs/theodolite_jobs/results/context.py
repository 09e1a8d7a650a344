"""From a captured run to the result groups that two passes over its shards give."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import xarray as xr

from theodolite.spec import digest_of
from theodolite.store.manifest import finished_groups
from theodolite.store.result_reader import read_contrasts, read_group
from theodolite.store.result_writer import build_group, drop_groups, write_groups
from theodolite.store.runs import Run
from theodolite.store.tables import encode_table
from theodolite_jobs.passes.all_shards import first_passes, second_passes
from theodolite_jobs.passes.norm_layers import NormPlace
from theodolite_jobs.passes.one_shard import FOLDED, NORMS, STREAM, TRAVEL, FirstPass
from theodolite_jobs.passes.samples import Selection
from theodolite_jobs.passes.selections import (
    Contrasts,
    ContrastSelection,
    SetSelection,
    all_commits,
    captured_digest,
    contrast_selection,
    measured_sets,
    set_selections,
)
from theodolite_jobs.results.arrays import (
    Contrast,
    Subject,
    curves_arrays,
    directions_arrays,
    moments_arrays,
    separation_arrays,
    travel_arrays,
)
from theodolite_jobs.results.sphere import norm_axes, sphere_arrays
from theodolite_jobs.results.tables import flat_table, growth_table
from theodolite_jobs.tasks import Progress, scheduler

GROUP_VERSIONS = {"moments": 2, "curves": 2, "directions": 2, "sphere": 1, "travel": 1, "separation": 1}
"""Raised whenever a number of the group could change; a later survey then computes that group again."""

ALWAYS = ("moments", "curves", "directions")
"""The groups that every run with prompts has."""

_OF_CONTRASTS = ("curves", "directions", "separation")
_OF_EACH_FEATURE = ("moments", "directions")  # no table holds those

# What a group needs of the first pass over each set, and over each side of a contrast.
_OF_SETS = {"moments": {STREAM}, "curves": {STREAM}, "sphere": {STREAM, NORMS}, "travel": {TRAVEL}}
_OF_SIDES = {"curves": {STREAM}, "directions": {STREAM}, "separation": {FOLDED}}


def analyse(
    run: Run,
    contrasts: Contrasts,
    dask_address: str | None,
    progress: Progress,
    asked: Collection[str] = (),
    norms: Sequence[NormPlace] = (),
) -> list[str]:
    """Compute the result groups of two passes that are missing or outdated; return their names.

    Contrasts that results exist for already are kept, so that asking for one more loses none.

    Args:
        run: a run whose shards are all committed.
        contrasts: `positive`, `negative` and `paired` of each, by name.
        dask_address: a `dask.distributed` scheduler; None uses this process's threads.
        progress: called after each window of shards.
        asked: groups that are wanted beside those that every run has.
        norms: the model's norm layers, for `sphere`.

    Raises:
        StoreError: shards are missing.
        RunDamagedError: a shard cannot be read, or holds a number that must not be averaged.
    """
    contrasts = all_contrasts(run, contrasts)
    stale = stale_groups(run, contrasts, asked)
    if not stale:
        return []
    with scheduler(dask_address):
        datasets = _compute(run, contrasts, stale, norms, progress)
    tables = {name: encode_table(flat_table(group)) for name, group in datasets.items() if name not in _OF_EACH_FEATURE}
    if "travel" in datasets:
        moments, curves = (datasets[name] if name in datasets else read_group(run, name) for name in ALWAYS[:2])
        tables["growth"] = encode_table(growth_table(moments, curves))
    if "directions" in stale:  # heads are held against them
        drop_groups(run, ["heads"])
    write_groups(run, datasets, tables, stale)
    return list(stale)


def all_contrasts(run: Run, asked: Contrasts) -> Contrasts:
    """Return the contrasts that are asked for, and those that results exist for already."""
    done = finished_groups(run)
    return {**read_contrasts(run, done), **asked} if "curves" in done else asked


def stale_groups(run: Run, contrasts: Contrasts, asked: Collection[str]) -> dict[str, str]:
    """Return the digests of the wanted groups that are missing or outdated."""
    captured, done = captured_digest(all_commits(run)), finished_groups(run)
    always = ALWAYS if run.record.sets else ()
    wanted = [name for name in GROUP_VERSIONS if name in {*always, *asked}]
    digests = {name: _group_digest(name, captured, contrasts) for name in wanted}
    return {name: digest for name, digest in digests.items() if done.get(name) != digest}


def _group_digest(name: str, captured: str, contrasts: Contrasts) -> str:
    """Return what a group rests on: its rules, what was captured, and the options that matter to it."""
    options: dict[str, Any] = contrasts if name in _OF_CONTRASTS else {}
    if name == "travel":  # its fits are of these
        options = {other: GROUP_VERSIONS[other] for other in ("moments", "curves")}
    return digest_of({"group": name, "version": GROUP_VERSIONS[name], "captured": captured, "contrasts": options})


def _compute(
    run: Run, contrasts: Contrasts, stale: Mapping[str, str], norms: Sequence[NormPlace], progress: Progress
) -> dict[str, xr.Dataset]:
    commits = all_commits(run)
    of_sets = set_selections(run, commits)
    of_contrasts = {label: contrast_selection(run, contrast, commits) for label, contrast in contrasts.items()}
    known = first_passes(run, _wanted(of_sets, of_contrasts, stale), norms, progress)
    sets, compared = [], []
    if stale.keys() & _OF_SETS.keys():
        sets = [Subject(known[chosen.selection], chosen.places) for chosen in of_sets.values()]
    if stale.keys() & _OF_SIDES.keys():
        compared = [_compare(run, label, chosen, known, stale, progress) for label, chosen in of_contrasts.items()]
    names, positions = measured_sets(run)
    n_positions, sites = len(positions), [str(site) for site in run.record.spec.capture.sites]
    arrays = {
        "moments": lambda: moments_arrays(sets, n_positions),
        "curves": lambda: curves_arrays(sets, compared, n_positions),
        "directions": lambda: directions_arrays(compared, n_positions),
        "separation": lambda: separation_arrays(compared, n_positions),
        "travel": lambda: travel_arrays(sets, n_positions),
        "sphere": lambda: sphere_arrays(sets, n_positions, norms, sites, norm_axes(norms, progress)),
    }
    coordinates = {
        "set": names,
        "contrast": list(contrasts),
        "site": sites,
        "position": positions,
        "layer": run.record.layers,
        "layer_other": run.record.layers,
        "d_model": range(run.record.model.d_model),
        "norm": [place.label for place in norms],
    }
    kinds, of_blocks = [place.which for place in norms], [place.layer for place in norms]
    beside: dict[str, Any] = {"norm_kind": ("norm", kinds), "norm_layer": ("norm", of_blocks)}
    found = {}
    for name, digest in stale.items():
        attributes: dict[str, Any] = {"digest": digest, "version": GROUP_VERSIONS[name]}
        if name in _OF_CONTRASTS:
            attributes["contrasts"] = contrasts
        labels = beside if name == "sphere" else {}
        found[name] = build_group(name, arrays[name](), coordinates, attributes, labels)
    return found


def _wanted(
    of_sets: Mapping[str, SetSelection], of_contrasts: Mapping[str, ContrastSelection], stale: Iterable[str]
) -> dict[Selection, frozenset[str]]:
    """Return what the first pass must know of each selection, for all stale groups at once."""
    wanted: dict[Selection, frozenset[str]] = {}
    of_set = frozenset().union(*(_OF_SETS.get(name, ()) for name in stale))
    of_side = frozenset().union(*(_OF_SIDES.get(name, ()) for name in stale))
    chosen = [(one.selection, of_set) for one in of_sets.values()]
    chosen += [(side, of_side) for one in of_contrasts.values() for side in (one.positive, one.negative)]
    for selection, kinds in chosen:
        if kinds:
            wanted[selection] = wanted.get(selection, frozenset()) | kinds
    return wanted


def _compare(
    run: Run,
    label: str,
    chosen: ContrastSelection,
    known: Mapping[Selection, FirstPass],
    stale: Collection[str],
    progress: Progress,
) -> Contrast:
    """Return what is known of a contrast, after a second pass where a stale group needs one."""
    positive, negative = known[chosen.positive], known[chosen.negative]
    needs = {"intervals": "curves" in stale, "scores": "separation" in stale}
    second = second_passes(run, label, chosen, positive, negative, progress, **needs) if any(needs.values()) else None
    return Contrast(positive, negative, second, chosen.paired, chosen.places)
