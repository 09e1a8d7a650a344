"""Estimate the cost of a survey in a Ray job: the cluster has the libraries and the models that the service lacks."""

import json
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import ClusterError, ClusterRefusedError, SpecError, StoreError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.objects import absolute
from theodolite.store.upload_owners import remove_upload
from theodolite.store.uploads import store_upload, upload_name, with_uploaded_texts
from theodolite.submission.ray_jobs import (
    ClusterState,
    check_version,
    cluster_logs,
    cluster_state,
    cluster_states,
    forget,
    run_module,
)
from theodolite.submission.surveys import UNFINISHED
from theodolite.version import __version__

RESULT = "theodolite-estimate: "
"""Begins the line of the Ray job's log with the result as JSON: the `estimate`, or an `error` and `is_of_survey`."""

_PREFIX = "theodolite-estimate-"


def estimate_survey(
    settings: Settings, spec: SurveySpec, owner: str, check_room: Callable[[int, int], None] = lambda _all, _own: None
) -> dict[str, Any] | None:
    """Return the estimated cost of a survey, or None while the cluster computes it: then call the function again.

    An estimate that nobody has read stays on the cluster until the same survey is estimated again.

    Args:
        settings: the store and the cluster.
        spec: the requested survey.
        owner: the id of the caller's bearer token, or `local`.
        check_room: called before a new Ray job with the numbers of estimates that the cluster computes, in all and of
            the owner; may raise.

    Raises:
        SpecError: the survey is not possible, for example because there is no such model.
        ClusterError: the cluster refused the Ray job, does not respond, or the Ray job failed.
    """
    of_owner = f"{_PREFIX}{owner}-"
    submission = f"{of_owner}{digest_of([with_uploaded_texts(spec).digest(), __version__])[:32]}"
    state = cluster_state(settings, submission)
    if state is None:
        running = [name for name, one in cluster_states(settings).items() if _is_running(name, one)]
        check_room(len(running), sum(name.startswith(of_owner) for name in running))
        _start(settings, spec, owner, submission)
        return None
    log = None if state.state in UNFINISHED else cluster_logs(settings, submission)
    if log is None:  # it is not finished, or another request has just read it
        return None
    forget(settings, submission)  # so that a later request estimates it again: the model may change
    with suppress(StoreError):  # it expires
        remove_upload(settings.store, upload_name(spec_content(spec), "json"), owner)
    found = _result_in(log, state)
    if not settings.prompts_shown:  # another setting may have started the job
        found.pop("example", None)
    return found


def spec_content(spec: SurveySpec) -> bytes:
    """Return the content of the upload that holds the spec of an estimate until the estimate is read."""
    return json.dumps(with_uploaded_texts(spec).model_dump(mode="json", exclude_unset=True)).encode()


def _start(settings: Settings, spec: SurveySpec, owner: str, submission: str) -> None:
    """Start the Ray job, unless another request has just started it."""
    check_version(settings)
    with_uploaded_texts(spec, settings.store, owner)
    name = store_upload(settings.store, spec_content(spec), "json", owner).removeprefix("upload:")
    module = f"theodolite_jobs.estimate_job {name}" + " --example" * settings.prompts_shown
    try:
        run_module(settings, absolute(settings.store), submission, module)
    except ClusterRefusedError:
        if cluster_state(settings, submission) is None:
            raise


def _result_in(log: str, state: ClusterState) -> dict[str, Any]:
    lines = log.splitlines()
    found = next((line for line in reversed(lines) if line.startswith(RESULT)), None)
    if found is None:
        cause = "; ".join([state.reason or "its Ray job has no result", *(line[:300] for line in lines[-1:])])
        raise ClusterError(f"the cluster could not estimate the survey: {cause}")
    result = json.loads(found.removeprefix(RESULT))
    if "error" in result:
        raise (SpecError if result["is_of_survey"] else ClusterError)(result["error"])
    return dict(result["estimate"])


def _is_running(submission: str, state: ClusterState) -> bool:
    return submission.startswith(_PREFIX) and state.state in UNFINISHED
