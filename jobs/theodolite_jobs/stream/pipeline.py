"""From a captured run to the result groups of its activations: tasks, one for each shard, merged in their order."""

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any

import pandas as pd
import xarray as xr
from dask.delayed import delayed

from theodolite.errors import StoreError
from theodolite.sites import Site, depth
from theodolite.spec import digest_of
from theodolite.store.commits import Commit, read_commits
from theodolite.store.complete import finished_groups
from theodolite.store.layout import STREAM_GROUPS
from theodolite.store.results import build_group, drop_groups, read_contrasts, write_groups
from theodolite.store.runs import Run
from theodolite.store.tables import encode_table
from theodolite_jobs.stream.groups import (
    Contrast,
    Subject,
    curves_arrays,
    directions_arrays,
    moments_arrays,
)
from theodolite_jobs.stream.passes import (
    SPACES,
    Means,
    Selection,
    StreamMoments,
    merge_streams,
    shard_moments,
    shard_scatter,
)
from theodolite_jobs.tasks import Progress, in_windows, scheduler

GROUP_VERSIONS = {"moments": 1, "curves": 1, "directions": 1}
"""Raised whenever a number of the group could change; a later survey then computes that group again."""

Contrasts = dict[str, dict[str, Any]]
"""`positive`, `negative` and `paired` of each contrast."""


def analyse(run: Run, contrasts: Contrasts, dask_address: str | None, progress: Progress) -> list[str]:
    """Compute the result groups that are missing or outdated; return their names.

    Contrasts that results exist for already are kept, so that asking for one more loses none.

    Args:
        run: a run whose shards are all committed.
        contrasts: `positive`, `negative` and `paired` of each, by name.
        dask_address: a `dask.distributed` scheduler; None uses this process's threads.
        progress: called after each window of shards.

    Raises:
        StoreError: shards are missing.
        RunDamagedError: a shard cannot be read, or holds a number that must not be averaged.
    """
    commits = all_commits(run)
    done = finished_groups(run)
    if "curves" in done:
        contrasts = {**read_contrasts(run, done), **contrasts}
    captured = captured_digest(commits)
    digests = {name: _group_digest(name, captured, contrasts) for name in STREAM_GROUPS}
    stale = [name for name, digest in digests.items() if done.get(name) != digest]
    if not stale:
        return []
    with scheduler(dask_address):
        datasets = _compute(run, contrasts, commits, stale, digests, progress)
    tables = {"curves": encode_table(curves_table(datasets["curves"]))} if "curves" in datasets else {}
    if "directions" in stale:  # heads are held against them
        drop_groups(run, ["heads"])
    write_groups(run, datasets, tables, {name: digests[name] for name in stale})
    return stale


def curves_table(curves: xr.Dataset) -> pd.DataFrame:
    """Return the curves as a flat table: a row for each statistic, set or contrast, site, position and layer."""
    parts = []
    for name, variable in curves.data_vars.items():
        if "layer" not in variable.dims:
            continue
        frame = variable.to_dataframe(name="value").reset_index()
        frame.insert(0, "statistic", str(name))
        parts.append(frame.reindex(columns=["statistic", "contrast", "set", "site", "position", "layer", "value"]))
    table = pd.concat([part.astype({"value": "float64"}) for part in parts], ignore_index=True)
    table["depth"] = [depth(Site(site), layer) for site, layer in zip(table["site"], table["layer"], strict=True)]
    texts = ["statistic", "contrast", "set", "site"]
    table[texts] = table[texts].astype(object).where(table[texts].notna(), "")
    return table


def measured_sets(run: Run) -> tuple[list[str], list[int]]:
    """Return the sets that statistics are about, and all positions that they keep.

    Sets that keep every token feed trajectories; their positions differ from prompt to prompt.
    """
    names = [name for name in run.record.sets if run.record.spec.sets[name].positions != "all"]
    return names, sorted({position for name in names for position in run.record.sets[name].positions})


def all_commits(run: Run) -> dict[str, list[Commit]]:
    """Return the commit records of all shards of all sets; raises StoreError where some are missing."""
    return {name: _commits_of(run, name) for name in run.record.sets}


def captured_digest(commits: dict[str, list[Commit]]) -> str:
    """Return a digest of everything that was captured."""
    return digest_of(
        {
            name: [[commit.checksums, sorted(commit.quarantined)] for commit in shards]
            for name, shards in commits.items()
        }
    )


def quarantined(commits: Iterable[Commit]) -> frozenset[int]:
    """Return the samples that must be left out."""
    return frozenset(sample for commit in commits for sample in commit.quarantined)


