"""Commands about surveys as batch jobs: a Ray cluster runs them, and the store remembers them."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite_jobs.commands.options import (
    AsJson,
    Dask,
    Gpus,
    Replicas,
    SpecPath,
    Store,
    print_value,
    settings_of,
    spec_of,
)

if TYPE_CHECKING:
    from theodolite.settings import Settings
    from theodolite.spec import SurveySpec
    from theodolite.submission.job_store import StoredJob

OWNER = "local"
"""Who submits from a command line: whoever can write the store and reach the cluster."""

Cluster = Annotated[
    str | None,
    typer.Option(help="Dashboard of the Ray cluster, http://HEAD:8265.", show_default="THEODOLITE_JOBS_URL"),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="A job's id, or its first letters.")]
Wait = Annotated[bool, typer.Option("--wait", help="Stay until the job has ended, and show how far it is.")]


def submit(
    spec: SpecPath,
    cluster: Cluster = None,
    store: Store = None,
    dask: Dask = None,
    replicas: Replicas = None,
    gpus_per_replica: Gpus = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Run a survey as a batch job on a Ray cluster. The same spec again is the same job, and goes on where it was lost.

    Every node must have Theodolite and reach the store, and the files that the spec names.

    For example: theodolite submit survey.yaml --cluster http://head:8265 --store s3://bucket/surveys
    """
    from theodolite.store.cache import Cache
    from theodolite.submission.surveys import submit_survey

    settings = settings_of(
        store=store,
        jobs_url=cluster,
        dask_address=dask,
        replicas=replicas,
        gpus_per_replica=gpus_per_replica,
    )
    asked = _with_absolute_places(spec_of(spec), spec.parent)
    _print_job(settings, submit_survey(settings, asked, OWNER, Cache(0)), wait, as_json)


def status(
    job: Annotated[str | None, typer.Argument(metavar="[ID]", help="A job's id, or its first letters.")] = None,
    cluster: Cluster = None,
    store: Store = None,
    wait: Wait = False,
    as_json: AsJson = False,
) -> None:
    """Say how far a job is, or list all jobs of the store."""
    settings = settings_of(store=store, jobs_url=cluster)
    if job is not None:
        _print_job(settings, _job(settings, job).id, wait, as_json)
        return
    items = _contents(settings, _jobs(settings))
    if as_json:
        print(json.dumps({"items": items}))
        return
    for item in items:
        print(f"{item['id'][:12]}  {item['state']:9}  {item['submitted'][:16]}  {item['name'] or item['model']}")


def logs(job: JobId, cluster: Cluster = None, store: Store = None) -> None:
    """Print what a job's last attempt has printed."""
    from theodolite.errors import JobError
    from theodolite.submission.ray_jobs import cluster_logs

    settings = settings_of(store=store, jobs_url=cluster)
    found = _job(settings, job)
    said = cluster_logs(settings, found.attempt.submission) if found.attempt else None
    if said is None:
        raise JobError(f"the cluster has no logs of job {found.id[:12]}… any more")
    print(said, end="")


def stop(job: JobId, cluster: Cluster = None, store: Store = None, as_json: AsJson = False) -> None:
    """Stop a job; what was captured stays, and submitting the same spec again goes on."""
    from theodolite.submission.surveys import stop_survey

    settings = settings_of(store=store, jobs_url=cluster)
    found = _job(settings, job)
    stop_survey(settings, found)
    _print_job(settings, found.id, False, as_json)


def _print_job(settings: "Settings", job_id: str, wait: bool, as_json: bool) -> None:
    from theodolite.submission.waiting import wait_for_end

    def look() -> dict[str, Any]:
        (job,) = _jobs(settings, job_id)
        return _contents(settings, [job])[0]

    if wait:
        wait_for_end(look)
    print_value(look(), as_json)


def _contents(settings: "Settings", jobs: "list[StoredJob]") -> list[dict[str, Any]]:
    from theodolite.store.cache import Cache
    from theodolite.submission.surveys import job_content, job_states

    states, cache = job_states(settings, jobs), Cache(0)
    return [job_content(settings, job, states[job.id], cache) for job in jobs]


def _jobs(settings: "Settings", job_id: str | None = None) -> "list[StoredJob]":
    from theodolite.store.cache import Cache
    from theodolite.submission.job_store import read_jobs

    return read_jobs(settings.store, Cache(0), job_id)


def _job(settings: "Settings", beginning: str) -> "StoredJob":
    """Return the one job whose id begins so."""
    from theodolite.errors import SpecError

    found = [job for job in _jobs(settings) if job.id.startswith(beginning)]
    if len(found) != 1:
        said = f"{len(found)} jobs begin so" if found else "there is no such job"
        raise SpecError(f"ID: given {beginning!r}, and {said}; `theodolite status` lists those of {settings.store}")
    return found[0]


def _with_absolute_places(spec: "SurveySpec", folder: Path) -> "SurveySpec":
    """Return a spec whose files and local model are found from anywhere on the same file system."""
    from theodolite.model_aliases import MODEL_ALIASES

    content = spec.model_dump(mode="json", exclude_unset=True)
    for prompt_set in content["prompts"].values():
        kind, _, place = prompt_set["source"].partition(":")
        if kind == "file":
            prompt_set["source"] = f"file:{(folder / place).absolute()}"
    if content["model"]["id"] not in MODEL_ALIASES and (folder / content["model"]["id"]).exists():
        content["model"]["id"] = str((folder / content["model"]["id"]).absolute())
    return type(spec).model_validate(content)
