"""COMPLETE: the digests of the finished analyses, and a checksum of every object except the shards.

The commit records hold the checksums of the shards. COMPLETE also has a copy of run.json, for its repair.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from typing import Any

from theodolite.errors import LinkedObjectError, RunDamagedError, one_line
from theodolite.groups import table_owner
from theodolite.store.checksums import damage_of, seal, sha256, unseal
from theodolite.store.descriptions import descriptions_of
from theodolite.store.layout import ACTIVATIONS, COMPLETE, RESULTS, RUN_RECORD, prompts_key, tokens_key
from theodolite.store.objects import Location, get, get_all, put, version
from theodolite.store.records import all_record_keys
from theodolite.store.runs import Run

_NO_CONTENT: dict[str, Any] = {"groups": {}, "checksums": {}, "requested": None}


def finished_groups(run: Run) -> dict[str, str]:
    """Return the digest of each analysis that COMPLETE lists; empty without COMPLETE."""
    return dict(_read(run)["groups"])


def listed_checksums(run: Run) -> dict[str, str]:
    """Return the checksum of every object that COMPLETE lists, by the object's key in the run."""
    return dict(_read(run)["checksums"])


def finished_tables(run: Run) -> list[str]:
    """Return the names of the tables that COMPLETE lists."""
    return [PurePosixPath(key).stem for key in listed_checksums(run) if key.startswith("tables/")]


def list_groups(run: Run, digests: Mapping[str, str], written: Mapping[str, str] = {}) -> None:
    """Add finished analyses and their digests to COMPLETE; create COMPLETE if it is missing.

    A checksum is that of the bytes that their writer wrote, so that no damage of the store is taken for the original.
    COMPLETE keeps the checksums of the captured objects, and those of the groups that were not written again.

    Args:
        run: the run.
        digests: the digest of each finished group.
        written: the checksum of each object that was just written, by its key.
    """
    content = _read(run)
    _write_groups(run, content, {**content["groups"], **digests}, written)


def drop_groups(run: Run, names: Iterable[str]) -> None:
    """Remove these groups from COMPLETE."""
    drop_outdated(run, dict.fromkeys(names, ""))


def drop_outdated(run: Run, digests: Mapping[str, str]) -> None:
    """Remove from COMPLETE each of these groups that it lists with another digest than this one."""
    content = _read(run)
    groups = content["groups"]
    remaining = {name: digest for name, digest in groups.items() if digests.get(name, digest) == digest}
    if remaining != groups:
        _write_groups(run, content, remaining, {})


def _write_groups(run: Run, content: dict[str, Any], groups: Mapping[str, str], written: Mapping[str, str]) -> None:
    replaced = {owner for key in written if (owner := group_of(key)) is not None}
    kept = {
        key: checksum
        for key, checksum in content["checksums"].items()
        if (owner := group_of(key)) is None or (owner in groups and owner not in replaced)
    }
    _write(run, {**content, "groups": groups, "checksums": {**kept, **written}})


def forget(run: Run, keys_of_objects: Iterable[str]) -> None:
    """Remove objects from COMPLETE, because they are about to be written again with other contents."""
    content = _read(run)
    if checksums := content["checksums"]:
        remaining = {key: checksums[key] for key in checksums.keys() - set(keys_of_objects)}
        _write(run, {**content, "checksums": remaining})


def write_request(run: Run, request: Mapping[str, Any] | None) -> None:
    """Write into COMPLETE, if there is one, what was requested and is not finished; None removes it."""
    content = _read(run)
    if content["checksums"]:
        _write(run, {**content, "requested": request})


def unfinished_request(run: Run) -> dict[str, Any] | None:
    """Return what was requested and is not finished, as `write_request` wrote it, or None.

    Another version of Theodolite may have written it, with other fields.
    """
    requested: dict[str, Any] | None = _read(run)["requested"]
    return requested


def unfinished_groups(run: Run) -> list[str]:
    """Return the names of the groups that were requested and are not finished, once the first group is finished."""
    requested = (unfinished_request(run) or {}).get("groups", {})
    return [name for name in requested if name not in finished_groups(run)]


def _write(run: Run, content: Mapping[str, Any]) -> None:
    """Write COMPLETE with `groups`, `checksums` and `requested`, as `_read` returns them."""
    groups, checksums, requested = (content[name] for name in ("groups", "checksums", "requested"))
    fields = {
        "run_id": run.id,
        "groups": dict(sorted(groups.items())),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "checksums": dict(sorted(checksums.items())),
        RUN_RECORD: _run_record(run, checksums).decode(),
        **({} if requested is None else {"requested": requested}),
    }
    put(run.location, COMPLETE, seal(fields))


def _run_record(run: Run, checksums: Mapping[str, str]) -> bytes:
    """Return run.json, or the copy in COMPLETE if run.json is no longer what `checksums` lists.

    Raises:
        RunDamagedError: both are missing, for example because the run was removed.
    """
    content = get(run.location, RUN_RECORD) or b""
    if sha256(content) == checksums.get(RUN_RECORD):
        return content
    content = copy_of_run_record(run.location, run.id) or content
    if not content:
        raise RunDamagedError(f"{run.id}: {RUN_RECORD} is missing; run `theodolite run verify {run.id} --repair`")
    return content


def copy_of_run_record(location: Location, run_id: str) -> bytes | None:
    """Return the copy of run.json in the COMPLETE of a run; None if COMPLETE has no valid copy or is of another run."""
    with suppress(ValueError):
        content = unseal(get(location, COMPLETE))
        _check_identity(content, run_id)
        copy, listed = content.get(RUN_RECORD), _texts(content.get("checksums"), "checksums").get(RUN_RECORD)
        if isinstance(copy, str) and sha256(copy.encode()) == listed:
            return copy.encode()
    return None


