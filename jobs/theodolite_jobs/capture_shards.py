"""Capture shards of a prepared survey on replicas, and show the progress."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from theodolite.errors import RunDamagedError, StoreError
from theodolite.metrics import CaptureMetrics
from theodolite.settings import Settings
from theodolite.store.objects import absolute, free_bytes
from theodolite.store.removal import unless_removed
from theodolite.store.runs import Run, run_url
from theodolite_jobs.capture.plan import ShardPlan, ShardTask
from theodolite_jobs.cluster.replica import Assignment
from theodolite_jobs.cluster.scheduling import REASONS, Callbacks, run_shards
from theodolite_jobs.models.load import resolved_dtype
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console
from theodolite_jobs.replicas import certified_workers

Begin = Callable[[dict[str, Any]], tuple[Run, list[ShardPlan]]]
"""Called with the parity certificate before the first shard is captured; returns the run, and the shards to capture."""


def capture_shards(
    prepared: Prepared,
    shards: list[ShardPlan],
    settings: Settings,
    console: Console,
    begin: Begin,
    refused: Callable[[RunDamagedError], None] | None = None,
) -> Run:
    """Capture shards on replicas, and return the run.

    Args:
        prepared: the survey.
        shards: the shards that will be captured, as far as it is known before `begin`.
        settings: the store and the cluster.
        console: prints messages and progress.
        begin: called when the replicas are certified.
        refused: called if the store has other bits of a shard; None ends the capture with the error.

    Raises as `theodolite_jobs.capture_run.capture_run` does.
    """
    _check_space(prepared, shards, settings, console)
    metrics = CaptureMetrics(prepared.source.name, REASONS)
    metrics.progress(0, 1)  # so that an alert can fire if no replica ever starts
    metrics.replicas(0)
    metrics.wanted(settings.replicas or 1)  # the cluster may set another number
    if prepared.source.kind == "folder" and prepared.source.weights == "trained":
        TensorFiles(Path(prepared.source.location))  # raise for a broken file before replicas start
    layouts = {name: plan.layout for name, plan in prepared.plans.items()}
    inputs = _assignment(prepared, settings), prepared.config, layouts, prepared.tokens
    with certified_workers(*inputs, settings, console, metrics) as (workers, parity):
        run, shards = begin(parity)
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

            callbacks = Callbacks(committed, retried, metrics.replicas, console.say)
            if refused is not None:
                callbacks = replace(callbacks, refused=refused)
            run_shards(workers, _tasks(run, prepared, shards), callbacks)
    return run


def _tasks(run: Run, prepared: Prepared, shards: list[ShardPlan]) -> list[ShardTask]:
    """Return the tasks of shards. What they record follows from run.json, so all shards have the same arrays."""
    tokens, tasks = prepared.tokens, []
    for shard in shards:
        name, facts = shard.prompt_set, run.record.sets[shard.prompt_set]
        choices = 0 if shard.is_reduced else facts.n_choices
        tasks.append(prepared.plans[name].task(shard, tokens[name], facts.n_units, choices))
    return tasks


def _assignment(prepared: Prepared, settings: Settings) -> Assignment:
    return Assignment(
        run_id=prepared.run_id,
        run_url=run_url(absolute(settings.store), prepared.run_id),
        model=prepared.pinned_model,
        revision=prepared.source.revisions,
        folder=prepared.folder.absolute(),
        cache=settings.cache,
        sites=prepared.spec.capture.all_sites,
        layers=tuple(prepared.layers),
        shard_prompts=prepared.spec.capture.sizes.shard_prompts,
        spot_checks=settings.spot_checks,
    )


def _check_space(prepared: Prepared, shards: list[ShardPlan], settings: Settings, console: Console) -> None:
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
