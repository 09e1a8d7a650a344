"""Repair a damaged run: capture broken shards again, compute damaged results again, and restore the other objects.

A shard is captured again in the batches of its commit record, and only the committed bytes are accepted. The other
objects of the capture follow from the spec and the model: they are written again, and listed with new checksums.
"""

from collections.abc import Collection, Iterator, Mapping
from pathlib import Path

from theodolite.errors import RunDamagedError
from theodolite.query.verification import damaged_shards, missing_shards, unexpected_objects
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.store.layout import COMPLETE, RESULTS
from theodolite.store.leases import held_lease, refuse_in_use
from theodolite.store.manifest import (
    changed_objects,
    finished_groups,
    group_of,
    is_captured,
    list_groups,
    listed_checksums,
)
from theodolite.store.objects import delete, keys
from theodolite.store.removal import unless_removed
from theodolite.store.result_writer import consolidate, remove_groups
from theodolite.store.runs import Run
from theodolite.store.writable import check_writable
from theodolite_jobs.analysis import analyse_run
from theodolite_jobs.capture_run import check_same_plan
from theodolite_jobs.prepare import prepare
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console
from theodolite_jobs.prompts.hub_datasets import with_commits
from theodolite_jobs.repair.commit_records import lost_records
from theodolite_jobs.repair.run_record import check_same_run, restored_run
from theodolite_jobs.repair.shards import restore_captured
from theodolite_jobs.requested import open_repair, store_request, stored_request


def repair(run_id: str, spec: SurveySpec | None, folder: Path, settings: Settings, console: Console) -> list[str]:
    """Repair a run; return a sentence for each shard that this cluster computes differently, and for changed results.

    Args:
        run_id: the run.
        spec: the spec of the run, if run.json is lost or files of prompts have moved; None takes that of run.json.
        folder: the folder of relative paths in the spec.
        settings: the store, and the cluster that captures broken shards.
        console: prints messages and progress.

    Raises:
        RunInUseError: a driver works on the run.
        RunDamagedError: run.json is lost, or the spec now gives another run: prompts or the model have changed.
        CaptureError, ModelError, PromptError, StoreError: see `survey`.
    """
    check_writable(settings.store)
    refuse_in_use(settings.store, run_id)
    with held_lease(settings.store, run_id):
        run = restored_run(run_id, spec, folder, settings, console)
        with unless_removed(run):
            return _repair(run, spec, folder, settings, console)


def _repair(run: Run, spec: SurveySpec | None, folder: Path, settings: Settings, console: Console) -> list[str]:
    _drop_unreadable_listing(run, console)
    earlier, finished = stored_request(run), finished_groups(run)
    changed, damaged = dict(changed_objects(run)), dict(damaged_shards(run))
    missing = {(name, index) for name in run.record.sets for index in missing_shards(run, name)}
    for problem in [
        *(f"{key}: {problem}" for key, problem in changed.items()),
        *(problem for problems in damaged.values() for problem in problems),
    ]:
        console.say(f"repairing {problem}")
    lost = lost_records(run, damaged.keys() | missing, changed)
    # Without COMPLETE, no checksum proves an object.
    is_capture_damaged = not listed_checksums(run) or any(map(is_captured, changed)) or damaged or lost
    prepared = _prepare_again(run, spec, folder, settings) if is_capture_damaged else None
    request = open_repair(run)
    if prepared is not None:
        refused = restore_captured(run, prepared, damaged.keys() - lost, lost, settings, console)
        if refused:
            store_request(run, earlier)
            return refused
    _remove_damaged_results(run, changed)
    analyse_run(run, request.spec, None, settings, console)
    repaired = finished_groups(run)
    delete(run.location, [key for key in unexpected_objects(run) if key.startswith("pending/")])
    if repaired:
        list_groups(run, {}, consolidate(run, RESULTS))
    # The request knows the digests before a former repair that did not end, but none for other options.
    return list(_differences({**finished, **request.groups}, finished, repaired))


def _differences(former: Mapping[str, str], finished: Collection[str], repaired: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each former result that the repair could not compute, or computed from other inputs."""
    for name, digest in former.items():
        if name not in repaired:
            if digest or name in finished:
                yield f"{name}: could not be computed again"
        elif digest and repaired[name] != digest:
            yield f"{name}: the new results differ from the former ones in their activations, options or version"


def _drop_unreadable_listing(run: Run, console: Console) -> None:
    """Remove COMPLETE if it is damaged."""
    try:
        finished_groups(run)
    except RunDamagedError as error:
        console.say(
            f"{error.args[0].partition(';')[0]}: all results of the run's spec are computed again; results that were "
            "requested later are lost, so request them again"
        )
        delete(run.location, [COMPLETE])


def _remove_damaged_results(run: Run, changed: Collection[str]) -> None:
    """Remove damaged results, and those that COMPLETE does not list: damaged metadata would stop Zarr."""
    remove_groups(run, {group for key in changed if (group := group_of(key)) is not None})
    listed, root = listed_checksums(run), f"{RESULTS}/zarr.json"
    stored = [*keys(run.location, RESULTS), *keys(run.location, "tables")]
    own = [key for key in stored if group_of(key) is not None or key == root]
    delete(run.location, [key for key in own if key not in listed])


def _with_templates(run: Run) -> SurveySpec:
    """Return the run's spec with the templates that its sets had, since another version may have other defaults."""
    spec = run.record.spec
    prompts = {
        name: one.model_copy(update={"template": run.record.sets[name].template}) for name, one in spec.prompts.items()
    }
    return spec.model_copy(update={"prompts": prompts})


def _prepare_again(run: Run, spec: SurveySpec | None, folder: Path, settings: Settings) -> Prepared:
    """Return the prepared survey of the run, with the revisions of the model and of datasets that the run has."""
    spec = with_commits(spec or _with_templates(run), run.record)
    spec = spec.model_copy(update={"model": run.record.model.pinned(spec.model)})
    prepared = prepare(spec, folder, settings)
    check_same_run(run.id, prepared)
    check_same_plan(run, prepared)
    return prepared
