"""Jobs: surveys that were submitted to a cluster. The store is their memory, so that any service knows them.

    jobs/ID/spec.json              what is requested; ID is its digest
    jobs/ID/attempts/00001.json    a try on the cluster: by whom, when, under which name; created exclusively
    jobs/ID/sent/00001.json        the cluster took it
    jobs/ID/ends/00001.json        how it ended; the first who writes it is right
    jobs/ID/run.json               which run it became

Only spec.json is ever changed: see `store_spec`.
"""

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from socket import gethostname
from typing import Any

from theodolite.errors import StoreError
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.objects import SHARING, get, keys, open_location, put, put_new, version

_FOLDER = "jobs"


@dataclass(frozen=True)
class Attempt:
    """A try on the cluster.

    Attributes:
        number: from 1.
        owner: the id of the token that asked for it, or `local`.
        submitted: when, ISO 8601.
        submission: its name on the cluster, which can be used once.
    """

    number: int
    owner: str
    submitted: str
    submission: str


@dataclass(frozen=True)
class End:
    """How an attempt ended.

    Attributes:
        state: succeeded, failed or stopped.
        reason: why it failed.
    """

    state: str
    reason: str | None = None


@dataclass(frozen=True)
class StoredJob:
    """What the store knows of a job.

    Attributes:
        id: the digest of its spec.
        spec: what is asked.
        attempt: the last one; None where none was made yet.
        sent: whether the cluster took that one.
        end: how it ended; None while it has not.
        run_id: which run it became, once it is known.
    """

    id: str
    spec: SurveySpec
    attempt: Attempt | None
    sent: bool
    end: End | None
    run_id: str | None


def store_spec(store: str, spec: SurveySpec) -> str:
    """Write the spec of a job that is about to be tried, and return the job's id.

    Only fields that were set are written: a default may depend on the model. A spec that sets other fields to the same
    values has the same id, and replaces the stored one; another label alone does not.
    """
    location, job_id = open_location(store, create=True), spec.digest()
    content = spec.model_dump_json(exclude_unset=True).encode()
    if not put_new(location, _spec_key(job_id), content):
        stored = read_job_spec(store, job_id)
        if stored is not None and _set_fields(stored) != _set_fields(spec):
            put(location, _spec_key(job_id), content)
    return job_id


def _set_fields(spec: SurveySpec) -> dict[str, Any]:
    return spec.model_dump(exclude_unset=True, exclude={"name"})


def read_job_spec(store: str, job_id: str) -> SurveySpec | None:
    """Return what a job asks, or None where there is none of this id."""
    content = get(open_location(store), _spec_key(job_id))
    return None if content is None else SurveySpec.model_validate_json(content)


def begin_attempt(store: str, job_id: str, number: int, owner: str) -> Attempt | None:
    """Claim the next try; None where somebody else just did."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # A word of chance, for other stores may send the same job to the same cluster.
    attempt = Attempt(number, owner, now, f"theodolite-{job_id[:16]}-{number}-{secrets.token_hex(4)}")
    key = _key(job_id, "attempts", number)
    return attempt if put_new(open_location(store), key, json.dumps(asdict(attempt)).encode()) else None


def tell_sent(store: str, job_id: str, number: int) -> None:
    """Say that the cluster took a try: from then on it is lost where the cluster does not know it."""
    put_new(open_location(store), _key(job_id, "sent", number), b"{}")


def end_attempt(store: str, job_id: str, number: int, end: End) -> None:
    """Write how an attempt ended, unless its end is known already.

    Raises:
        StoreError: the store has no such job, so it is not the one that the job was submitted to; or it cannot be
            written.
    """
    location = open_location(store)
    if version(location, _spec_key(job_id)) is None:
        raise StoreError(f"the store {store} on node {gethostname()} has no job {job_id}: {SHARING}")
    put_new(location, _key(job_id, "ends", number), json.dumps(asdict(end)).encode())


def tell_run(store: str, job_id: str, run_id: str) -> None:
    """Say which run a job became."""
    put_new(open_location(store), f"{_FOLDER}/{job_id}/run.json", json.dumps({"run_id": run_id}).encode())


def read_jobs(store: str, cache: Cache, job_id: str | None = None) -> list[StoredJob]:
    """Return all jobs, or the one of an id, the latest submitted first. What is written once is read once."""
    location = open_location(store)
    by_job: dict[str, list[str]] = {}
    for key in keys(location, _FOLDER if job_id is None else f"{_FOLDER}/{job_id}"):
        by_job.setdefault(key.split("/")[1], []).append(key)

    def read(key: str) -> Any:
        return cache.get(("job", store, key), lambda: json.loads(get(location, key) or b"null"), lambda _: 2000)

    found = []
    for name, there in by_job.items():
        try:
            if _spec_key(name) not in there:
                continue
            spec = cache.get(("job", store, name), partial(read_job_spec, store, name), lambda _: 20_000)
            if spec is not None:
                found.append(_stored_job(name, spec, there, read))
        except (ValueError, TypeError, KeyError):  # a broken file of one job hides no other
            continue
    return sorted(found, key=lambda job: (job.attempt.submitted if job.attempt else "", job.id), reverse=True)


def _stored_job(name: str, spec: SurveySpec, there: Sequence[str], read: Callable[[str], Any]) -> StoredJob:
    attempts = sorted(key for key in there if key.startswith(f"{_FOLDER}/{name}/attempts/"))
    attempt = Attempt(**read(attempts[-1])) if attempts else None
    number = attempt.number if attempt else 0  # which no attempt has
    sent, ended = (_key(name, part, number) for part in ("sent", "ends"))
    run = f"{_FOLDER}/{name}/run.json"
    return StoredJob(
        id=name,
        spec=spec,
        attempt=attempt,
        sent=sent in there,
        end=End(**read(ended)) if ended in there else None,
        run_id=read(run)["run_id"] if run in there else None,
    )


def _spec_key(job_id: str) -> str:
    """Return where a job's spec lies."""
    return f"{_FOLDER}/{job_id}/spec.json"


def _key(job_id: str, part: str, number: int) -> str:
    """Return where something of an attempt lies."""
    return f"{_FOLDER}/{job_id}/{part}/{number:05d}.json"