def _group_digest(name: str, captured: str, contrasts: Contrasts) -> str:
    """Return what a group rests on: its rules, what was captured, and the options that matter to it."""
    options = {} if name == "moments" else contrasts
    return digest_of({"group": name, "version": GROUP_VERSIONS[name], "captured": captured, "contrasts": options})


def _compute(
    run: Run,
    contrasts: Contrasts,
    commits: dict[str, list[Commit]],
    stale: Sequence[str],
    digests: dict[str, str],
    progress: Progress,
) -> dict[str, xr.Dataset]:
    bad = {name: quarantined(shards) for name, shards in commits.items()}
    names, positions = measured_sets(run)
    known: dict[Selection, StreamMoments] = {}

    def moments_of(selection: Selection) -> StreamMoments:
        if selection not in known:
            known[selection] = _fold_moments(run, selection, progress)
        return known[selection]

    sets = []
    for name in names:
        own = run.record.sets[name].positions
        selection = Selection(name, bad[name], tuple(range(len(own))))
        sets.append(Subject(moments_of(selection), tuple(positions.index(position) for position in own)))
    compared = [
        _contrast(run, label, contrast, bad, positions, moments_of, progress) for label, contrast in contrasts.items()
    ]
    arrays = {
        "moments": lambda: moments_arrays(sets, len(positions)),
        "curves": lambda: curves_arrays(sets, compared, len(positions)),
        "directions": lambda: directions_arrays(compared, len(positions)),
    }
    layers = run.record.layers
    coordinates = {
        "set": names,
        "contrast": list(contrasts),
        "site": [str(site) for site in run.record.spec.capture.sites],
        "position": positions,
        "layer": layers,
        "layer_other": layers,
        "d_model": range(run.record.model.d_model),
    }
    attributes = {name: {"digest": digests[name], "version": GROUP_VERSIONS[name]} for name in stale}
    for name in attributes.keys() - {"moments"}:
        attributes[name]["contrasts"] = contrasts
    return {name: build_group(name, arrays[name](), coordinates, attributes[name]) for name in stale}


def _contrast(
    run: Run,
    label: str,
    contrast: dict[str, Any],
    bad: dict[str, frozenset[int]],
    positions: list[int],
    moments_of: Callable[[Selection], StreamMoments],
    progress: Progress,
) -> Contrast:
    names, paired = [contrast["positive"], contrast["negative"]], contrast["paired"]
    own = [run.record.sets[name].positions for name in names]
    common = [position for position in positions if all(position in of_set for of_set in own)]
    # A quarantined prompt takes its partner out of paired statistics.
    excluded = [bad[names[0]] | bad[names[1]]] * 2 if paired else [bad[name] for name in names]
    positive, negative = (
        Selection(name, out, tuple(of_set.index(position) for position in common))
        for name, out, of_set in zip(names, excluded, own, strict=True)
    )
    of_positive, of_negative = moments_of(positive), moments_of(negative)
    means = {space: Means(getattr(of_positive, space).mean, getattr(of_negative, space).mean) for space in SPACES}
    task = delayed(shard_scatter, pure=False)
    n_shards = [run.record.sets[name].n_shards for name in names]
    if paired:
        tasks = [task(run, positive, negative, index, means, True) for index in range(n_shards[0])]
    else:
        tasks = [task(run, positive, None, index, means, False) for index in range(n_shards[0])]
        tasks += [task(run, None, negative, index, means, False) for index in range(n_shards[1])]
    parts = in_windows(tasks, lambda done: progress(f"intervals of {label}", done, len(tasks)))
    sums = reduce(lambda total, part: {space: total[space] + part[space] for space in SPACES}, parts)
    return Contrast(of_positive, of_negative, sums, paired, tuple(positions.index(p) for p in common))


def _fold_moments(run: Run, selection: Selection, progress: Progress) -> StreamMoments:
    task = delayed(shard_moments, pure=False)
    tasks = [task(run, selection, index) for index in range(run.record.sets[selection.prompt_set].n_shards)]
    parts: Iterable[StreamMoments] = in_windows(
        tasks, lambda done: progress(f"moments of {selection.prompt_set}", done, len(tasks))
    )
    return reduce(merge_streams, parts)


def _commits_of(run: Run, name: str) -> list[Commit]:
    commits, expected = read_commits(run.location, name), run.record.sets[name].n_shards
    missing = [index for index in range(expected) if index not in commits]
    if missing:
        raise StoreError(
            f"{run.id}: {len(missing)} of {expected} shards of {name} are not captured yet, the first is "
            f"{name}/{missing[0]:05d}; run the survey again to go on"
        )
    return [commits[index] for index in range(expected)]
