"""Submit, stop and describe survey jobs; the service and the command line share these functions."""

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from theodolite.errors import ClusterError, ClusterRefusedError, RunNotFoundError, StoreError
from theodolite.query.runs import progress
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.objects import absolute
from theodolite.store.runs import list_run_ids, open_run
from theodolite.store.upload_owners import expired_uploads, remove_upload
from theodolite.store.uploads import with_uploaded_texts
from theodolite.submission import job_store
from theodolite.submission.job_store import End, StoredJob
from theodolite.submission.ray_jobs import ClusterState, check_version, cluster_state, cluster_states, stop, submit

UNFINISHED = ("queued", "running")

_SECONDS_IN_TRANSIT = 60
"""Maximum time between the record of an attempt in the store and its acceptance by the cluster."""


def submit_survey(
    settings: Settings,
    spec: SurveySpec,
    owner: str,
    cache: Cache,
    check_room: Callable[[int], None] = lambda _unfinished: None,
) -> str:
    """Submit a survey job and return its id.

    A survey job that is queued, running or succeeded is not submitted again. If its run was deleted, it is.

    Args:
        settings: the store and the cluster.
        spec: the requested survey.
        owner: the id of the submitter's bearer token, or `local`.
        cache: cache of the records of survey jobs.
        check_room: called before the submission with the number of the owner's unfinished survey jobs; may raise.

    Raises:
        ClusterRefusedError: the cluster refused the Ray job.
        ClusterError: the cluster did not respond; if it accepted the Ray job, `job_states` shows it later.
    """
    given, spec = spec, with_uploaded_texts(spec)
    job_id, jobs = spec.digest(), job_store.read_jobs(settings.store, cache)
    # Request the states after reading the store, so that the cluster knows all Ray jobs that the store has as sent.
    known = cluster_states(settings)
    states = {job.id: _state(job, known, None).state for job in jobs}
    last_job = next((job for job in jobs if job.id == job_id), None)
    if last_job and (states[job_id] in UNFINISHED or _is_done(settings, last_job, states[job_id])):
        return job_id
    check_room(sum(states[job.id] in UNFINISHED for job in jobs if job.attempt and job.attempt.owner == owner))
    check_version(settings)
    with_uploaded_texts(given, settings.store, owner)
    job_store.store_spec(settings.store, spec)
    last = last_job.attempt if last_job else None
    # A Ray job may have ended after the store was read; the cluster may have restarted since and not know it any more.
    if last is None or not _has_succeeded(settings, job_id, cache):
        _submit_attempt(settings, job_id, (last.number if last else 0) + 1, owner)
    return job_id


def _has_succeeded(settings: Settings, job_id: str, cache: Cache) -> bool:
    jobs = job_store.read_jobs(settings.store, cache, job_id)
    return any(job.end is not None and _is_done(settings, job, job.end.state) for job in jobs)


def _is_done(settings: Settings, job: StoredJob, state: str) -> bool:
    """Return whether a survey job has succeeded and its run was not deleted since."""
    return state == "succeeded" and (job.run_id is None or job.run_id in list_run_ids(settings.store))


def unfinished_jobs(settings: Settings, cache: Cache, is_meant: Callable[[StoredJob], bool]) -> list[StoredJob]:
    """Return the survey jobs that are meant, and queued or running.

    Raises:
        ClusterError: the cluster does not respond, so it may still run one of them.
    """
    meant = [job for job in job_store.read_jobs(settings.store, cache) if job.end is None and is_meant(job)]
    known = cluster_states(settings) if meant else {}
    return [job for job in meant if _state(job, known, None).state in UNFINISHED]


def uploads_in(spec: SurveySpec) -> set[str]:
    """Return the names of the uploads that a spec names."""
    return {one.source.removeprefix("upload:") for one in spec.prompts.values() if one.source.startswith("upload:")}


def remove_expired_uploads(settings: Settings, cache: Cache) -> None:
    """Remove the uploads that have expired, unless a survey job that has not ended names them.

    Raises:
        ClusterError: the cluster does not respond, so it may still run such a survey job.
    """
    expired = expired_uploads(settings.store, settings.upload_days)
    names = {one.name for one in expired}
    used = unfinished_jobs(settings, cache, lambda job: not names.isdisjoint(uploads_in(job.spec)))
    kept = {name for job in used for name in uploads_in(job.spec)}
    renewed = set(expired) - set(expired_uploads(settings.store, settings.upload_days))  # while the cluster answered
    for one in expired:
        if one.name not in kept and one not in renewed:
            remove_upload(settings.store, one.name, one.owner)


