"""The first stage of a survey: capture the shards of a run that are not committed yet."""

from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from theodolite.errors import RunDamagedError
from theodolite.metrics import CaptureMetrics
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import digest_of
from theodolite.store.activations import create_activations
from theodolite.store.commits import drop_pending, recover
from theodolite.store.layout import COMPLETE, RUN_RECORD, prompts_key
from theodolite.store.manifest import listed_checksums
from theodolite.store.objects import Location, get, open_location, sweep_staged
from theodolite.store.prompts import write_prompts, write_tokens
from theodolite.store.records import record_key
from theodolite.store.result_writer import consolidate
from theodolite.store.runs import Run, create_run, find_run, run_url
from theodolite_jobs.prepare import Prepared
from theodolite_jobs.progress import Console

if TYPE_CHECKING:
    from theodolite_jobs.capture_shards import Work

_LIBRARIES = ("torch", "transformers")
"""Libraries whose version can change a captured number."""

ABANDONED_SECONDS = 3600.0
"""Age of a temporary file that no writer will rename any more."""


def capture_run(prepared: Prepared, settings: Settings, console: Console) -> Run:
    """Capture the shards of a prepared survey that are not committed yet, and return the run.

    Raises:
        ParityError: captured activations differ from plain Hugging Face; nothing was written.
        RunDamagedError: the run is damaged, or this machine would capture other numbers.
        StoreError: the store cannot be written.
    """
    run = find_run(settings.store, prepared.run_id)
    if run is not None:
        check_same_plan(run, prepared)
    elif get(open_location(run_url(settings.store, prepared.run_id)), COMPLETE) is not None:
        raise RunDamagedError(
            f"{prepared.run_id}: {RUN_RECORD} is missing; run `theodolite verify {prepared.run_id} --repair`"
        )
    work = _open_work(run, prepared)
    if run is not None and work and listed_checksums(run):
        lost = record_key(work[0][1].prompt_set, work[0][1].index)
        raise RunDamagedError(f"{run.id}: {lost} is missing; run `theodolite verify {run.id} --repair`")
    if not prepared.plans:
        run = run or create_run(settings.store, prepared.record("not run", {}))
    elif run is None or work:
        from theodolite_jobs.capture_shards import capture_shards  # Ray and torch take seconds to load

        run = capture_shards(prepared, work, settings, console, partial(_begin, prepared, run, work, settings))
    else:
        console.say(f"all shards of {run.id} are committed already")
        drop_pending(run)  # a process that was killed may have left them
        CaptureMetrics(prepared.source.name, ()).progress(1, 1)
    sweep_staged(run.url, ABANDONED_SECONDS)
    has_tables = (get(run.location, prompts_key(name)) is not None for name in run.record.sets)
    if work or not all(has_tables):
        finish_capture(run, prepared)
    return run


def _begin(
    prepared: Prepared, run: Run | None, work: "Work", settings: Settings, parity: dict[str, Any]
) -> "tuple[Run, Work]":
    """Return the run, which is created if it does not exist, and its open work."""
    if run is None:
        run = _create(prepared, parity, settings)
        work = _open_work(run, prepared)  # another driver may have created the same run
    check_same_plan(run, prepared)
    check_same_arithmetic(run, parity)
    return run, work


def _create(prepared: Prepared, parity: dict[str, Any], settings: Settings) -> Run:
    """Write the objects that a resume needs and return the run. run.json comes last, so a listed run is whole."""
    write_descriptions(open_location(run_url(settings.store, prepared.run_id), create=True), prepared)
    return create_run(settings.store, prepared.record(parity["attention"], parity))


def write_descriptions(location: Location, prepared: Prepared) -> None:
    """Write the token ids of each set, and the metadata of its arrays.

    Existing objects are not replaced, because another driver may have created the same run.
    """
    for name, plan in prepared.plans.items():
        write_tokens(location, name, prepared.tokens[name])
        coordinates: dict[str, Sequence[int]] = {
            "position": plan.positions,
            "layer": prepared.layers,
            "d_model": range(prepared.dimensions.d_model),
        }
        if Site.HEAD_OUT in prepared.spec.capture.sites:
            coordinates["head"] = range(prepared.dimensions.n_heads)
            coordinates["d_head"] = range(prepared.dimensions.d_head)
        if units := prepared.counted_units(name):
            coordinates["unit"] = range(units)
        bounds = prepared.spec.bounds(name, plan.n_samples)
        create_activations(location, name, bounds, prepared.spec.capture.all_sites, coordinates)


def finish_capture(run: Run, prepared: Prepared) -> None:
    """Write the objects that need all shards. The tables of prompts come last and mark the capture as finished."""
    commits = {name: recover(run, name).values() for name in prepared.plans}
    drop_pending(run)
    consolidate(run)
    for name, of_shards in commits.items():
        quarantined = dict(item for commit in of_shards for item in commit.quarantined.items())
        lengths = [len(ids) for ids in prepared.tokens[name]]
        write_prompts(run.location, name, prepared.prompts[name], lengths, run.record.bounds(name), quarantined)


def _open_work(run: Run | None, prepared: Prepared) -> "Work":
    """Return (plan, shard) for each shard that is not committed, after completing interrupted moves."""
    work = []
    for name, plan in prepared.plans.items():
        commits = recover(run, name) if run is not None else {}
        work += [(plan, shard) for shard in plan.shards if shard.index not in commits]
    return work


def check_same_plan(run: Run, prepared: Prepared) -> None:
    """Raise RunDamagedError if this version tokenises or batches differently from the version that created the run."""
    created_with = f"transformers {run.record.versions.get('transformers')}"
    for name, plan in prepared.plans.items():
        facts = run.record.sets[name]
        if facts.token_ids_sha256 != digest_of(prepared.tokens[name]):
            raise RunDamagedError(
                f"{run.id}: the tokens of {name} differ from the run's tokens, which {created_with} made; "
                "resume with that version, or use another store"
            )
        if facts.plan_sha256 != plan.digest():
            raise RunDamagedError(
                f"{run.id}: the batches of {name} differ from the run's batches, which theodolite "
                f"{run.record.versions.get('theodolite')} planned; resume with that version, or use another store"
            )


def check_same_arithmetic(run: Run, parity: dict[str, Any]) -> None:
    """Raise RunDamagedError if the run's existing shards were computed with different arithmetic."""
    from theodolite_jobs.cluster.replica import arithmetic

    created_with = [*arithmetic(run.record.parity), *(f"{name} {run.record.versions[name]}" for name in _LIBRARIES)]
    now = [*arithmetic(parity), *(f"{name} {version(name)}" for name in _LIBRARIES)]
    for before, after in zip(created_with, now, strict=True):
        if before != after:
            raise RunDamagedError(
                f"{run.id}: the run was created with {before} and would resume with {after}; resume with {before} "
                "(ranks: THEODOLITE_PARALLELISM and --gpus-per-replica), or use another store"
            )
