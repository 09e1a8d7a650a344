"""Client of the Ray Jobs HTTP API on the dashboard of a Ray cluster; it does not import Ray.

The entry point of a Ray job is a fixed command: with the id of the survey job (64 hex digits) and the number of the
attempt, or with the name of the uploaded spec whose cost it estimates. Text from users never reaches a shell.
"""

import importlib.metadata
import importlib.util
import json
import os
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx

from theodolite.errors import ClusterError, ClusterRefusedError
from theodolite.settings import Settings
from theodolite.version import __version__

if TYPE_CHECKING:
    from theodolite.submission.job_store import Attempt

SUBMITTED_BY = "THEODOLITE_SUBMITTED_BY"
"""Environment variable of a Ray job with the version of Theodolite that submitted it."""

_SECONDS = 10.0
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_STATES = {
    "PENDING": "queued",
    "RUNNING": "running",
    "SUCCEEDED": "succeeded",
    "FAILED": "failed",
    "STOPPED": "stopped",
}
_PASSED_ON = ("job_tokens", "remote_code_allowed", "dask_address", "replicas", "gpus_per_replica", "parallelism")
"""Settings that the Ray job inherits from the submitter; it takes all other settings from its node."""

_ON_THE_HEAD = {"node:__internal_head__": 0.001}
"""A share of the resource that only the head node has; it admits 1,000 Ray jobs."""

_MINIMUM_VERSION = (2, 60)
"""Minimum version of Ray; earlier versions have remote-code vulnerabilities."""


@dataclass(frozen=True)
class ClusterState:
    """The state of a Ray job (queued, running, succeeded, failed, stopped or lost), and the cluster's message."""

    state: str
    reason: str | None


def submit(settings: Settings, store: str, job_id: str, attempt: "Attempt") -> None:
    """Submit the Ray job of an attempt; the nodes must reach `store`, an absolute path or a URL, with the job's spec.

    The submission id of the attempt must be new.

    Raises:
        ClusterRefusedError: the cluster refused the Ray job.
        ClusterError: the cluster did not respond; it may have accepted the Ray job.
    """
    module = f"theodolite_jobs.job {job_id} {attempt.number}"
    run_module(settings, store, attempt.submission, module, settings.driver_memory)


def run_module(settings: Settings, store: str, submission: str, module: str, memory: int | None = None) -> None:
    """Start a Ray job with a new submission id, which runs a Python module; raises as `submit` does.

    Args:
        settings: the cluster, and the settings that the Ray job inherits.
        store: an absolute path or a URL, which the nodes must reach.
        submission: the submission id.
        module: the module and its arguments, for a shell.
        memory: the bytes that Ray reserves for it on the head; None reserves nothing.
    """
    given = set(_PASSED_ON) & settings.model_fields_set  # the nodes decide the settings that are not set
    inherited = settings.model_dump(mode="json", include=given, exclude_none=True)
    environment = {
        f"THEODOLITE_{name.upper()}": value if isinstance(value, str) else json.dumps(value)
        for name, value in inherited.items()
    }
    fixed = {"THEODOLITE_STORE": store, SUBMITTED_BY: __version__, "PYTHONUNBUFFERED": "1"}
    content: dict[str, Any] = {
        "entrypoint": f"{_interpreter(settings)} -m {module}",
        "submission_id": submission,
        "runtime_env": {"env_vars": {**environment, **fixed}},
    }
    if memory is not None:
        # With a reservation, Ray would start the driver on any node that has the memory.
        content |= {"entrypoint_memory": memory, "entrypoint_resources": _ON_THE_HEAD}
    _request(settings, "POST", "/api/jobs/", content, required="submission_id")


def cluster_states(settings: Settings) -> dict[str, ClusterState]:
    """Return the state of each Ray job of the cluster, by submission id; raises ClusterError."""
    jobs = _request(settings, "GET", "/api/jobs/")
    return {job["submission_id"]: _state(job) for job in jobs if isinstance(job, dict) and job.get("submission_id")}


def cluster_state(settings: Settings, submission: str) -> ClusterState | None:
    """Return the state of a Ray job, or None if the cluster does not know it; raises ClusterError."""
    answer = _request(settings, "GET", f"/api/jobs/{submission}", required="status")
    return None if answer is None else _state(answer)


def cluster_logs(settings: Settings, submission: str) -> str | None:
    """Return the log of a Ray job, or None if the cluster does not know it; raises ClusterError."""
    answer = _request(settings, "GET", f"/api/jobs/{submission}/logs", required="logs")
    return None if answer is None else str(answer["logs"])


def stop(settings: Settings, submission: str) -> None:
    """Stop a Ray job; do nothing if the cluster does not know it. Raises ClusterError."""
    _request(settings, "POST", f"/api/jobs/{submission}/stop", required="stopped")


def forget(settings: Settings, submission: str) -> None:
    """Make the cluster forget a Ray job that has ended; do nothing if it does not know it. Raises ClusterError."""
    _request(settings, "DELETE", f"/api/jobs/{submission}", required="deleted")


