"""COMPLETE: the digests of the finished result groups, and a checksum of every object except the shards.

The commit records hold the checksums of the shards. COMPLETE also has a copy of run.json, for its repair.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from theodolite.errors import RunDamagedError, one_line
from theodolite.groups import table_owner
from theodolite.store.checksums import damage_of, seal, sha256, unseal
from theodolite.store.layout import ACTIVATIONS, CAPTURED, COMPLETE, RESULTS, RUN_RECORD, SEALED_SINCE
from theodolite.store.objects import Location, delete, get, keys, put, version
from theodolite.store.records import record_key
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


def write_complete(run: Run, groups: Mapping[str, str], written: Mapping[str, str] = {}) -> None:
    """Write COMPLETE with these finished result groups and their digests; remove it if there are none.

    A checksum that COMPLETE lists already stays, so an object that was damaged since is still found. The writer of a
    result knows its checksum, and the store is read only for objects that COMPLETE does not list yet.

    Args:
        run: the run.
        groups: the digest of each finished group.
        written: the checksum of each object of the groups that were just written, by its key.
    """
    if not groups:
        delete(run.location, [COMPLETE])
        return
    replaced = {group_of(key) for key in written}
    checksums = {
        key: checksum
        for key, checksum in listed_checksums(run).items()
        if (owner := group_of(key)) is None or (owner in groups and owner not in replaced)
    }
    for key in _captured_keys(run) - checksums.keys():
        checksums[key] = sha256(get(run.location, key) or b"")
    _write(run, groups, {**checksums, **written})


def forget(run: Run, keys_of_objects: Iterable[str]) -> None:
    """Remove objects from COMPLETE, because they are about to be written again with other contents."""
    groups, checksums = finished_groups(run), listed_checksums(run)
    if groups:
        _write(run, groups, {key: checksums[key] for key in checksums.keys() - set(keys_of_objects)})


def _write(run: Run, groups: Mapping[str, str], checksums: Mapping[str, str]) -> None:
    content = {
        "groups": dict(sorted(groups.items())),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "checksums": dict(sorted(checksums.items())),
        RUN_RECORD: (get(run.location, RUN_RECORD) or b"").decode(),
    }
    put(run.location, COMPLETE, seal(content))


def copy_of_run_record(location: Location) -> bytes | None:
    """Return the copy of run.json in the COMPLETE of a run, or None if COMPLETE has none or is damaged."""
    with suppress(ValueError):
        copy = unseal(get(location, COMPLETE), required=True).get(RUN_RECORD)
        return copy.encode() if isinstance(copy, str) and copy else None
    return None


def changed_objects(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each object that is missing or whose checksum differs from COMPLETE's."""
    for key, checksum in listed_checksums(run).items():
        if wrong := damage_of(get(run.location, key), checksum):
            yield key, wrong


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
        fields = unseal(content, required=run.record.format >= SEALED_SINCE)
        return {name: _texts(fields.get(name), name) for name in ("groups", "checksums")}
    except ValueError as error:
        raise RunDamagedError(
            f"{run.id}: COMPLETE {one_line(error)}; run `theodolite verify {run.id} --repair`"
        ) from error


def _texts(value: Any, name: str) -> dict[str, str]:
    """Return a mapping of texts; raise ValueError if it is something else, or if a key leaves the run."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"has no valid {name!r}")
    outside = [key for key in value if not {"", ".", ".."}.isdisjoint(key.split("/"))]
    if outside:
        raise ValueError(f"lists {outside[0]!r}, which is no object of the run")
    return value


def _captured_keys(run: Run) -> set[str]:
    """Return the keys of the objects that the capture wrote, except shards: their commit records hold the checksums."""
    chunks = tuple(f"{ACTIVATIONS}/{name}/{array}/c/" for name in run.record.sets for array in CAPTURED)
    records = {record_key(name, index) for name, facts in run.record.sets.items() for index in range(facts.n_shards)}
    return {
        key
        for key in keys(run.location)
        if key == RUN_RECORD
        or key in records
        or key.startswith("prompts/")
        or (key.startswith(f"{ACTIVATIONS}/") and not key.startswith(chunks))
    }


def group_of(key: str) -> str | None:
    """Return the result group that an object belongs to, or None for an object of the whole run."""
    folder, _, rest = key.partition("/")
    if folder == RESULTS and "/" in rest:
        return rest.split("/")[0]
    return table_owner(PurePosixPath(key).stem) if folder == "tables" else None
