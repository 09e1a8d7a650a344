"""Estimate the cost of a survey in a Ray job: the cluster has the libraries and the models that the service lacks."""

import json
from collections.abc import Callable
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import ClusterError, SpecError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.objects import absolute
from theodolite.store.uploads import store_upload, with_uploaded_texts
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

_PREFIX = "theodolite-estimate-"


def estimate_survey(
    settings: Settings, spec: SurveySpec, check_room: Callable[[int], None] = lambda _running: None
) -> dict[str, Any] | None:
    """Return the estimated cost of a survey, or None while the cluster computes it: then call the function again.

    Args:
        settings: the store and the cluster.
        spec: the requested survey.
        check_room: called before a new Ray job with the number of estimates that the cluster computes; may raise.

    Raises:
        SpecError: the survey is not possible, for example because there is no such model.
        ClusterError: the cluster refused the Ray job, does not respond, or the Ray job failed.
    """
    spec = with_uploaded_texts(spec, settings.store)
    submission = f"{_PREFIX}{digest_of([spec.digest(), __version__])[:32]}"
    state = cluster_state(settings, submission)
    if state is None:
        states = cluster_states(settings)
        check_room(sum(_is_running(name, one) for name, one in states.items()))
        check_version(settings)
        content = json.dumps(spec.model_dump(mode="json", exclude_unset=True)).encode()
        name = store_upload(settings.store, content, "json").removeprefix("upload:")
        run_module(settings, absolute(settings.store), submission, f"theodolite_jobs.estimate_job {name}")
        return None
    if state.state in UNFINISHED:
        return None
    log = cluster_logs(settings, submission) or ""
    forget(settings, submission)  # a later request estimates anew: the model and the prompts may change
    found = next((line for line in reversed(log.splitlines()) if line.startswith('{"')), None)
    if found is None:
        raise ClusterError(f"the cluster could not estimate the survey: {state.reason or 'its Ray job has no result'}")
    result = json.loads(found)
    if "error" in result:
        raise SpecError(result["error"])
    return dict(result["estimate"])


def _is_running(submission: str, state: ClusterState) -> bool:
    return submission.startswith(_PREFIX) and state.state in UNFINISHED
