"""Submitted surveys: the store remembers them, a Ray cluster runs them. The service and the command line share this."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from theodolite.errors import ClusterError, ClusterRefusedError, StoreError
from theodolite.query.runs import progress
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.cache import Cache
from theodolite.store.objects import absolute
from theodolite.store.runs import open_run
from theodolite.submission.job_store import End, StoredJob, begin_attempt, end_attempt, read_jobs, store_spec, tell_sent
from theodolite.submission.ray_jobs import ClusterState, check_version, cluster_state, cluster_states, stop, submit

UNFINISHED = ("queued", "running")

_SECONDS_TO_ARRIVE = 60
"""How long an attempt may be on its way to the cluster: it is written down before it is sent."""


def submit_survey(
    settings: Settings,
    spec: SurveySpec,
    owner: str,
    cache: Cache,
    check_room: Callable[[int], None] = lambda _unfinished: None,
) -> str:
    """Submit a survey and return its job's id; one that waits, runs or has succeeded is not submitted again.

    Args:
        settings: the store, and the cluster.
        spec: what is asked.
        owner: who asks: a token's id, or `local`.
        cache: what a long-lived reader has read of jobs.
        check_room: is told how many jobs of the owner have not ended, before another one is begun.

    Raises:
        ClusterRefusedError: the cluster does not take it.
        ClusterError: the cluster cannot be reached; nothing was begun, or its own answer will tell.
    """
    job_id, jobs = spec.digest(), read_jobs(settings.store, cache)
    # After the store, so that the cluster knows what the store says was sent; or an error: nothing is begun unseen.
    known = cluster_states(settings)
    states = {job.id: _state(job, known, None).state for job in jobs}
    if states.get(job_id) in (*UNFINISHED, "succeeded"):
        return job_id
    check_room(
        sum(states[job.id] in UNFINISHED for job in jobs if job.attempt is not None and job.attempt.owner == owner)
    )
    check_version(settings)
    store_spec(settings.store, spec)
    found = next((job.attempt for job in jobs if job.id == job_id and job.attempt), None)
    _begin(settings, job_id, (found.number if found else 0) + 1, owner)
    return job_id


def job_states(settings: Settings, jobs: Iterable[StoredJob]) -> Mapping[str, ClusterState]:
    """Return the state of each job: how its last attempt ended, or else what the cluster says of it."""
    jobs = list(jobs)
    open_ones = [job.attempt for job in jobs if job.attempt and job.end is None]
    known: Mapping[str, ClusterState | None] = {}
    unreachable = None
    try:
        if len(open_ones) == 1:
            name = open_ones[0].submission
            known = {name: cluster_state(settings, name)}
        elif open_ones:
            known = cluster_states(settings)
    except ClusterError as error:
        unreachable = str(error)
    return {job.id: _state(job, known, unreachable) for job in jobs}


def stop_survey(settings: Settings, job: StoredJob) -> None:
    """Stop a job that has not ended; what was captured stays.

    Raises:
        ClusterError: the cluster does not answer, or the job is still on its way there.
    """
    if job.attempt is None or job.end is not None:
        return
    said = cluster_state(settings, job.attempt.submission)
    if said is None and _is_on_its_way(job):
        raise ClusterError(f"job {job.id[:12]}… is still on its way to the cluster; stop it again in a moment")
    if said is not None and said.state in UNFINISHED:
        stop(settings, job.attempt.submission)
        end_attempt(settings.store, job.id, job.attempt.number, End("stopped"))


def job_content(settings: Settings, job: StoredJob, state: ClusterState, cache: Cache) -> dict[str, Any]:
    """Return a job as people see it: its state as the cluster says, and its progress as the store does."""
    try:
        done = progress(open_run(settings.store, job.run_id, cache)) if job.run_id else {}
    except StoreError:  # it is known, and not begun; or it is damaged, which asking for the run itself says
        done = {}
    return {
        "id": job.id,
        "name": job.spec.name,
        "model": job.spec.model.id,
        "state": state.state,
        "attempt": job.attempt.number if job.attempt else 0,
        "submitted": job.attempt.submitted if job.attempt else "",
        "reason": state.reason,
        "run_id": job.run_id,
        "progress": done,
    }


def _begin(settings: Settings, job_id: str, number: int, owner: str) -> None:
    """Make the next attempt, unless somebody else just did."""
    attempt = begin_attempt(settings.store, job_id, number, owner)
    if attempt is None:
        return
    try:
        submit(settings, absolute(settings.store), job_id, attempt)
    except ClusterRefusedError as error:
        end_attempt(settings.store, job_id, number, End("failed", str(error)))
        raise
    # Any other error leaves open whether the cluster took it: its own answer will tell.
    tell_sent(settings.store, job_id, number)


def _is_on_its_way(job: StoredJob) -> bool:
    """Return whether the last attempt was begun just now, and nobody says yet that the cluster has it."""
    if job.attempt is None or job.sent:
        return False
    age = datetime.now(UTC) - datetime.fromisoformat(job.attempt.submitted)
    return age.total_seconds() < _SECONDS_TO_ARRIVE


def _state(job: StoredJob, known: Mapping[str, ClusterState | None], unreachable: str | None) -> ClusterState:
    if job.end is not None:
        return ClusterState(job.end.state, job.end.reason)
    if job.attempt is None:
        return ClusterState("lost", "it was never sent to the cluster; submit it again")
    said = known.get(job.attempt.submission)
    if said is not None:
        return said
    if unreachable is None and _is_on_its_way(job):
        return ClusterState("queued", None)
    return ClusterState("lost", unreachable or "the cluster does not know it any more; submit it again to go on")