def _check_identity(content: Mapping[str, Any], run_id: str) -> None:
    """Raise ValueError if COMPLETE is that of another run."""
    if (named := content.get("run_id")) != run_id:
        raise ValueError(f"is that of the run {named}")


def changed_objects(run: Run) -> Iterator[tuple[str, str]]:
    """Yield the key and the problem of each object that COMPLETE lists, or should list, and that is not as written."""
    checksums = listed_checksums(run)
    for key, checksum in checksums.items():
        with suppress(LinkedObjectError):  # `verify` names links
            if wrong := damage_of(get(run.location, key), checksum):
                yield key, wrong
    if checksums:
        for key in sorted(unlisted(run)):
            is_there = version(run.location, key) is not None
            yield key, "is not listed in COMPLETE" if is_there else "is missing"


def unlisted(run: Run) -> set[str]:
    """Return the keys of the objects of the capture that COMPLETE does not list, although it should."""
    return captured_keys(run) - listed_checksums(run).keys()


def refuse_changed_captured(run: Run) -> None:
    """Raise RunDamagedError if an object of the capture, other than a shard, is missing, damaged or not listed.

    A commit record that COMPLETE does not list is that of a repair that was interrupted: the results may rest on other
    activations.
    """
    problems = changed_captured(run)
    if listed_checksums(run):
        problems += [f"{key}: is not listed in COMPLETE" for key in sorted(unlisted(run))]
    refuse_problems(run, problems)


def refuse_problems(run: Run, problems: Sequence[str]) -> None:
    """Raise RunDamagedError with the first of several problems and the number of the others, if there are any."""
    if problems:
        more = f" and {len(problems) - 1} more problems" if len(problems) > 1 else ""
        raise RunDamagedError(f"{run.id}: {problems[0]}{more}; run `theodolite run verify {run.id} --repair`")


def changed_captured(run: Run) -> list[str]:
    """Return a sentence for each listed object of the capture, except commit records, that is not as written."""
    records = all_record_keys(run.record)
    listed = {
        key: checksum for key, checksum in listed_checksums(run).items() if key not in records and is_captured(key)
    }
    contents = zip(listed.items(), get_all(run.location, listed), strict=True)
    return [f"{key}: {wrong}" for (key, checksum), content in contents if (wrong := damage_of(content, checksum))]


def captured_object(run: Run, key: str) -> bytes:
    """Return an object that the capture wrote; raises RunDamagedError if its checksum is not that of COMPLETE.

    While COMPLETE does not list it, there is no checksum to compare.
    """
    content, checksum = get(run.location, key), listed_checksums(run).get(key)
    wrong = "is missing" if content is None else damage_of(content, checksum) if checksum else None
    if wrong:
        raise RunDamagedError(f"{run.id}: {key}: {wrong}; run `theodolite run verify {run.id} --repair`")
    return content or b""


def _read(run: Run) -> dict[str, Any]:
    if run.cache is None:
        return _parse(run)
    if not run.complete_snapshot:
        written = version(run.location, COMPLETE)
        if written is None:
            return _NO_CONTENT
        content = run.cached((COMPLETE, written), partial(_parse, run), lambda content: 200 * len(content["checksums"]))
        run.complete_snapshot.update(content)
    return run.complete_snapshot


def _parse(run: Run) -> dict[str, Any]:
    content = get(run.location, COMPLETE)
    if content is None:
        return _NO_CONTENT
    try:
        fields = unseal(content)
        _check_identity(fields, run.id)
        texts = {name: _texts(fields.get(name), name) for name in ("groups", "checksums")}
        return {**texts, "requested": fields.get("requested")}
    except ValueError as error:
        raise RunDamagedError(
            f"{run.id}: COMPLETE {one_line(error)}; run `theodolite run verify {run.id} --repair`"
        ) from error


def _texts(value: Any, name: str) -> dict[str, str]:
    """Return a mapping of texts; raise ValueError if it is something else, or if a key leaves the run."""
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise ValueError(f"has no valid {name!r}")
    outside = [key for key in value if not key.isprintable() or not {"", ".", ".."}.isdisjoint(key.split("/"))]
    if outside:
        raise ValueError(f"lists {outside[0]!r}, which is no object of the run")
    return value


def captured_keys(run: Run) -> set[str]:
    """Return the keys of all objects that the capture writes, except shards: their commit records hold the checksums.

    The keys follow from run.json, so that a lost object is missed.
    """
    tables = {key for name in run.record.sets for key in (prompts_key(name), tokens_key(name))}
    arrays = {key for name in run.record.sets for key in descriptions_of(run.record, name)}
    root = {f"{ACTIVATIONS}/zarr.json"} if run.record.sets else set()
    return {RUN_RECORD} | tables | arrays | root | all_record_keys(run.record)


def is_captured(key: str) -> bool:
    """Return whether an object that COMPLETE lists was written by the capture, and not with the results."""
    return key == RUN_RECORD or key.startswith(("prompts/", "shards/", f"{ACTIVATIONS}/"))


def group_of(key: str) -> str | None:
    """Return the analysis that an object belongs to, or None for an object of the whole run."""
    folder, _, rest = key.partition("/")
    if folder == RESULTS and "/" in rest:
        return rest.split("/")[0]
    return table_owner(PurePosixPath(key).stem) if folder == "tables" else None
