"""Repair a damaged run: capture broken shards again, compute damaged results again, and restore the other objects.

A shard is captured again in the batches of its commit record, and only the committed bytes are accepted. COMPLETE's
checksums decide in the same way about the other objects that the capture wrote.
"""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

from theodolite.errors import RunDamagedError, RunNotFoundError
from theodolite.query.runs import spec_of_results
from theodolite.query.verification import ShardKey, damaged_shards
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.commits import committed_indices, read_commit
from theodolite.store.layout import ACTIVATIONS, COMPLETE, RESULTS, RUN_RECORD
from theodolite.store.manifest import (
    changed_objects,
    copy_of_run_record,
    finished_groups,
    forget,
    group_of,
    write_complete,
)
from theodolite.store.objects import check_writable, delete, open_location, put
from theodolite.store.records import record_key
from theodolite.store.result_writer import consolidate, remove_groups
from theodolite.store.runs import Run, open_run, run_url
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.capture_run import (
    Work,
    capture_run,
    capture_shards,
    check_same_plan,
    finish_capture,
    write_descriptions,
)
from theodolite_jobs.prepare import Prepared, prepare
from theodolite_jobs.progress import Console


def repair(run_id: str, spec: SurveySpec | None, folder: Path, settings: Settings, console: Console) -> None:
    """Repair a run; `verify` then names the objects that cannot be restored bit for bit.

    Args:
        run_id: the run.
        spec: the spec of the run, if run.json is lost or files of prompts have moved; None takes that of run.json.
        folder: the folder of relative paths in the spec.
        settings: the store, and the cluster that captures broken shards.
        console: prints messages and progress.

    Raises:
        RunDamagedError: run.json is lost, or the spec now gives another run: prompts or the model have changed.
        CaptureError, ModelError, PromptError, StoreError: see `survey`.
    """
    check_writable(settings.store)
    run = _restored_record(run_id, spec, folder, settings, console)
    try:
        finished_groups(run)
    except RunDamagedError as error:
        console.say(f"{error.args[0].partition(';')[0]}: all results are computed again")
        delete(run.location, [COMPLETE])
    requested, finished = spec_of_results(run), finished_groups(run)
    changed = dict(changed_objects(run))
    objects = [key for key in changed if key.startswith(("prompts/", f"{ACTIVATIONS}/"))]
    shards = dict(damaged_shards(run))
    missing = [
        (name, index)
        for name, facts in run.record.sets.items()
        for index in set(range(facts.n_shards)) - committed_indices(run, name)
    ]
    for problem in [
        *(f"{key}: {problem}" for key, problem in changed.items()),
        *(problem for problems in shards.values() for problem in problems),
    ]:
        console.say(f"repairing {problem}")
    if objects or shards or missing:
        prepared = _prepare_again(run, spec, folder, settings)
        _capture_again(run, prepared, objects, [*shards, *missing], settings, console)
    remove_groups(run, {group for key in changed if (group := group_of(key)) is not None})
    analyse_run(run, requested, None, settings, console)
    repaired = finished_groups(run)
    if repaired:
        write_complete(run, repaired, consolidate(run, RESULTS))
    for name in finished:
        if repaired.get(name) != finished[name]:
            console.say(f"{name}: the new results differ from the former ones in their samples or options")


def _restored_record(run_id: str, spec: SurveySpec | None, folder: Path, settings: Settings, console: Console) -> Run:
    """Return the run, after writing run.json again if it is damaged or missing."""
    try:
        return open_run(settings.store, run_id)
    except (RunDamagedError, RunNotFoundError) as error:
        location = open_location(run_url(settings.store, run_id))
        copy = copy_of_run_record(location)
        if copy is not None:
            console.say("restoring run.json from its copy in COMPLETE")
            put(location, RUN_RECORD, copy)
            return open_run(settings.store, run_id)
        if spec is None:
            raise RunDamagedError(
                f"{error.args[0].partition(';')[0]}, and COMPLETE has no copy of run.json; give the run's spec with "
                "--spec"
            ) from error
        prepared = prepare(spec, folder, settings)
        _check_same_run(run_id, prepared)
        delete(location, [RUN_RECORD])
        return capture_run(prepared, settings, console)


def _prepare_again(run: Run, spec: SurveySpec | None, folder: Path, settings: Settings) -> Prepared:
    """Return the prepared survey of the run, with the revision of the model that the run has."""
    model = run.record.model
    pinned = {"revision": model.revision} if model.kind == "hub" else {}
    spec = spec or run.record.spec
    prepared = prepare(spec.model_copy(update={"model": spec.model.model_copy(update=pinned)}), folder, settings)
    _check_same_run(run.id, prepared)
    return prepared


def _check_same_run(run_id: str, prepared: Prepared) -> None:
    if prepared.run_id != run_id:
        raise RunDamagedError(
            f"{run_id} cannot be restored: its model or its prompts have changed, so the spec now gives the run "
            f"{prepared.run_id}; restore the files of the model and the prompts, or give the original spec with --spec"
        )


def _capture_again(
    run: Run,
    prepared: Prepared,
    objects: Iterable[str],
    shards: Iterable[ShardKey],
    settings: Settings,
    console: Console,
) -> None:
    """Restore what the capture wrote: these objects, and these shards."""
    work: Work = []
    unreadable = []
    plans = {(name, shard.index): (plan, shard) for name, plan in prepared.plans.items() for shard in plan.shards}
    for name, index in shards:
        plan, shard = plans[name, index]
        try:
            # Other batches give other rounding errors; the plan's were halved where memory ran out.
            batches = tuple(tuple(batch) for batch in read_commit(run, name, index).batches)
            shard = replace(shard, batches=batches)
        except RunDamagedError:
            unreadable.append(record_key(name, index))
        work.append((plan, shard))
    forget(run, unreadable)
    delete(run.location, [*unreadable, *objects])
    write_descriptions(run.location, prepared)
    check_same_plan(run, prepared)
    if work:
        capture_shards(prepared, run, work, settings, console)
    finish_capture(run, prepared)