def job_states(settings: Settings, jobs: Iterable[StoredJob]) -> Mapping[str, ClusterState]:
    """Return the state of each survey job: the recorded end of its last attempt, or else the cluster's state.

    The function records a failure that only the cluster knows, because a restarted cluster forgets it.
    """
    jobs = list(jobs)
    unfinished = [job.attempt for job in jobs if job.attempt and job.end is None]
    known: Mapping[str, ClusterState | None] = {}
    unreachable = None
    try:
        if len(unfinished) == 1:
            name = unfinished[0].submission
            known = {name: cluster_state(settings, name)}
        elif unfinished:
            known = cluster_states(settings)
    except ClusterError as error:
        unreachable = str(error)
    states = {job.id: _state(job, known, unreachable) for job in jobs}
    for job in jobs:
        if job.attempt and job.end is None and states[job.id].state == "failed":
            with suppress(StoreError):  # reading must work although the store refuses writes
                end = End("failed", states[job.id].reason)
                job_store.end_attempt(settings.store, job.id, job.attempt.number, end)
    return states


def stop_survey(settings: Settings, job: StoredJob) -> None:
    """Stop a survey job that has not ended; its committed shards are kept.

    Raises:
        ClusterError: the cluster does not respond, or has not accepted the Ray job yet.
    """
    if job.attempt is None or job.end is not None:
        return
    state = cluster_state(settings, job.attempt.submission)
    if state is None and _is_in_transit(job):
        raise ClusterError(
            f"the cluster has not accepted survey job {job.id[:12]}… yet; stop the survey job again in a few seconds"
        )
    if state is not None and state.state in UNFINISHED:
        stop(settings, job.attempt.submission)
        job_store.end_attempt(settings.store, job.id, job.attempt.number, End("stopped"))


def job_content(settings: Settings, job: StoredJob, state: ClusterState, cache: Cache) -> dict[str, Any]:
    """Return the description of a survey job for users: the given state, and the progress in the store."""
    done, is_deleted = dict[str, dict[str, int]](), False
    try:
        done = progress(open_run(settings.store, job.run_id, cache)) if job.run_id else {}
    except RunNotFoundError:
        is_deleted = state.state == "succeeded"  # otherwise it is not created yet
    except StoreError:
        pass  # it is damaged, which a request for the run reports
    return {
        "id": job.id,
        "name": job.spec.name,
        "model": job.spec.model.id,
        "state": state.state,
        "attempt": job.attempt.number if job.attempt else 0,
        "submitted": job.attempt.submitted if job.attempt else "",
        "reason": "its run was deleted; submit the survey again to compute it" if is_deleted else state.reason,
        "run_id": None if is_deleted else job.run_id,
        "progress": done,
        "spec": job.spec.model_dump(mode="json", exclude_unset=True),
    }


def _submit_attempt(settings: Settings, job_id: str, number: int, owner: str) -> None:
    """Create and submit the next attempt, unless another process has just created it."""
    attempt = job_store.create_attempt(settings.store, job_id, number, owner)
    if attempt is None:
        return
    try:
        submit(settings, absolute(settings.store), job_id, attempt)
    except ClusterRefusedError as error:
        job_store.end_attempt(settings.store, job_id, number, End("failed", str(error)))
        raise
    # After any other error the cluster may have accepted the Ray job; its states show that later.
    job_store.record_sent(settings.store, job_id, number)


def _is_in_transit(job: StoredJob) -> bool:
    """Return whether the last attempt is new and its acceptance by the cluster is not recorded yet."""
    if job.attempt is None or job.sent:
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(job.attempt.submitted)
    return age.total_seconds() < _SECONDS_IN_TRANSIT


def _state(job: StoredJob, known: Mapping[str, ClusterState | None], unreachable: str | None) -> ClusterState:
    if job.end is not None:
        return ClusterState(job.end.state, job.end.reason)
    if job.attempt is None:
        return ClusterState("lost", "the survey job was never sent to the cluster; submit it again")
    state = known.get(job.attempt.submission)
    if state is not None:
        return state
    if unreachable is None and _is_in_transit(job):
        return ClusterState("queued", None)
    return ClusterState("lost", unreachable or "the cluster no longer knows the survey job; submit it again to resume")