def check_submitter() -> None:
    """Raise ClusterRefusedError in a Ray job that another version of Theodolite submitted; its spec may differ."""
    submitted_by = os.environ.get(SUBMITTED_BY, __version__)
    if submitted_by != __version__:
        raise ClusterRefusedError(
            f"the cluster has Theodolite {__version__}, but version {submitted_by} submitted this survey job; "
            "install the same version on both"
        )


def check_version(settings: Settings) -> None:
    """Raise ClusterRefusedError if the cluster's Ray is too old or differs from the Ray of this machine.

    The Ray job itself checks the version of Theodolite before it starts the survey.
    """
    answer = _request(settings, "GET", "/api/version", required="ray_version")
    remote = str(answer["ray_version"]) if answer else "unknown"
    local = next((package.version for package in importlib.metadata.distributions(name="ray")), None)
    if local is not None and remote != local:
        raise ClusterRefusedError(
            f"the Ray cluster at {_public_url(settings)} runs Ray {remote}, but this machine has Ray {local}; install "
            f"the same version on both: pip install 'ray[default]=={remote}' on this machine, or {local} on every node"
        )
    numbers = tuple(int(part) for part in remote.split(".")[:2] if part.isdigit())
    if numbers < _MINIMUM_VERSION:
        raise ClusterRefusedError(
            f"the Ray cluster at {_public_url(settings)} runs Ray {remote}; the minimum is "
            f"{'.'.join(map(str, _MINIMUM_VERSION))}; upgrade Ray on every node"
        )


def _interpreter(settings: Settings) -> str:
    """Return the Python interpreter of the Ray job, for the shell of the cluster's head.

    It is this one if the head is on this machine, and else the `python` of the head. A loopback address can also be the
    end of a tunnel to another machine, so the head looks whether it has this interpreter.
    """
    is_here = httpx.URL(str(settings.jobs_url)).host in _LOOPBACK
    if not is_here or importlib.util.find_spec("theodolite_jobs") is None:
        return "python"
    return f'"$(command -v {shlex.quote(sys.executable)} || echo python)"'


def _public_url(settings: Settings) -> str:
    """Return the URL of the cluster's dashboard without user name and password."""
    return str(httpx.URL(str(settings.jobs_url).rstrip("/")).copy_with(username=None, password=None))


def _request(settings: Settings, method: str, path: str, content: Any = None, *, required: str | None = None) -> Any:
    """Return the JSON of a response: an object with the key `required`, or a list if `required` is None.

    Return None after a 404 to a request for one Ray job. Raise ClusterError for every other response.
    """
    if settings.jobs_url is None:
        raise ClusterError("no cluster for survey jobs is set; set THEODOLITE_JOBS_URL to the URL of a Ray dashboard")
    url, public_url = settings.jobs_url.rstrip("/"), _public_url(settings)
    token = settings.ray_token.get_secret_value() if settings.ray_token else default_ray_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    try:
        answer = httpx.request(method, url + path, json=content, headers=headers, timeout=_SECONDS)
    except httpx.HTTPError as error:
        raise ClusterError(
            f"the Ray cluster at {public_url} cannot be reached: {type(error).__name__}: {error}"
        ) from error
    except (ImportError, ValueError) as error:  # of a proxy; the message of a wrong token would show it
        reason = "the token has characters that are not ASCII" if isinstance(error, UnicodeError) else str(error)
        raise ClusterError(
            f"no request can be sent to {public_url}: {reason}; check the variables of the proxy and of Ray's token"
        ) from error
    if answer.status_code in (401, 403):
        raise ClusterRefusedError(
            f"the Ray cluster at {public_url} rejects the token; set THEODOLITE_RAY_TOKEN to the cluster's token"
        )
    if answer.status_code == 404 and required is not None and content is None:
        return None
    if not answer.is_success:
        reason = (answer.text.strip().splitlines() or ["no reason"])[-1][:300]
        raise ClusterRefusedError(f"the Ray cluster at {public_url} answered {answer.status_code}: {reason}")
    try:
        body = answer.json()
    except ValueError:
        body = None
    if not (isinstance(body, list) if required is None else isinstance(body, dict) and required in body):
        raise ClusterRefusedError(
            f"the server at {public_url} is not the dashboard of a Ray cluster; correct THEODOLITE_JOBS_URL"
        )
    return body


def default_ray_token() -> str | None:
    """Return Ray's default token, from RAY_AUTH_TOKEN, RAY_AUTH_TOKEN_PATH or ~/.ray/auth_token; None if not set."""
    if token := os.environ.get("RAY_AUTH_TOKEN"):
        return token
    file = Path(os.environ.get("RAY_AUTH_TOKEN_PATH") or os.path.expanduser("~/.ray/auth_token"))
    try:
        return file.read_text().strip() if file.is_file() else None
    except (OSError, UnicodeError) as error:
        raise ClusterError(f"cannot read Ray's token in {file}: {type(error).__name__}; correct the file") from error


def _state(job: dict[str, Any]) -> ClusterState:
    """Return the state of a Ray job; the reason is only the first line of the message, which may contain the log."""
    state = _STATES.get(str(job.get("status")))
    if state is None:
        return ClusterState("lost", f"the cluster reports the unknown state {job.get('status')!r}")
    cause = str(job.get("message") or "").partition(", last available logs")[0].partition("\n")[0][:300]
    return ClusterState(state, cause or None if state == "failed" else None)
