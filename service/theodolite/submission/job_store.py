"""The records of survey jobs in the store, which every service that uses the store can read.

    jobs/ID/spec.json              the requested spec; ID is its digest
    jobs/ID/attempts/00001.json    an attempt: owner, time and name of the Ray job; created exclusively
    jobs/ID/sent/00001.json        the cluster accepted the Ray job
    jobs/ID/ends/00001.json        how the attempt ended; the first writer wins
    jobs/ID/run.json               the id of the run

Only spec.json is ever replaced, see `store_spec`, and a damaged run.json. Each record has a checksum and its own key,
so one that is damaged, or copied from another survey job, is known.
"""

import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import PurePosixPath
from socket import gethostname
from typing import Any

from theodolite.errors import StoreError
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.objects import SHARING, get, keys, open_location, put, put_new, version
from theodolite.store.pieces import fields_of, record

_FOLDER = "jobs"

_log = logging.getLogger(__name__)

Fields = dict[str, Any]


@dataclass(frozen=True)
class Attempt:
    """An attempt to run a survey job on the cluster."""

    number: int  # from 1
    owner: str  # the id of the bearer token that submitted it, or `local`
    submitted: str  # time of the submission, ISO 8601
    submission: str  # id of the Ray job, which is unique for each attempt


@dataclass(frozen=True)
class End:
    """How an attempt ended: succeeded, failed (with the error message as the reason) or stopped."""

    state: str
    reason: str | None = None


@dataclass(frozen=True)
class _RunId:
    run_id: str


@dataclass(frozen=True)
class StoredJob:
    """A survey job as the store describes it; its id is the digest of its spec."""

    id: str
    spec: SurveySpec
    attempt: Attempt | None  # the last attempt
    sent: bool  # whether the cluster accepted the last attempt
    end: End | None  # how the last attempt ended
    run_id: str | None  # None before it is known


def store_spec(store: str, spec: SurveySpec) -> str:
    """Write the spec of a survey job and return the job's id.

    Only explicitly set fields are written, because a default may depend on the model. A spec with the same values and
    other explicitly set fields has the same id and replaces the stored spec, which is also replaced if it is damaged. A
    new label alone does not replace it.
    """
    location, job_id = open_location(store, create=True), spec.digest()
    content = record(_spec_key(job_id), {"spec": spec.model_dump(mode="json", exclude_unset=True)})
    if not put_new(location, _spec_key(job_id), content):
        stored = read_job_spec(store, job_id)
        if stored is None or _set_fields(stored) != _set_fields(spec):
            put(location, _spec_key(job_id), content)
    return job_id


def _set_fields(spec: SurveySpec) -> dict[str, Any]:
    return spec.model_dump(exclude_unset=True, exclude={"name"})


def read_job_spec(store: str, job_id: str) -> SurveySpec | None:
    """Return the spec of a survey job, or None if the store has no spec of this id that can be read."""
    key = _spec_key(job_id)
    fields = fields_of(key, get(open_location(store), key))
    try:
        return None if fields is None else SurveySpec.model_validate(fields["spec"])
    except ValueError:  # of another version, which shares the store
        return None


def create_attempt(store: str, job_id: str, number: int, owner: str) -> Attempt | None:
    """Create the next attempt and return it, or None if another process created it first."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # A random suffix, because another store may submit the same spec to the same cluster.
    attempt = Attempt(number, owner, now, f"theodolite-{job_id[:16]}-{number}-{secrets.token_hex(4)}")
    key = _key(job_id, "attempts", number)
    return attempt if put_new(open_location(store), key, record(key, asdict(attempt))) else None


def record_sent(store: str, job_id: str, number: int) -> None:
    """Record that the cluster accepted an attempt, which is lost if the cluster does not know it later."""
    put_new(open_location(store), _key(job_id, "sent", number), b"{}")


def end_attempt(store: str, job_id: str, number: int, end: End) -> None:
    """Record how an attempt ended, unless its end is recorded already.

    Raises:
        StoreError: the store cannot be written, or has no such survey job and is therefore not the submitter's store.
    """
    location = open_location(store)
    if version(location, _spec_key(job_id)) is None:
        raise StoreError(f"the store {store} on node {gethostname()} has no survey job {job_id}: {SHARING}")
    key = _key(job_id, "ends", number)
    put_new(location, key, record(key, asdict(end)))


def record_run(store: str, job_id: str, run_id: str) -> None:
    """Record the run id of a survey job."""
    location, key = open_location(store), _run_key(job_id)
    content = record(key, {"run_id": run_id})
    if not put_new(location, key, content) and fields_of(key, get(location, key)) is None:
        put(location, key, content)


def read_jobs(store: str, cache: Cache, job_id: str | None = None) -> list[StoredJob]:
    """Return all survey jobs, or the survey job of an id, last submitted first, through the cache."""
    location = open_location(store)
    by_job: dict[str, list[str]] = {}
    for key in keys(location, _FOLDER if job_id is None else f"{_FOLDER}/{job_id}"):
        by_job.setdefault(key.split("/")[1], []).append(key)

    def size(value: object, whole: int) -> int:
        return cache.limit_bytes + 1 if value is None else whole  # a damaged record may be written again

    def read(key: str) -> Fields | None:
        return cache.get(("job", store, key), lambda: fields_of(key, get(location, key)), lambda one: size(one, 2000))

    jobs = []
    for name, job_keys in by_job.items():
        if _spec_key(name) not in job_keys:
            continue
        spec = cache.get(("job", store, name), partial(read_job_spec, store, name), lambda one: size(one, 20_000))
        if spec is None:
            _log.warning(
                "%s cannot be read, and its survey job is not listed; submit the survey again", _spec_key(name)
            )
        else:
            jobs.append(_stored_job(name, spec, job_keys, read))
    return sorted(jobs, key=lambda job: (job.attempt.submitted if job.attempt else "", job.id), reverse=True)


def _stored_job(
    name: str, spec: SurveySpec, job_keys: Sequence[str], read: Callable[[str], Fields | None]
) -> StoredJob:
    """Return a survey job. One of whose records is damaged has failed, so that it can be submitted again."""
    numbers = [int(stem) for key in job_keys if "/attempts/" in key and (stem := PurePosixPath(key).stem).isdigit()]
    number = max(numbers, default=0)  # no attempt has number 0
    wanted = _key(name, "attempts", number), _key(name, "ends", number), _run_key(name)
    kinds = dict(zip(wanted, (Attempt, End, _RunId), strict=True))
    found = {key: _as(kind, read(key)) for key, kind in kinds.items() if key in job_keys}
    attempt, end, run = (found.get(key) for key in wanted)
    damaged = [key for key, one in found.items() if one is None]
    if damaged:
        end = End("failed", f"{damaged[0]} is damaged; submit the survey again")
    return StoredJob(
        id=name,
        spec=spec,
        attempt=(attempt or Attempt(number, "", "", "")) if number else None,
        sent=_key(name, "sent", number) in job_keys,
        end=end,
        run_id=run.run_id if run else None,
    )


def _as(kind: Any, fields: Fields | None) -> Any:
    """Return a record with these fields, or None if it is damaged, or of another version that shares the store."""
    try:
        return None if fields is None else kind(**fields)
    except TypeError:
        return None


def _spec_key(job_id: str) -> str:
    return f"{_FOLDER}/{job_id}/spec.json"


def _key(job_id: str, part: str, number: int) -> str:
    """Return the key of a record of an attempt."""
    return f"{_FOLDER}/{job_id}/{part}/{number:05d}.json"


def _run_key(job_id: str) -> str:
    return f"{_FOLDER}/{job_id}/run.json"
