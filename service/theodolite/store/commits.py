"""Commit shards atomically: pending → commit → move.

An attempt writes its bytes under `pending/` and then creates the commit record exclusively: the first attempt wins.
Only the bytes of the attempt in the record are moved to their Zarr keys. A resume or a late attempt finishes an
interrupted move. A late or duplicate writer therefore cannot overwrite a committed shard.
"""

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace

from theodolite.errors import LinkedObjectError, RunDamagedError, StoreError
from theodolite.store.checksums import damage_of, sha256
from theodolite.store.layout import ACTIVATIONS, REDUCED, shard_key
from theodolite.store.manifest import listed_checksums
from theodolite.store.objects import Location, delete, get, get_all, keys, move, put, put_new, sizes
from theodolite.store.records import Commit, decode_record, decode_winner, encode_record, record_key
from theodolite.store.runs import Run

_ARRAYS = 4
"""Number of arrays of a shard that are written or moved concurrently."""


def new_attempt() -> str:
    """Return a unique name for an attempt."""
    return uuid.uuid4().hex[:12]


def commit_shard(location: Location, commit: Commit, encoded: Mapping[str, bytes]) -> Commit:
    """Commit an attempt unless another one is committed already; return the commit record of the shard.

    `encoded` are the bytes of each of the shard's arrays, by the array's name. If the record's creation fails with a
    StoreError, the attempt may be committed or not: its bytes stay under `pending/`, so that a resume can finish it.
    """
    start = time.perf_counter()
    try:
        _for_each(encoded, lambda name: put(location, _pending_key(commit, name), encoded[name]))
    except StoreError:  # without a record these bytes cannot be committed; on a full disk they take the space
        with suppress(StoreError):
            delete(location, [_pending_key(commit, name) for name in encoded])
        raise
    size, seconds = sum(map(len, encoded.values())), round(time.perf_counter() - start, 4)
    commit = replace(commit, stored_bytes=size, store_seconds=seconds)
    key = record_key(commit.prompt_set, commit.index)
    if put_new(location, key, encode_record(commit)):
        move_committed(location, commit)
        return commit
    winner = decode_winner(get(location, key), commit)
    move_committed(location, winner)
    try:
        _heal(location, winner, encoded)
    finally:
        delete(location, [_pending_key(commit, name) for name in encoded])
    return winner


def move_committed(location: Location, commit: Commit) -> None:
    """Move a committed attempt's bytes to their Zarr keys; a repeated call changes nothing."""
    _for_each(commit.checksums, lambda name: move(location, _pending_key(commit, name), array_key(commit, name)))


def _for_each(names: Iterable[str], act: Callable[[str], object]) -> None:
    """Call a function for each array of a shard at the same time, since a bucket has a long latency."""
    with ThreadPoolExecutor(_ARRAYS) as pool:
        for _ in pool.map(act, names):
            pass


def _heal(location: Location, commit: Commit, encoded: Mapping[str, bytes]) -> None:
    """Write the arrays of a committed shard that are missing or damaged, from another attempt's bytes.

    Raises:
        RunDamagedError: the other attempt has other bytes.
    """
    for name, checksum in commit.checksums.items():
        wrong = damage_of(get(location, array_key(commit, name)), checksum, "committed")
        if wrong and sha256(encoded.get(name, b"")) != checksum:
            raise RunDamagedError(
                f"{commit.run_id}: shard {commit.name}, {name}: {wrong}, and this replica computes other bits; repair "
                f"the run on nodes of the kind that captured the shard ({commit.device or 'unknown device'})"
            )
        if wrong:
            put(location, array_key(commit, name), encoded[name])


def committed_indices(run: Run, prompt_set: str) -> set[int]:
    """Return the indices of the shards of a set that have a commit record; other objects beside them do not count."""
    present = set(keys(run.location, f"shards/{prompt_set}"))
    return {index for index in range(run.record.sets[prompt_set].n_shards) if record_key(prompt_set, index) in present}


