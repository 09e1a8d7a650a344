"""COMPLETE: which result groups are whole, and a checksum of every object beside the activations' shards.

The shards have checksums of their own, in their commit records.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

from theodolite.errors import RunDamagedError
from theodolite.spec import canonical_json
from theodolite.store.commits import sha256
from theodolite.store.layout import ACTIVATIONS, CAPTURED, COMPLETE, REPORT
from theodolite.store.objects import delete, get, keys, put, version
from theodolite.store.runs import Run


def finished_groups(run: Run) -> dict[str, str]:
    """Return the digest of each finished result group; none while there is no COMPLETE."""
    return dict(_read(run)["groups"])


def sealed_objects(run: Run) -> dict[str, str]:
    """Return the checksum of every object that COMPLETE was written over, by its key in the run."""
    checksums: dict[str, str] = _read(run)["checksums"]
    return checksums


def finished_tables(run: Run) -> list[str]:
    """Return the names of the finished tables."""
    stored = [key for key in _read(run)["checksums"] if key.startswith("tables/")]
    return [key.removeprefix("tables/").removesuffix(".parquet") for key in stored]


def write_complete(run: Run, groups: Mapping[str, str]) -> None:
    """Say which result groups are whole; without any, COMPLETE is removed."""
    if not groups:
        delete(run.location, [COMPLETE])
        return
    checksums = {key: sha256(get(run.location, key) or b"") for key in _sealed_keys(run)}
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"groups": dict(groups), "written": stamp, "checksums": checksums}
    put(run.location, COMPLETE, canonical_json(content).encode())


def changed_objects(run: Run) -> Iterator[str]:
    """Yield a sentence for each object that is not as it was when COMPLETE was written."""
    for key, checksum in _read(run)["checksums"].items():
        if wrong := damage_of(get(run.location, key), checksum):
            yield f"{key}: {wrong}"


def damage_of(content: bytes | None, checksum: str) -> str | None:
    """Return what is wrong with an object that has a checksum in COMPLETE, or None."""
    if content is None:
        return "is missing"
    return None if sha256(content) == checksum else "its bytes are not those that were written"


def _read(run: Run) -> dict[str, Any]:
    if run.kept is None:
        return _parse(run)
    if not run.seen:
        written = version(run.location, COMPLETE)
        if written is None:
            return {"groups": {}, "checksums": {}}
        key = run.url, COMPLETE, written
        run.seen.update(run.kept.get(key, lambda: _parse(run), lambda known: 200 * len(known["checksums"])))
    return run.seen


def _parse(run: Run) -> dict[str, Any]:
    content = get(run.location, COMPLETE)
    if content is None:
        return {"groups": {}, "checksums": {}}
    try:
        data = json.loads(content)
        return {"groups": dict(data["groups"]), "checksums": dict(data["checksums"])}
    except (ValueError, KeyError, TypeError) as error:
        raise RunDamagedError(f"{run.id}: COMPLETE cannot be read: {error}; remove it and run analyse again") from error


def _sealed_keys(run: Run) -> list[str]:
    """Return everything but shards, commit records and what may be written again."""
    shards = {f"{ACTIVATIONS}/{name}/{array}/c" for name in run.record.sets for array in CAPTURED}
    skipped = ("pending/", "shards/", COMPLETE, REPORT)
    return [
        key
        for key in keys(run.location)
        if not key.startswith(skipped) and not any(key.startswith(f"{shard}/") for shard in shards)
    ]
