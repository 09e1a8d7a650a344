"""The first stage of a survey: capture the shards of a run that are not committed yet."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from typing import Any

from theodolite.digests import digest_of
from theodolite.errors import RunDamagedError, StoreError
from theodolite.metrics import CaptureMetrics
from theodolite.settings import Settings
from theodolite.store.commits import committed_indices, drop_pending, recover
from theodolite.store.layout import COMPLETE, RUN_RECORD
from theodolite.store.manifest import list_groups, listed_checksums, refuse_changed_captured
from theodolite.store.objects import free_bytes, get, get_all, open_location, remove_empty_folders, sweep_staged
from theodolite.store.records import decode_record, record_key
from theodolite.store.removal import unless_removed
from theodolite.store.runs import Run, create_run, find_run, run_url
from theodolite_jobs.capture.plan import ShardPlan, ShardTask
from theodolite_jobs.captured_objects import describe, finish_capture
from theodolite_jobs.cluster.replica import LIBRARIES, arithmetic, full_arithmetic
from theodolite_jobs.cluster.scheduling import REASONS, Callbacks, Worker, run_shards
from theodolite_jobs.models.load import resolved_dtype
from theodolite_jobs.models.source import check_weight_versions
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console

ABANDONED_SECONDS = 3600.0
"""Age of a temporary file that no writer will rename any more."""


def capture_run(prepared: Prepared, settings: Settings, console: Console) -> Run:
    """Capture the shards of a prepared survey that are not committed yet, and return the run.

    Raises:
        ParityError: captured activations differ from plain Hugging Face; nothing was written.
        RunDamagedError: the run is damaged, or this machine would capture other numbers.
        RunNotFoundError: the run was removed meanwhile.
        StoreError: the store cannot be written.
    """
    run = find_run(settings.store, prepared.run_id)
    if run is not None:
        check_same_plan(run, prepared)
    elif get(open_location(run_url(settings.store, prepared.run_id)), COMPLETE) is not None:
        raise RunDamagedError(
            f"{prepared.run_id}: {RUN_RECORD} is missing; run `theodolite run verify {prepared.run_id} --repair`"
        )
    listed = listed_checksums(run) if run is not None else {}
    if run is not None and listed:
        refuse_changed_captured(run)
    shards = _open_shards(run, prepared)
    if run is not None and shards and listed:
        lost = record_key(shards[0].prompt_set, shards[0].index)
        raise RunDamagedError(f"{run.id}: {lost} is missing; run `theodolite run verify {run.id} --repair`")
    if not prepared.plans:
        run = run or create_run(settings.store, prepared.record("not run", {}))
    elif run is None or shards:
        with capture_replicas(prepared, shards, settings, console) as (workers, parity):
            if run is None:
                run = _create(prepared, parity, settings)
                shards = _open_shards(run, prepared)  # another driver may have created the same run
            check_same_plan(run, prepared)
            check_same_arithmetic(run, parity)
            describe(run, prepared)  # damage, or a process that was killed, may have left the objects incomplete
            capture_shards(workers, run, prepared, shards, console)
    else:
        console.say(f"all shards of {run.id} are committed already")
        drop_pending(run)  # a process that was killed may have left them
        CaptureMetrics(prepared.source.name, ()).progress(1, 1)
    with unless_removed(run):
        sweep_staged(run.url, ABANDONED_SECONDS)
        remove_empty_folders(f"{run.url}/pending")
        if shards or not listed:
            checksums = finish_capture(run, prepared)
            if not checksums.items() <= listed_checksums(run).items():  # another driver may have finished the run
                list_groups(run, {}, checksums)
    return run


@contextmanager
def capture_replicas(
    prepared: Prepared, shards: Sequence[ShardPlan], settings: Settings, console: Console
) -> Iterator[tuple[Sequence[Worker], dict[str, Any]]]:
    """Start replicas that can capture the shards of a survey, and yield them with their parity certificate.

    Raises:
        StoreError: the shards do not fit into the store.
        CaptureError, ModelError, ParityError: see `certified_workers`.
    """
    from theodolite_jobs.cluster.replicas import assignment_of, certified_workers  # Ray and torch take seconds to load
    from theodolite_jobs.models.tensors import TensorFiles

    _check_space(prepared, shards, settings, console)
    metrics = CaptureMetrics(prepared.source.name, REASONS)
    metrics.progress(0, 1)  # so that an alert can fire if no replica ever starts
    metrics.replicas(0)
    metrics.wanted(settings.replicas or 1)  # the cluster may set another number
    if prepared.source.kind == "folder" and prepared.source.weights == "trained":
        TensorFiles(Path(prepared.source.location))  # raise for a broken file before replicas start
    spec, tokens = prepared.spec, prepared.tokens
    assignment = assignment_of(prepared.run_id, spec, prepared.layers, prepared.source, prepared.folder, settings)
    sets = {name: (plan.known_layout(tokens[name]), tokens[name]) for name, plan in prepared.plans.items()}
    with certified_workers(assignment, prepared.config, sets, settings, console, metrics) as replicas:
        yield replicas


def capture_shards(
    workers: Sequence[Worker],
    run: Run,
    prepared: Prepared,
    shards: Sequence[ShardPlan],
    console: Console,
    refused: Callable[[RunDamagedError], None] | None = None,
) -> None:
    """Capture shards of a run on replicas, and show the progress.

    `refused` is called if the store has other bits of a shard; None ends the capture with the error.
    """
    metrics = CaptureMetrics(prepared.source.name, REASONS)
    total = sum(facts.n_samples for facts in run.record.sets.values())
    done = total - sum(shard.stop - shard.start for shard in shards)
    metrics.progress(done, total)
    with unless_removed(run) as look, console.bar("capture", total, done, unit="prompts") as bar:

        def committed(_shard: ShardPlan, numbers: Mapping[str, Any]) -> None:
            bar.advance(int(numbers["prompts"]))
            metrics.committed(numbers)
            metrics.progress(bar.done, total)
            look()

        def retried(reason: str) -> None:
            metrics.retried(reason)
            look()

        callbacks = Callbacks(committed, retried, metrics.replicas, console.say, refused)
        run_shards(workers, _tasks(run, prepared, shards), callbacks)


def _tasks(run: Run, prepared: Prepared, shards: Sequence[ShardPlan]) -> list[ShardTask]:
    """Return the tasks of shards. What they record follows from run.json, so all shards have the same arrays."""
    tokens, tasks = prepared.tokens, []
    for shard in shards:
        name, facts = shard.prompt_set, run.record.sets[shard.prompt_set]
        choices = 0 if shard.is_reduced else facts.n_choices
        tasks.append(prepared.plans[name].task(shard, tokens[name], facts.n_units, choices))
    return tasks


def _create(prepared: Prepared, parity: dict[str, Any], settings: Settings) -> Run:
    """Write the objects that a resume needs and return the run. run.json comes last, so a listed run is whole."""
    open_location(run_url(settings.store, prepared.run_id), create=True)
    run = Run(settings.store, prepared.record(parity["attention"], parity))
    check_same_shards(run, prepared, parity)
    describe(run, prepared)
    return create_run(run.store, run.record)


def _open_shards(run: Run | None, prepared: Prepared) -> list[ShardPlan]:
    """Return the shards that are not committed, after completing interrupted moves."""
    shards: list[ShardPlan] = []
    for name, plan in prepared.plans.items():
        commits = recover(run, name) if run is not None else {}
        shards += [shard for shard in plan.shards if shard.index not in commits]
    return shards


def _check_space(prepared: Prepared, shards: Sequence[ShardPlan], settings: Settings, console: Console) -> None:
    """Raise StoreError if these shards cannot fit into a local store, and say so if they may not fit."""
    free = free_bytes(settings.store)
    most = sum(prepared.shard_bytes(shard) for shard in shards)
    # Shards are float32. Compression removes half to two thirds of what was bfloat16 or float16, and little of float32.
    is_half = resolved_dtype(prepared.config, prepared.spec.model.dtype) != "float32"
    least = most // 4 if is_half else most // 2
    if free is None or most <= free:
        return
    sizes = f"the shards need up to {most / 1e9:.3g} GB, and {settings.store} has {free / 1e9:.3g} GB free"
    if least > free:
        raise StoreError(f"{sizes}; free some space, choose another --store, or capture fewer layers or positions")
    console.say(f"{sizes}; if the disk fills up, the capture waits for space")


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
    """Raise RunDamagedError if the run's existing shards were computed with different arithmetic.

    Raises:
        ModelError: this installation may compute other random or dequantised weights than those of the run.
    """
    check_weight_versions(run)
    check_equal_arithmetic(run.id, recorded_arithmetic(run), full_arithmetic(parity))


def recorded_arithmetic(run: Run) -> list[str]:
    """Return the arithmetic of the replicas that created a run, as `full_arithmetic` does for a replica."""
    return [*arithmetic(run.record.parity), *(f"{name} {run.record.versions.get(name)}" for name in LIBRARIES)]


def check_same_shards(run: Run, prepared: Prepared, parity: dict[str, Any]) -> None:
    """Raise RunDamagedError if the shards of a run without run.json have other tokens, or were computed differently.

    The commit records tell; those that are damaged say nothing.
    """
    now = full_arithmetic(parity) if prepared.plans else []  # without prompts there is no certificate
    for name in run.record.sets:
        indices = sorted(committed_indices(run, name))
        contents = get_all(run.location, [record_key(name, index) for index in indices])
        for index, record in zip(indices, contents, strict=True):
            try:
                commit = decode_record(record, run.record, name, index)
            except RunDamagedError:
                continue
            if commit.token_ids_sha256 != digest_of(prepared.tokens[name][commit.start : commit.stop]):
                raise RunDamagedError(
                    f"{run.id}: the tokens of {name} differ from those of shard {commit.name}; use the version of "
                    "transformers that captured the run, or another store"
                )
            check_equal_arithmetic(run.id, commit.arithmetic, now)


def check_equal_arithmetic(run_id: str, created_with: Sequence[str], now: Sequence[str]) -> None:
    """Raise RunDamagedError if a run's shards were computed with other arithmetic than this cluster has now."""
    for before, after in zip_longest(created_with, now, fillvalue="unknown arithmetic"):
        if before != after:
            raise RunDamagedError(
                f"{run_id}: the run was created with {before} and would resume with {after}; resume with {before} "
                "(ranks: THEODOLITE_PARALLELISM and --gpus-per-replica), or use another store"
            )
