"""COMPLETE: the digests of the finished result groups, and a checksum of every object except the shards.

The commit records hold the checksums of the shards.
"""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from theodolite.errors import RunDamagedError
from theodolite.spec import canonical_json
from theodolite.store.commits import damage_of, sha256
from theodolite.store.layout import ACTIVATIONS, CAPTURED, COMPLETE, REPORT
from theodolite.store.objects import delete, get, keys, put, version
from theodolite.store.runs import Run


def finished_groups(run: Run) -> dict[str, str]:
    """Return the digest of each result group that COMPLETE lists; empty without COMPLETE."""
    return dict(_read(run)["groups"])


def listed_checksums(run: Run) -> dict[str, str]:
    """Return the checksum of every object that COMPLETE lists, by the object's key in the run."""
    return dict(_read(run)["checksums"])


def finished_tables(run: Run) -> list[str]:
    """Return the names of the tables that COMPLETE lists."""
    return [PurePosixPath(key).stem for key in listed_checksums(run) if key.startswith("tables/")]


def write_complete(run: Run, groups: Mapping[str, str]) -> None:
    """Write COMPLETE with these finished result groups and their digests; remove it if there are none."""
    if not groups:
        delete(run.location, [COMPLETE])
        return
    checksums = {key: sha256(get(run.location, key) or b"") for key in _checksummed_keys(run)}
    stamp = datetime.now(UTC).isoformat(timespec="seconds")
    content = {"groups": dict(groups), "written": stamp, "checksums": checksums}
    put(run.location, COMPLETE, canonical_json(content).encode())


def changed_objects(run: Run) -> Iterator[str]:
    """Yield a sentence for each object that is missing or whose checksum differs from the one in COMPLETE."""
    for key, checksum in _read(run)["checksums"].items():
        if wrong := damage_of(get(run.location, key), checksum):
            yield f"{key}: {wrong}"


def _read(run: Run) -> dict[str, Any]:
    if run.cache is None:
        return _parse(run)
    if not run.complete_snapshot:
        written = version(run.location, COMPLETE)
        if written is None:
            return {"groups": {}, "checksums": {}}
        content = run.cached((COMPLETE, written), partial(_parse, run), lambda content: 200 * len(content["checksums"]))
        run.complete_snapshot.update(content)
    return run.complete_snapshot


def _parse(run: Run) -> dict[str, Any]:
    content = get(run.location, COMPLETE)
    if content is None:
        return {"groups": {}, "checksums": {}}
    try:
        data = json.loads(content)
        return {"groups": dict(data["groups"]), "checksums": dict(data["checksums"])}
    except (ValueError, KeyError, TypeError) as error:
        raise RunDamagedError(
            f"{run.id}: COMPLETE cannot be read: {error}; remove it and run `theodolite analyse {run.id}`"
        ) from error


def _checksummed_keys(run: Run) -> list[str]:
    """Return the keys of all objects except shards, commit records and objects that may be written again."""
    shards = (f"{ACTIVATIONS}/{name}/{array}/c/" for name in run.record.sets for array in CAPTURED)
    skipped = ("pending/", "shards/", COMPLETE, REPORT, *shards)
    return [key for key in keys(run.location) if not key.startswith(skipped)]
