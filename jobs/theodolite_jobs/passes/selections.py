"""Selections of the prompt sets, samples and positions for statistics."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import StoreError
from theodolite.sites import Site, leaving_block
from theodolite.spec_parts import Label, in_order
from theodolite.store.commits import read_commits
from theodolite.store.records import Commit
from theodolite.store.runs import Run
from theodolite_jobs.passes.samples import SampleSelection

Contrasts = dict[str, dict[str, Any]]
"""`positive`, `negative` and `paired` of each contrast."""


@dataclass(frozen=True)
class ContrastSelection:
    """Samples of both sides at their common positions, and the indices of these among all positions."""

    positive: SampleSelection
    negative: SampleSelection
    paired: bool
    positions: tuple[int, ...]


def measured_sets(run: Run) -> tuple[list[str], list[Label]]:
    """Return the names of the sets that have statistics, and all of their positions, in the order of `in_order`.

    Sets with `positions: all` serve trajectories and have no statistics, since their positions differ between prompts.
    """
    names = [name for name in run.record.sets if run.record.spec.sets[name].positions != "all"]
    return names, in_order(position for name in names for position in run.record.sets[name].positions)


def set_selections(run: Run, commits: Mapping[str, list[Commit]]) -> list[tuple[SampleSelection, tuple[int, ...]]]:
    """Return the samples of each set that are not quarantined, and the indices of its positions among all positions."""
    names, positions = measured_sets(run)
    selections = []
    for name in names:
        own = run.record.sets[name].positions
        selection = SampleSelection(name, quarantined(commits[name]), tuple(range(len(own))))
        selections.append((selection, tuple(positions.index(position) for position in own)))
    return selections


def contrast_selection(run: Run, contrast: Mapping[str, Any], commits: Mapping[str, list[Commit]]) -> ContrastSelection:
    """Return the selection for a contrast; if paired, it leaves out the partners of quarantined prompts too.

    A reduced shard has no single prompts, so the partners of its quarantined prompts stay.
    """
    _, positions = measured_sets(run)
    names, paired = [contrast["positive"], contrast["negative"]], contrast["paired"]
    own = [run.record.sets[name].positions for name in names]
    bad = [quarantined(commits[name]) for name in names]
    kept = [run.record.bounds(name).n_kept for name in names]
    both = frozenset(sample for sample in bad[0] | bad[1] if sample < min(kept))
    excluded = [one | both for one in bad] if paired else bad
    common = [position for position in positions if all(position in one for one in own)]
    positive, negative = (
        SampleSelection(name, out, tuple(one.index(position) for position in common))
        for name, out, one in zip(names, excluded, own, strict=True)
    )
    return ContrastSelection(positive, negative, paired, tuple(positions.index(position) for position in common))


def first_captured(run: Run, candidates: Sequence[tuple[Site, int]]) -> tuple[Site, int] | None:
    """Return the first captured candidate (site, layer) as the site and an index into the run's layers, or None.

    `resid_final` has index 0.
    """
    for site, layer in candidates:
        if site not in run.record.spec.capture.all_sites:
            continue
        if site is Site.RESID_FINAL:
            return site, 0
        if layer in run.record.layers and run.record.has_site(site, layer):
            return site, run.record.layers.index(layer)
    return None


def block_states(run: Run, layer: int) -> list[tuple[Site, int] | None]:
    """Return where a block's input, middle and output were captured, as `first_captured` does; None where not."""
    candidates = ([(Site.RESID_PRE, layer)], [(Site.RESID_MID, layer)], leaving_block(layer, run.record.model.n_layers))
    return [first_captured(run, places) for places in candidates]


def branches_add(run: Run) -> bool:
    """Return whether the outputs of attention and MLP are differences of the stream.

    In post-norm models they are not, since the stream after a norm is not a sum; nor in Gemma 4, whose blocks multiply
    the stream.
    """
    return run.record.parity["branches_add"]


def all_commits(run: Run) -> dict[str, list[Commit]]:
    """Return the commit records of all shards of all sets; raise StoreError if some are missing."""
    commits = {}
    for name, facts in run.record.sets.items():
        known = read_commits(run, name)
        missing = [index for index in range(facts.n_shards) if index not in known]
        if missing:
            raise StoreError(
                f"{run.id}: {len(missing)} of {facts.n_shards} shards of {name} are not captured; the first is "
                f"{name}/{missing[0]:05d}; run the same survey again to capture them"
            )
        commits[name] = [known[index] for index in range(facts.n_shards)]
    return commits


def captured_digest(commits: Mapping[str, list[Commit]]) -> str:
    """Return a digest of the captured activations: the checksums and quarantined samples of all shards."""
    return digest_of(
        {
            name: [[commit.checksums, sorted(commit.quarantined)] for commit in shards]
            for name, shards in commits.items()
        }
    )


def quarantined(commits: Iterable[Commit]) -> frozenset[int]:
    """Return the indices of the quarantined samples."""
    return frozenset(sample for commit in commits for sample in commit.quarantined)
