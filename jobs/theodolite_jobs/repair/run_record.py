"""Restore run.json: from its copy in COMPLETE, or else from the spec."""

from pathlib import Path
from typing import Any

from theodolite.errors import RunDamagedError, RunNotFoundError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.manifest import copy_of_run_record
from theodolite.store.objects import delete, get, keys, open_location, put
from theodolite.store.runs import Run, create_run, open_run, run_url
from theodolite_jobs.capture_run import capture_replicas, capture_shards, check_same_shards
from theodolite_jobs.captured_objects import describe
from theodolite_jobs.prepare import prepare
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console


def restored_run(run_id: str, spec: SurveySpec | None, folder: Path, settings: Settings, console: Console) -> Run:
    """Return the run, after writing run.json again if it is missing, damaged, or not what COMPLETE lists."""
    location = open_location(run_url(settings.store, run_id))
    copy = copy_of_run_record(location, run_id)
    if copy is not None and copy != get(location, RUN_RECORD):
        console.say("restoring run.json from its copy in COMPLETE")
        put(location, RUN_RECORD, copy)
    try:
        return open_run(settings.store, run_id)
    except (RunDamagedError, RunNotFoundError) as error:
        if not any(True for _ in keys(location)):
            raise
        if spec is None:
            raise RunDamagedError(
                f"{error.args[0].partition(';')[0]}, and COMPLETE has no copy of run.json; give the run's spec with "
                "--spec"
            ) from error
    prepared = prepare(spec, folder, settings)
    check_same_run(run_id, prepared)
    return _create_again(prepared, settings, console)


def check_same_run(run_id: str, prepared: Prepared) -> None:
    """Raise RunDamagedError if the spec, the model or the prompts are no longer those of the run."""
    if prepared.run_id != run_id:
        raise RunDamagedError(
            f"{run_id} cannot be restored: the spec now gives the run {prepared.run_id}, because the model, the "
            "prompts or the version of Theodolite has changed; restore the files of the model and the prompts, give "
            "the original spec with --spec, or use the version that created the run"
        )


def _create_again(prepared: Prepared, settings: Settings, console: Console) -> Run:
    """Write run.json, which has the parity certificate of new replicas; capture nothing.

    Raises:
        RunDamagedError: the run has other tokens than the spec now gives, or its shards were computed with other
            arithmetic than that of these replicas.
    """

    def create(parity: dict[str, Any]) -> Run:
        run = Run(settings.store, prepared.record(parity.get("attention", "not run"), parity))
        check_same_shards(run, prepared, parity)
        # COMPLETE is damaged or old, and the new run.json has another date.
        delete(run.location, [COMPLETE, RUN_RECORD])
        describe(run, prepared)
        return create_run(run.store, run.record)

    if not prepared.plans:
        return create({})
    with capture_replicas(prepared, [], settings, console) as (workers, parity):
        run = create(parity)
        capture_shards(workers, run, prepared, [], console)
    return run
