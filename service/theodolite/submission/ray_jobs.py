"""Jobs on a Ray cluster, through the HTTP interface of its dashboard (Ray Jobs): this needs no Ray here.

What runs there is a fixed command, a job's id of sixty-four hex digits, and a number: nothing that a user wrote reaches
a shell.
"""

import importlib.metadata
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

import theodolite
from theodolite.errors import ClusterError, ClusterRefusedError
from theodolite.settings import Settings

if TYPE_CHECKING:
    from theodolite.submission.job_store import Attempt

SUBMITTED_BY = "THEODOLITE_SUBMITTED_BY"
"""Where a job reads which version submitted it."""

_SECONDS = 10.0
_ENTRYPOINT = "python -m theodolite_jobs.job {} {}"
_STATES = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_PASSED_ON = ("job_tokens", "remote_code_allowed", "dask_address", "replicas", "gpus_per_replica", "parallelism")
"""Settings of who submits that hold for the job too; the others are those of the nodes."""

_OLDEST = (2, 60)
"""Ray's version: earlier ones have remote-code holes."""


@dataclass(frozen=True)
class ClusterState:
    """What the cluster says of a submission.

    Attributes:
        state: queued, running, succeeded, failed, stopped or lost.
        reason: its message, where it has one.
    """

    state: str
    reason: str | None


def submit(settings: Settings, store: str, job_id: str, attempt: "Attempt") -> None:
    """Start a job's command on the cluster.

    Args:
        settings: which cluster, its token, and what the job inherits.
        store: the store, as the nodes reach it.
        job_id: whose spec lies there.
        attempt: its number, and its name on the cluster, never used before.

    Raises:
        ClusterRefusedError: the cluster does not take it.
        ClusterError: the cluster cannot be reached, so that it may have taken it.
    """
    given = set(_PASSED_ON) & settings.model_fields_set  # what nobody set is left to the nodes
    inherited = settings.model_dump(mode="json", include=given, exclude_none=True)
    environment = {f"THEODOLITE_{name.upper()}": _written(value) for name, value in inherited.items()}
    fixed = {"THEODOLITE_STORE": store, SUBMITTED_BY: theodolite.__version__, "PYTHONUNBUFFERED": "1"}
    asked = {
        "entrypoint": _ENTRYPOINT.format(job_id, attempt.number),
        "submission_id": attempt.submission,
        "runtime_env": {"env_vars": {**environment, **fixed}},
    }
    _ask(settings, "POST", "/api/jobs/", asked, holds="submission_id")


def cluster_states(settings: Settings) -> dict[str, ClusterState]:
    """Return the state of everything that was submitted to the cluster, by name; raises ClusterError."""
    answer = _ask(settings, "GET", "/api/jobs/")
    jobs = answer if isinstance(answer, list) else []
    return {job["submission_id"]: _state(job) for job in jobs if isinstance(job, dict) and job.get("submission_id")}


def cluster_state(settings: Settings, submission: str) -> ClusterState | None:
    """Return the state of a submission, or None where the cluster does not know it; raises ClusterError."""
    answer = _ask(settings, "GET", f"/api/jobs/{submission}", holds="status")
    return None if answer is None else _state(answer)


def cluster_logs(settings: Settings, submission: str) -> str | None:
    """Return what a submission has printed, or None where the cluster does not know it; raises ClusterError."""
    answer = _ask(settings, "GET", f"/api/jobs/{submission}/logs", holds="logs")
    return None if answer is None else str(answer["logs"])


def stop(settings: Settings, submission: str) -> None:
    """Ask the cluster to stop a submission; nothing happens where it does not know it. Raises ClusterError."""
    _ask(settings, "POST", f"/api/jobs/{submission}/stop", holds="stopped")


def check_version(settings: Settings) -> None:
    """Raise ClusterRefusedError where the cluster runs another version of Ray than this side, or too old a one.

    Which Theodolite it has, only a job can tell: it looks before it begins.
    """
    answer = _ask(settings, "GET", "/api/version", holds="ray_version")
    theirs = str(answer["ray_version"]) if answer else "unknown"
    ours = next((found.version for found in importlib.metadata.distributions(name="ray")), None)
    if ours is not None and theirs != ours:
        raise ClusterRefusedError(
            f"the Ray cluster at {_place(settings)} runs Ray {theirs} and this side {ours}; install the same on both: "
            f"pip install 'ray[default]=={theirs}' here, or {ours} on every node"
        )
    numbers = tuple(int(part) for part in theirs.split(".")[:2] if part.isdigit())
    if numbers < _OLDEST:
        raise ClusterRefusedError(
            f"the Ray cluster at {_place(settings)} runs Ray {theirs}; at least {_OLDEST[0]}.{_OLDEST[1]} is needed"
        )


def _place(settings: Settings) -> str:
    """Return where the cluster is, without a password that its URL may hold."""
    return str(httpx.URL(str(settings.jobs_url).rstrip("/")).copy_with(username=None, password=None))


def _ask(settings: Settings, method: str, path: str, content: Any = None, *, holds: str | None = None) -> Any:
    """Return what the cluster answers: an object that has `holds`, or None where it does not know what is asked for.

    Without `holds` it is a list. Raises ClusterError for whatever else comes.
    """
    if settings.jobs_url is None:
        raise ClusterError("this service has no cluster for jobs; name its dashboard in THEODOLITE_JOBS_URL")
    url, token, place = settings.jobs_url.rstrip("/"), _token(settings), _place(settings)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.request(method, url + path, json=content, headers=headers, timeout=_SECONDS)
    except httpx.HTTPError as error:
        said = f"{type(error).__name__}: {error}"
        raise ClusterError(f"the Ray cluster at {place} cannot be reached: {said}") from error
    if answer.status_code in (401, 403):
        raise ClusterRefusedError(
            f"the Ray cluster at {place} does not take our token; set THEODOLITE_RAY_TOKEN to its own"
        )
    if answer.status_code == 404 and holds is not None and content is None:
        return None
    if not answer.is_success:
        said = (answer.text.strip().splitlines() or ["no reason"])[-1][:300]
        raise ClusterRefusedError(f"the Ray cluster at {place} answered {answer.status_code}: {said}")
    try:
        found = answer.json()
    except ValueError:
        found = None
    if not (isinstance(found, list) if holds is None else isinstance(found, dict) and holds in found):
        raise ClusterRefusedError(
            f"what answers at {place} is no Ray cluster's dashboard; is THEODOLITE_JOBS_URL right?"
        )
    return found


def _token(settings: Settings) -> str | None:
    """Return the cluster's token: ours, or the one that Ray would show."""
    return settings.ray_token.get_secret_value() if settings.ray_token else kept_token()


def kept_token() -> str | None:
    """Return the token that Ray itself would show, from where it looks for one."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH", Path.home() / ".ray" / "auth_token"))
    return file.read_text().strip() if file.is_file() else None


def _state(job: dict[str, Any]) -> ClusterState:
    """Return what the cluster says; of its message no more than the cause, for the job's log may follow it."""
    state = _STATES.get(str(job.get("status")))
    if state is None:
        return ClusterState("lost", f"the cluster calls its state {job.get('status')!r}, which is not known here")
    cause = str(job.get("message") or "").partition(", last available logs")[0].partition("\n")[0][:300]
    return ClusterState(state, cause or None if state == "failed" else None)


def _written(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
