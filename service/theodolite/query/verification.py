"""Verify a run: read every stored object, and compare it with its checksum."""

from collections.abc import Iterator

from theodolite.errors import RunDamagedError, StoreError
from theodolite.store.commits import committed_indices, damages, read_commit
from theodolite.store.manifest import (
    changed_objects,
    finished_groups,
    refuse_problems,
    unfinished_request,
)
from theodolite.store.objects import keys, links
from theodolite.store.records import record_key
from theodolite.store.runs import Run

ShardKey = tuple[str, int]
"""The set and the index of a shard."""


def verify(run: Run) -> Iterator[str]:
    """Yield a sentence for each link, and each missing or changed object: shards, results, tables, metadata."""
    for key in links(run.location):
        yield f"{key}: is a link, which is not followed; put the file or folder in its place, or remove the link"
    try:
        yield from _missing_and_changed(run)
    except StoreError as error:  # also of a folder that is a link
        yield str(error)


def _missing_and_changed(run: Run) -> Iterator[str]:
    named = set()
    for name, facts in run.record.sets.items():
        missing = missing_shards(run, name)
        named |= {record_key(name, index) for index in missing}
        if missing:
            first = ", ".join(f"{name}/{index:05d}" for index in missing[:3]) + (", …" if len(missing) > 3 else "")
            yield f"{name}: {len(missing)} of {facts.n_shards} shards are not captured (yet): {first}"
    for shard, problems in damaged_shards(run):
        named.add(record_key(*shard))
        yield from problems
    if not finished_groups(run):
        yield "results: none are finished (yet)"
    elif unfinished_request(run) is not None:
        yield "results: some of those that were requested are not finished (yet)"
    yield from (f"{key}: {problem}" for key, problem in changed_objects(run) if key not in named)


def refuse_damaged(run: Run) -> None:
    """Raise RunDamagedError if a stored object of a run is missing or damaged; shards may still be missing."""
    problems = [problem for _, of_shard in damaged_shards(run) for problem in of_shard]
    problems += [f"{key}: {problem}" for key, problem in changed_objects(run)]
    refuse_problems(run, problems)


def missing_shards(run: Run, prompt_set: str) -> list[int]:
    """Return the indices of the shards of a set that have no commit record."""
    return sorted(set(range(run.record.sets[prompt_set].n_shards)) - committed_indices(run, prompt_set))


def damaged_shards(run: Run) -> Iterator[tuple[ShardKey, list[str]]]:
    """Yield each committed shard whose commit record or arrays are damaged, with a sentence for each problem."""
    for name in run.record.sets:
        for index in sorted(committed_indices(run, name)):
            try:
                problems = list(damages(run, read_commit(run, name, index)))
            except RunDamagedError as error:
                problems = [str(error)]
            if problems:
                yield (name, index), problems


def unexpected_objects(run: Run) -> list[str]:
    """Return the keys of objects that no later step reads.

    They lie beside the commit records and are none, or are what an analysis left that did not end; while requested
    results are missing, such objects belong to an analysis that may go on. Nothing is listed if the run has links.
    """
    if links(run.location):
        return []
    expected = {record_key(name, index) for name in run.record.sets for index in committed_indices(run, name)}
    others = [key for key in keys(run.location, "shards") if key not in expected]
    is_done = finished_groups(run) and unfinished_request(run) is None
    return others + (keys(run.location, "pending") if is_done else [])
