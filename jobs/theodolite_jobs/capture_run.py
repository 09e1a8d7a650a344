"""The first stage of a survey: capture the shards of a run that are not committed yet."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from theodolite.errors import RunDamagedError, StoreError
from theodolite.metrics import CaptureMetrics
from theodolite.settings import Settings
from theodolite.store.activations import create_activations
from theodolite.store.commits import drop_pending, recover
from theodolite.store.manifest import finished_groups, forget, write_complete
from theodolite.store.objects import Location, absolute, free_bytes, get, open_location, sweep_staged
from theodolite.store.prompts import prompts_key, read_tokens, write_prompts, write_tokens
from theodolite.store.records import record_key
from theodolite.store.result_writer import consolidate
from theodolite.store.runs import Run, create_run, find_run, run_url
from theodolite_jobs.capture.plan import SetPlan, ShardPlan
from theodolite_jobs.models.load import resolved_dtype
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.prepare import Prepared
from theodolite_jobs.progress import Console

_LIBRARIES = ("torch", "transformers")
"""Libraries whose version can change a captured number."""

ABANDONED_SECONDS = 3600.0
"""Age of a temporary file that no writer will rename any more."""

Work = list[tuple[SetPlan, ShardPlan]]
"""Shards that are to be captured, with the plans of their sets."""


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
    work = _open_work(run, prepared)
    if not prepared.plans:
        run = run or create_run(settings.store, prepared.record("not run", {}))
    elif run is None or work:
        if run is not None:  # a record that was lost, and that COMPLETE lists, is written again with other times
            forget(run, [record_key(shard.prompt_set, shard.index) for _, shard in work])
        run = capture_shards(prepared, run, work, settings, console)
    else:
        console.say(f"all shards of {run.id} are committed already")
        drop_pending(run)  # a process that was killed may have left them
        CaptureMetrics(prepared.source.name, ()).progress(1, 1)
    sweep_staged(run.url, ABANDONED_SECONDS)
    has_tables = (get(run.location, prompts_key(name)) is not None for name in run.record.sets)
    if work or not all(has_tables):
        finish_capture(run, prepared)
        write_complete(run, finished_groups(run))
    return run


def capture_shards(prepared: Prepared, run: Run | None, work: Work, settings: Settings, console: Console) -> Run:
    """Capture these shards on replicas, and return the run; None creates it. Raises as `capture_run` does."""
    from theodolite_jobs.cluster.replica import Assignment
    from theodolite_jobs.cluster.scheduling import REASONS, Callbacks, run_shards
    from theodolite_jobs.cluster.session import choose_resources, ray_session
    from theodolite_jobs.cluster.store_marker import marked_store
    from theodolite_jobs.cluster.workers import certify_workers, start_workers
    from theodolite_jobs.models.sharding import choose_ranks

    _check_space(prepared, work, settings, console)
    if prepared.source.kind == "folder":
        TensorFiles(Path(prepared.source.location))  # raise for a broken file before replicas start
    console.say(f"starting replicas on {settings.ray_address or 'this machine'}")
    with ray_session(settings.ray_address), marked_store(settings.store) as marker:
        metrics = CaptureMetrics(prepared.source.name, REASONS)
        metrics.progress(0, 1)  # so that an alert can fire if no replica ever starts
        metrics.replicas(0)
        grows = settings.nodes_wait_seconds > 0
        resources = choose_resources(settings.replicas, settings.gpus_per_replica, grows=grows)
        ranks = choose_ranks(settings.parallelism, prepared.config, resources.gpus)
        resources = replace(resources, ranks=ranks, threads=max(1, resources.threads // ranks))
        assignment = Assignment(
            run_id=prepared.run_id,
            run_url=run_url(absolute(settings.store), prepared.run_id),
            model=prepared.pinned_model,
            revision=prepared.source.revision,
            folder=prepared.folder.absolute(),
            cache=settings.cache,
            sites=tuple(prepared.spec.capture.sites),
            layers=tuple(prepared.layers),
            shard_prompts=prepared.spec.capture.shard_prompts,
            threads=resources.threads,
            gpus=resources.gpus,
            marker=marker,
        )
        workers = start_workers(assignment, resources, prepared.plans, prepared.tokens)
        try:
            shared = f" of {ranks} ranks each" if ranks > 1 else ""
            console.say(
                f"{resources.replicas} replica(s){shared} load the model and check parity with plain Hugging Face"
            )
            parity = certify_workers(
                workers, resources, settings.nodes_wait_seconds, console.say, settings.replicas_wait_seconds
            )
            console.say(
                f"parity: largest error {parity['max_error']:.1e} (allowed {parity['bound']:.0e}), "
                f"{parity['dtype']}, {parity['attention']} attention, {parity['device']}"
            )
            if run is None:
                run = _create(prepared, parity, settings)
                work = _open_work(run, prepared)
            _check_same_arithmetic(run, parity)
            tokens = {name: read_tokens(run.location, name) for name in prepared.plans}
            total = sum(facts.n_samples for facts in run.record.sets.values())
            done = total - sum(shard.stop - shard.start for _, shard in work)
            metrics.progress(done, total)
            with console.bar("capture", total, done, unit="prompts") as bar:

                def committed(_shard: ShardPlan, numbers: Mapping[str, Any]) -> None:
                    bar.advance(int(numbers["prompts"]))
                    metrics.committed(numbers)
                    metrics.progress(bar.done, total)

                callbacks = Callbacks(committed, metrics.retried, metrics.replicas, console.say)
                run_shards(workers, work, tokens, callbacks)
            metrics.replicas(0)
        finally:
            for worker in workers:
                worker.kill()
    return run


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
        if units := prepared.counted_units(name):
            coordinates["unit"] = range(units)
        capture = prepared.spec.capture
        create_activations(location, name, plan.n_samples, capture.shard_prompts, capture.sites, coordinates)


def finish_capture(run: Run, prepared: Prepared) -> None:
    """Write the objects that need all shards. The tables of prompts come last and mark the capture as finished."""
    commits = {name: recover(run, name).values() for name in prepared.plans}
    drop_pending(run)
    consolidate(run)
    for name, of_shards in commits.items():
        quarantined = dict(item for commit in of_shards for item in commit.quarantined.items())
        lengths = [len(ids) for ids in prepared.tokens[name]]
        shard_prompts = run.record.spec.capture.shard_prompts
        write_prompts(run.location, name, prepared.prompts[name], lengths, shard_prompts, quarantined)


def _open_work(run: Run | None, prepared: Prepared) -> Work:
    """Return (plan, shard) for each shard that is not committed, after completing interrupted moves."""
    work: Work = []
    for name, plan in prepared.plans.items():
        commits = recover(run, name) if run is not None else {}
        work += [(plan, shard) for shard in plan.shards if shard.index not in commits]
    return work


def _check_space(prepared: Prepared, work: Work, settings: Settings, console: Console) -> None:
    """Raise StoreError if these shards cannot fit into a local store, and say so if they may not fit."""
    free = free_bytes(settings.store)
    most = sum(prepared.shard_bytes(shard) for _, shard in work)
    # Shards are float32. Compression removes about half of what was bfloat16 or float16, and little of float32.
    is_half = resolved_dtype(prepared.config, prepared.spec.model.dtype) != "float32"
    least = most // 2 if is_half else 9 * most // 10
    if free is None or most <= free:
        return
    needed = f"{least / 1e9:.3g} to {most / 1e9:.3g} GB"
    sizes = f"the shards need {needed}, and {settings.store} has {free / 1e9:.3g} GB free"
    if least > free:
        raise StoreError(f"{sizes}; free some space, choose another --store, or capture fewer layers or positions")
    console.say(f"{sizes}; if the disk fills up, the capture waits for space")


def check_same_plan(run: Run, prepared: Prepared) -> None:
    """Raise RunDamagedError if this version tokenises or batches differently from the version that created the run."""
    created_with = f"transformers {run.record.versions.get('transformers')}"
    for name, plan in prepared.plans.items():
        facts = run.record.sets[name]
        if read_tokens(run.location, name) != prepared.tokens[name]:
            raise RunDamagedError(
                f"{run.id}: the tokens of {name} differ from the run's tokens, which {created_with} made; "
                "resume with that version, or use another store"
            )
        if facts.plan_sha256 != plan.digest():
            raise RunDamagedError(
                f"{run.id}: the batches of {name} differ from the run's batches, which theodolite "
                f"{run.record.versions.get('theodolite')} planned; resume with that version, or use another store"
            )


def _check_same_arithmetic(run: Run, parity: dict[str, Any]) -> None:
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