def read_commits(run: Run, prompt_set: str) -> dict[int, Commit]:
    """Return the commit records of a set by shard index.

    Raises:
        RunDamagedError: a record is damaged, or is not the one that COMPLETE lists.
    """
    indices, listed = sorted(committed_indices(run, prompt_set)), listed_checksums(run)
    contents = get_all(run.location, [record_key(prompt_set, index) for index in indices])
    commits = {}
    for index, content in zip(indices, contents, strict=True):
        key, commit = record_key(prompt_set, index), decode_record(content, run.record, prompt_set, index)
        if key in listed and (wrong := damage_of(content, listed[key])):
            raise RunDamagedError(f"{run.id}: {key}: {wrong}; run `theodolite run verify {run.id} --repair`")
        commits[index] = commit
    return commits


def read_commit(run: Run, prompt_set: str, index: int) -> Commit:
    """Return the commit record of a shard; raises RunDamagedError if it is missing or damaged."""
    return decode_record(get(run.location, record_key(prompt_set, index)), run.record, prompt_set, index)


def recover(run: Run, prompt_set: str) -> dict[int, Commit]:
    """Finish every interrupted move, and return a set's commit records by shard index.

    The function compares sizes and computes no checksum; `damages` does.

    Raises:
        RunDamagedError: a commit record is damaged, or committed bytes are missing.
    """
    commits = read_commits(run, prompt_set)
    pending = set(keys(run.location, f"pending/{prompt_set}"))
    for commit in commits.values():
        if any(_pending_key(commit, name) in pending for name in commit.checksums):
            move_committed(run.location, commit)
    stored = sizes(run.location, f"{ACTIVATIONS}/{prompt_set}")
    if run.record.bounds(prompt_set).n_kept < run.record.sets[prompt_set].n_samples:
        stored |= sizes(run.location, f"{REDUCED}/{prompt_set}")
    incomplete = [problem for commit in commits.values() if (problem := _incomplete(commit, stored))]
    if incomplete:
        more = f" and {len(incomplete) - 1} more shards of {prompt_set} are incomplete" if len(incomplete) > 1 else ""
        raise RunDamagedError(f"{run.id}: {incomplete[0]}{more}; run `theodolite run verify {run.id} --repair`")
    return commits


def _incomplete(commit: Commit, stored: Mapping[str, int]) -> str | None:
    """Return the problem of a shard whose arrays are missing or have another size, or None."""
    found = {name: stored.get(array_key(commit, name)) for name in commit.checksums}
    for name, size in found.items():
        if size is None:
            return f"shard {commit.name}, {name}: is missing"
    size = sum(size or 0 for size in found.values())
    if commit.stored_bytes and size != commit.stored_bytes:
        return f"shard {commit.name} has {size:,} bytes; {commit.stored_bytes:,} were committed"
    return None


def damages(run: Run, commit: Commit) -> Iterator[str]:
    """Yield a sentence for each of a shard's arrays that is missing or whose checksum is wrong."""
    for name, checksum in commit.checksums.items():
        with suppress(LinkedObjectError):  # `verify` names links
            if wrong := damage_of(get(run.location, array_key(commit, name)), checksum, "committed"):
                yield f"shard {commit.name}, {name}: {wrong}"


def drop_pending(run: Run) -> None:
    """Remove the bytes of attempts that lost; call it only when all shards are committed and moved."""
    for name in run.record.sets:
        delete(run.location, keys(run.location, f"pending/{name}"))


def array_key(commit: Commit, name: str) -> str:
    """Return the key of the bytes of a shard's array in the run."""
    if name == REDUCED:
        return f"{REDUCED}/{commit.prompt_set}/{commit.index:05d}.npz"
    return f"{ACTIVATIONS}/{commit.prompt_set}/{shard_key(name, commit.index)}"


def _pending_key(commit: Commit, name: str) -> str:
    return f"pending/{commit.prompt_set}/{commit.index:05d}.{commit.attempt}/{name}"
