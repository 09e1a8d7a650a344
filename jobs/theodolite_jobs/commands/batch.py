"""Commands for survey jobs: a Ray cluster runs them, and the store holds their records."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from theodolite_jobs.commands.options import (
    AsJson,
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
"""Owner of survey jobs from the command line, where access to the store and the cluster is the only credential."""

Cluster = Annotated[
    str | None,
    typer.Option(help="URL of the Ray cluster's dashboard, http://HEAD:8265.", show_default="THEODOLITE_JOBS_URL"),
]
Dask = Annotated[
    str | None,
    typer.Option(
        help="Address of a Dask scheduler. If it is not set here, the setting of the cluster's nodes applies. If it is "
        "not set there either, threads of the driver's node compute the statistics.",
        show_default="THEODOLITE_DASK_ADDRESS",
    ),
]
JobId = Annotated[str, typer.Argument(metavar="ID", help="Id of a survey job, or its first characters.")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until the survey job ends, and show its progress.")]


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
    """Submit a survey job to a Ray cluster.

    If a survey job failed, was stopped or is lost, submit the same spec again: the survey continues from its last
    commit. Every node needs Theodolite, and access to the store and to the files that the spec names.

    For example: theodolite job submit survey.yaml --cluster http://head:8265 --store s3://bucket/surveys
    """
    from theodolite.store.cache import Cache
    from theodolite.submission.surveys import submit_survey

    settings = settings_of(
        store=store, jobs_url=cluster, dask_address=dask, replicas=replicas, gpus_per_replica=gpus_per_replica
    )
    survey_spec = _with_absolute_paths(spec_of(spec), spec.parent)
    _print_job(settings, submit_survey(settings, survey_spec, OWNER, Cache(0)), wait, as_json)


def list_jobs(cluster: Cluster = None, store: Store = None, as_json: AsJson = False) -> None:
    """List the survey jobs of a store, with their states.

    For example: theodolite job list --store s3://bucket/surveys
    """
    settings = settings_of(store=store, jobs_url=cluster)
    items = _contents(settings)
    if as_json:
        print(json.dumps({"items": items}))
        return
    if not items:
        typer.echo(f"no survey jobs in {settings.store}; submit one with: theodolite job submit SPEC", err=True)
    for item in items:
        print(f"{item['id'][:12]}  {item['state']:9}  {item['submitted'][:16]}  {item['name'] or item['model']}")


def show_job(
    job: JobId, cluster: Cluster = None, store: Store = None, wait: Wait = False, as_json: AsJson = False
) -> None:
    """Show the state and the progress of a survey job.

    For example: theodolite job show 3f2a --store s3://bucket/surveys --wait
    """
    settings = settings_of(store=store, jobs_url=cluster)
    _print_job(settings, _job(settings, job).id, wait, as_json)


def logs(job: JobId, cluster: Cluster = None, store: Store = None) -> None:
    """Print the log of a survey job's last attempt.

    For example: theodolite job logs 3f2a --store s3://bucket/surveys
    """
    from theodolite.errors import JobError
    from theodolite.submission.ray_jobs import cluster_logs

    settings = settings_of(store=store, jobs_url=cluster)
    stored = _job(settings, job)
    text = cluster_logs(settings, stored.attempt.submission) if stored.attempt else None
    if text is None:
        raise JobError(f"the cluster no longer has the log of survey job {stored.id[:12]}…")
    print(text, end="")


def stop(job: JobId, cluster: Cluster = None, store: Store = None, as_json: AsJson = False) -> None:
    """Stop a survey job. If you submit the same spec again, the survey continues after its last stored shard.

    For example: theodolite job stop 3f2a --store s3://bucket/surveys
    """
    from theodolite.submission.surveys import stop_survey

    settings = settings_of(store=store, jobs_url=cluster)
    stored = _job(settings, job)
    stop_survey(settings, stored)
    _print_job(settings, stored.id, False, as_json)


def _print_job(settings: "Settings", job_id: str, wait: bool, as_json: bool) -> None:
    from theodolite.submission.waiting import wait_for_end

    if wait:
        wait_for_end(lambda: _contents(settings, job_id)[0])
    print_value(_contents(settings, job_id)[0], as_json)


def _contents(settings: "Settings", job_id: str | None = None) -> list[dict[str, Any]]:
    from theodolite.store.cache import Cache
    from theodolite.submission.surveys import job_content, job_states

    jobs, cache = _jobs(settings, job_id), Cache(0)
    states = job_states(settings, jobs)
    return [job_content(settings, job, states[job.id], cache) for job in jobs]


def _jobs(settings: "Settings", job_id: str | None = None) -> "list[StoredJob]":
    from theodolite.store.cache import Cache
    from theodolite.submission.job_store import read_jobs

    return read_jobs(settings.store, Cache(0), job_id)


def _job(settings: "Settings", prefix: str) -> "StoredJob":
    """Return the survey job whose id starts with `prefix`; raises SpecError unless there is exactly one."""
    from theodolite.errors import SpecError

    matches = [job for job in _jobs(settings) if job.id.startswith(prefix)]
    if len(matches) != 1:
        problem = f"{len(matches)} survey jobs start with it" if matches else "no survey job starts with it"
        raise SpecError(
            f"ID: given {prefix!r}, but {problem}; `theodolite job list` lists the survey jobs of {settings.store}"
        )
    return matches[0]


def _with_absolute_paths(spec: "SurveySpec", folder: Path) -> "SurveySpec":
    """Return the spec with absolute paths of prompt files and of a local model, which start at `folder`."""
    from theodolite.model_aliases import MODEL_ALIASES

    content = spec.model_dump(mode="json", exclude_unset=True)
    for prompt_set in content["prompts"].values():
        kind, _, path = prompt_set["source"].partition(":")
        if kind == "file":
            prompt_set["source"] = f"file:{(folder / path).absolute()}"
    if content["model"]["id"] not in MODEL_ALIASES and (folder / content["model"]["id"]).exists():
        content["model"]["id"] = str((folder / content["model"]["id"]).absolute())
    return type(spec).model_validate(content)
