"""The stages of a survey: capture, statistics, report. Each stage skips the work that an earlier attempt finished."""

from collections.abc import Callable
from pathlib import Path

from theodolite.errors import SpecError
from theodolite.query.verification import refuse_damaged
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.leases import held_lease
from theodolite.store.runs import Run, find_run
from theodolite.store.uploads import with_uploaded_texts
from theodolite.store.writable import check_writable
from theodolite_jobs.capture_run import capture_run
from theodolite_jobs.cluster.reachable import check_reachable
from theodolite_jobs.models.source import check_weight_files
from theodolite_jobs.prepare import prepare
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console

OnRunId = Callable[[str], None]
"""Called with the run's id as soon as it is known."""


def survey(
    spec: SurveySpec,
    folder: Path,
    settings: Settings,
    console: Console,
    on_run_id: OnRunId = lambda _run_id: None,
    *,
    verified: bool = False,
) -> Run:
    """Capture, analyse and report, and return the run. Finished work is not repeated. Raises as `capture` does.

    If `verified`, every stored byte of an existing run is compared with its checksum first.
    """
    spec = with_uploaded_texts(spec, settings.store)
    check_reachable("Dask scheduler", settings.dask_address, "--dask (THEODOLITE_DASK_ADDRESS)")
    prepared = _checked(spec, folder, settings, console)
    on_run_id(prepared.run_id)
    existing = find_run(settings.store, prepared.run_id) if verified else None
    if existing is not None:
        refuse_damaged(existing)
    with held_lease(settings.store, prepared.run_id):
        run = capture_run(prepared, settings, console)
        from theodolite_jobs.analysis import analyse_run  # the statistics take seconds to load

        analyse_run(run, spec, prepared.source, settings, console)
    return run


def capture(spec: SurveySpec, folder: Path, settings: Settings, console: Console) -> Run:
    """Capture the shards that are not committed yet, and return the run.

    Raises:
        SpecError, ModelError: see `prepare`.
        ParityError, RunDamagedError, StoreError: see `capture_run`.
    """
    spec = with_uploaded_texts(spec, settings.store)
    prepared = _checked(spec, folder, settings, console)
    with held_lease(settings.store, prepared.run_id):
        return capture_run(prepared, settings, console)


def analyse(run: Run, settings: Settings, console: Console) -> None:
    """Compute the missing and outdated results of a captured run, and write its report."""
    from theodolite_jobs.analysis import analyse_run
    from theodolite_jobs.requested import requested_spec

    check_reachable("Dask scheduler", settings.dask_address, "--dask (THEODOLITE_DASK_ADDRESS)")
    with held_lease(settings.store, run.id):
        analyse_run(run, requested_spec(run), None, settings, console)


def _checked(spec: SurveySpec, folder: Path, settings: Settings, console: Console) -> Prepared:
    """Return the prepared survey, after checks of the machine, the model and the tokens; quick ones first."""
    check_reachable("Ray cluster", settings.ray_address, "--ray (THEODOLITE_RAY_ADDRESS)")
    check_writable(settings.store)
    check_weight_files(spec.model, folder)
    console.say("reading prompts and the model's configuration")
    prepared = prepare(spec, folder, settings, message=console.say)
    _check_token_limit(prepared, settings)
    for name, facts in prepared.read_facts.items():
        if commit := facts.get("dataset_commit"):
            console.say(f"prompts.{name}: {spec.prompts[name].source} at the commit {commit}")
    for note in prepared.notes:
        console.say(note)
    for warning in prepared.warnings:
        console.say(f"warning: {warning}")
    return prepared


def _check_token_limit(prepared: Prepared, settings: Settings) -> None:
    tokens = sum(plan.tokens for plan in prepared.plans.values())
    if settings.job_tokens is not None and tokens > settings.job_tokens:
        raise SpecError(
            f"prompts: the prompts have {tokens} tokens; this deployment allows {settings.job_tokens} in one survey "
            "(THEODOLITE_JOB_TOKENS); set `limit` of the prompt sets"
        )
