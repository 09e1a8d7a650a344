"""What a capture writes besides shards: tokens, descriptions of arrays, tables of prompts; and all their checksums."""

from collections.abc import Mapping

from theodolite.errors import RunDamagedError, one_line
from theodolite.store.checksums import sha256, unseal
from theodolite.store.commits import drop_pending, recover
from theodolite.store.descriptions import descriptions_of
from theodolite.store.layout import RUN_RECORD, prompts_key, tokens_key
from theodolite.store.manifest import listed_checksums
from theodolite.store.objects import get, get_all, put
from theodolite.store.prompts import encode_prompts, encode_tokens
from theodolite.store.records import decode_record, record_key
from theodolite.store.result_writer import consolidate
from theodolite.store.runs import Run
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.prompts.conversations import text_of


def describe(run: Run, prepared: Prepared) -> dict[str, str]:
    """Write the token ids of each set and the metadata of its arrays; return their checksums by key.

    An object stays as it is if it has the checksum that COMPLETE lists: another version of Zarr may have written it.
    """
    listed, checksums = listed_checksums(run), dict[str, str]()
    for name in prepared.plans:
        objects = descriptions_of(run.record, name)
        named = (prepared.positions[name], prepared.spans[name]) if name in prepared.spans else ()
        objects[tokens_key(name)] = encode_tokens(prepared.tokens[name], *named)
        checksums |= _write(run, objects, listed)
    return checksums


def finish_capture(run: Run, prepared: Prepared) -> dict[str, str]:
    """Write the objects that need all shards; return the checksum of each object of the capture by its key.

    Raises:
        RunDamagedError: a commit record is damaged, or committed bytes are missing.
    """
    commits = {name: recover(run, name) for name in prepared.plans}
    drop_pending(run)
    listed, checksums = listed_checksums(run), describe(run, prepared)
    for name, of_set in commits.items():
        quarantined = dict(item for commit in of_set.values() for item in commit.quarantined.items())
        lengths = [len(ids) for ids in prepared.tokens[name]]
        table = encode_prompts(
            list(map(text_of, prepared.prompts[name])), lengths, run.record.bounds(name), quarantined
        )
        checksums |= _write(run, {prompts_key(name): table}, listed)
    if commits:
        checksums |= consolidate(run)
    return checksums | _record_checksums(run)


def _write(run: Run, objects: Mapping[str, bytes], listed: Mapping[str, str]) -> dict[str, str]:
    """Write the objects that are missing or have other bytes; return the checksum of each by its key."""
    checksums = {}
    for (key, content), stored in zip(objects.items(), get_all(run.location, objects), strict=True):
        if stored is not None and sha256(stored) == listed.get(key):
            checksums[key] = listed[key]
            continue
        if stored != content:
            put(run.location, key, content)
        checksums[key] = sha256(content)
    return checksums


def _record_checksums(run: Run) -> dict[str, str]:
    """Return the checksums of run.json and of all commit records, which carry a checksum of their own."""
    content = get(run.location, RUN_RECORD)
    try:
        unseal(content)
    except ValueError as error:
        raise RunDamagedError(
            f"{run.id}: {RUN_RECORD} {one_line(error)}; run `theodolite run verify {run.id} --repair`"
        ) from error
    checksums = {RUN_RECORD: sha256(content or b"")}
    for name, facts in run.record.sets.items():
        keys = [record_key(name, index) for index in range(facts.n_shards)]
        for index, record in enumerate(get_all(run.location, keys)):
            decode_record(record, run.record, name, index)
            checksums[keys[index]] = sha256(record or b"")
    return checksums
