"""Jobs on a Ray cluster, through the HTTP interface of its dashboard (Ray Jobs): this needs no Ray here.

What runs there is a fixed command and a job's id, sixty-four hex digits: nothing that a user wrote reaches a shell.
"""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from theodolite.errors import ClusterError
from theodolite.settings import Settings

_SECONDS = 10.0
_ENTRYPOINT = "python -m theodolite_jobs.job {}"
_STATES = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_PASSED_ON = ("job_tokens", "remote_code_allowed")
"""Settings of the service that hold for its jobs too; the others are those of the nodes."""


@dataclass(frozen=True)
class ClusterState:
    """What the cluster says of a submission.

    Attributes:
        state: queued, running, succeeded, failed or stopped.
        reason: its message, where it has one.
    """

    state: str
    reason: str | None


def submit(settings: Settings, store: str, job_id: str, submission: str) -> None:
    """Start a job's command on the cluster.

    Args:
        settings: which cluster, its token, and what the job inherits.
        store: the store, as the nodes reach it.
        job_id: whose spec lies there.
        submission: its name on the cluster, never used before.

    Raises:
        ClusterError: the cluster cannot be reached, or refuses it.
    """
    inherited = settings.model_dump(mode="json", include=set(_PASSED_ON), exclude_none=True)
    environment = {f"THEODOLITE_{name.upper()}": _written(value) for name, value in inherited.items()}
    asked = {
        "entrypoint": _ENTRYPOINT.format(job_id),
        "submission_id": submission,
        "runtime_env": {"env_vars": {**environment, "THEODOLITE_STORE": store, "PYTHONUNBUFFERED": "1"}},
    }
    _ask(settings, "POST", "/api/jobs/", asked)


def cluster_states(settings: Settings) -> dict[str, ClusterState]:
    """Return the state of everything that was submitted to the cluster, by name; raises ClusterError."""
    answers = _ask(settings, "GET", "/api/jobs/").json()
    return {job["submission_id"]: _state(job) for job in answers if job.get("submission_id")}


def cluster_state(settings: Settings, submission: str) -> ClusterState | None:
    """Return the state of a submission, or None where the cluster does not know it; raises ClusterError."""
    answer = _ask(settings, "GET", f"/api/jobs/{submission}")
    return None if answer.status_code == 404 else _state(answer.json())


def cluster_logs(settings: Settings, submission: str) -> str | None:
    """Return what a submission has printed, or None where the cluster does not know it; raises ClusterError."""
    answer = _ask(settings, "GET", f"/api/jobs/{submission}/logs")
    return None if answer.status_code == 404 else str(answer.json()["logs"])


def stop(settings: Settings, submission: str) -> None:
    """Ask the cluster to stop a submission; nothing happens where it does not know it. Raises ClusterError."""
    _ask(settings, "POST", f"/api/jobs/{submission}/stop")


def check_cluster(settings: Settings) -> None:
    """Raise ClusterError unless there is a cluster, it answers, and it takes our token."""
    _ask(settings, "GET", "/api/jobs/")


def _ask(settings: Settings, method: str, path: str, content: Any = None) -> httpx.Response:
    """Return the cluster's answer, which may be that it does not know what was asked for: 404."""
    if settings.jobs_url is None:
        raise ClusterError("this service has no cluster for jobs; name its dashboard in THEODOLITE_JOBS_URL")
    place, token = settings.jobs_url.rstrip("/"), _token(settings)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.request(method, place + path, json=content, headers=headers, timeout=_SECONDS)
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}"
        raise ClusterError(f"the Ray cluster at {place} cannot be reached: {said}") from error
    if answer.status_code in (401, 403):
        raise ClusterError(f"the Ray cluster at {place} does not take our token; set THEODOLITE_RAY_TOKEN to its own")
    if answer.is_error and answer.status_code != 404:
        said = (answer.text.strip().splitlines() or ["no reason"])[-1][:300]
        raise ClusterError(f"the Ray cluster at {place} answered {answer.status_code}: {said}")
    return answer


def _token(settings: Settings) -> str | None:
    """Return the cluster's token: ours, or where Ray itself looks for one."""
    if settings.ray_token:
        return settings.ray_token.get_secret_value()
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    return file.read_text().strip() if file.is_file() else None


def _state(job: dict[str, Any]) -> ClusterState:
    state = _STATES[job["status"]]
    return ClusterState(state, job.get("message") if state == "failed" else None)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
