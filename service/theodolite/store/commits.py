"""Commit shards atomically: pending → commit → move.

An attempt writes its bytes under `pending/` and then creates the commit record exclusively: the first attempt wins.
Only the bytes of the attempt in the record are moved to their Zarr keys, and a resume finishes an interrupted move.
A late or duplicate writer therefore cannot overwrite a committed shard.
"""

import hashlib
import json
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import PurePosixPath

from theodolite.errors import RunDamagedError
from theodolite.shard_counts import ShardCounts
from theodolite.spec import canonical_json
from theodolite.store.layout import ACTIVATIONS, shard_key
from theodolite.store.objects import Location, delete, get, keys, move, put, put_new

_READ_THREADS = 16
"""Number of commit records that are read concurrently."""


@dataclass(frozen=True)
class Commit(ShardCounts):
    """The record of the committed attempt of a shard, with the shard's counts."""

    prompt_set: str
    index: int
    start: int  # first sample
    stop: int  # one past the last sample
    attempt: str  # its unique name, part of its keys under `pending/`
    checksums: dict[str, str]  # SHA-256 of each array's encoded bytes, by the array's name
    batches: list[list[int]]  # the samples of each batch, as they were computed
    quarantined: dict[int, str] = field(default_factory=dict)  # why a sample's activations cannot be used, by sample
    stored_bytes: int = field(default=0, compare=False)  # size of the encoded arrays
    store_seconds: float = field(default=0.0, compare=False)  # time to write the encoded arrays
    device: str = ""  # the device that computed the shard

    @property
    def name(self) -> str:
        """The shard's name in messages."""
        return f"{self.prompt_set}/{self.index:05d}"

    def numbers(self) -> dict[str, float]:
        """Return all counts and times of a shard, those of writing included."""
        return {
            **self.counts_by_name(),
            "prompts": self.stop - self.start,
            "quarantined": len(self.quarantined),
            "stored_bytes": self.stored_bytes,
            "store_seconds": self.store_seconds,
        }


def new_attempt() -> str:
    """Return a unique name for an attempt."""
    return uuid.uuid4().hex[:12]


def commit_shard(location: Location, commit: Commit, encoded: Mapping[str, bytes]) -> Commit:
    """Commit an attempt unless another one is committed already; return the commit record of the shard.

    `encoded` are the bytes of each of the shard's arrays, by the array's name.
    """
    start = time.perf_counter()
    for name, content in encoded.items():
        put(location, _pending_key(commit, name), content)
    size, seconds = sum(map(len, encoded.values())), round(time.perf_counter() - start, 4)
    commit = replace(commit, stored_bytes=size, store_seconds=seconds)
    key = record_key(commit.prompt_set, commit.index)
    if put_new(location, key, canonical_json(asdict(commit)).encode()):
        move_committed(location, commit)
        return commit
    delete(location, [_pending_key(commit, name) for name in encoded])
    return read_commit(location, commit.prompt_set, commit.index)


def move_committed(location: Location, commit: Commit) -> None:
    """Move a committed attempt's bytes to their Zarr keys; a repeated call changes nothing."""
    for name in commit.checksums:
        move(location, _pending_key(commit, name), array_key(commit, name))


def read_commits(location: Location, prompt_set: str) -> dict[int, Commit]:
    """Return the commit records of a set by shard index."""
    indices = [int(PurePosixPath(key).stem) for key in keys(location, f"shards/{prompt_set}")]
    with ThreadPoolExecutor(_READ_THREADS) as pool:  # a bucket has a long latency even for a small object
        return dict(zip(indices, pool.map(partial(read_commit, location, prompt_set), indices), strict=True))


def read_commit(location: Location, prompt_set: str, index: int) -> Commit:
    """Return the commit record of a shard; raises RunDamagedError if it cannot be read."""
    key = record_key(prompt_set, index)
    try:
        data = json.loads(get(location, key) or b"")
        data["quarantined"] = {int(sample): why for sample, why in data["quarantined"].items()}
        return Commit(**data)
    except (ValueError, KeyError, TypeError) as error:
        raise RunDamagedError(f"the commit record {key} cannot be read: {error}") from error


def recover(location: Location, prompt_set: str) -> dict[int, Commit]:
    """Finish every interrupted move, and return a set's commit records by shard index.

    Raises:
        RunDamagedError: committed bytes are missing.
    """
    commits = read_commits(location, prompt_set)
    pending = set(keys(location, f"pending/{prompt_set}"))
    for commit in commits.values():
        if any(_pending_key(commit, name) in pending for name in commit.checksums):
            move_committed(location, commit)
    present = set(keys(location, f"{ACTIVATIONS}/{prompt_set}"))
    for commit in commits.values():
        for name in commit.checksums:
            if array_key(commit, name) not in present:
                raise RunDamagedError(
                    f"shard {commit.name}, {name}: is missing although it was committed; to capture it again, remove "
                    f"{record_key(prompt_set, commit.index)} from the run and survey again"
                )
    return commits


def damages(location: Location, commit: Commit) -> Iterator[str]:
    """Yield a sentence for each of a shard's arrays that is missing or whose checksum is wrong."""
    for name, checksum in commit.checksums.items():
        if wrong := damage_of(get(location, array_key(commit, name)), checksum, "committed"):
            yield f"shard {commit.name}, {name}: {wrong}"


def damage_of(content: bytes | None, checksum: str, done: str = "written") -> str | None:
    """Return the problem of an object that was written or committed, or None if its checksum is right."""
    if content is None:
        return "is missing"
    return None if sha256(content) == checksum else f"its bytes are not those that were {done}"


def drop_pending(location: Location) -> None:
    """Remove the bytes of attempts that were not committed."""
    delete(location, keys(location, "pending"))


def array_key(commit: Commit, name: str) -> str:
    """Return the key of the bytes of a shard's array in the run."""
    return f"{ACTIVATIONS}/{commit.prompt_set}/{shard_key(name, commit.index)}"


def sha256(content: bytes) -> str:
    """Return the SHA-256 in hex."""
    return hashlib.sha256(content).hexdigest()


def record_key(prompt_set: str, index: int) -> str:
    """Return the key of a shard's commit record in the run."""
    return f"shards/{prompt_set}/{index:05d}.json"


def _pending_key(commit: Commit, name: str) -> str:
    return f"pending/{commit.prompt_set}/{commit.index:05d}.{commit.attempt}/{name}"
