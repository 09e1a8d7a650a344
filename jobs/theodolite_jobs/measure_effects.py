"""Measure the missing parts of an analysis of effects on replicas, and show the progress.

The replicas may compute with another device than those of the capture. They have a parity certificate of their own, and
compare changed states with unchanged ones of the same replica.
"""

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from theodolite.errors import StoreError
from theodolite.metrics import CaptureMetrics
from theodolite.settings import Settings
from theodolite.store.manifest import finished_groups
from theodolite.store.removal import unless_removed
from theodolite.store.runs import Run
from theodolite_jobs.capture.plan import ShardPlan, ShardTask
from theodolite_jobs.cluster.effects_replica import EffectsAssignment, EffectsReplica
from theodolite_jobs.cluster.replicas import assignment_of, certified_workers
from theodolite_jobs.cluster.scheduling import REASONS, STORE, Callbacks, run_shards
from theodolite_jobs.effects.part_store import PartStore
from theodolite_jobs.effects.work import LAST_TOKEN, EffectsWork
from theodolite_jobs.models.source import ModelSource
from theodolite_jobs.progress import Console


def measure_effects(
    run: Run, work: EffectsWork, source: ModelSource, config: Any, settings: Settings, console: Console
) -> None:
    """Measure the parts that are not stored yet, as `capture_run` captures shards.

    Args:
        run: the run, whose store holds the vectors of each label.
        work: the prompts and the questions.
        source: the model at the run's revision.
        config: the model's configuration.
        settings: the store and the cluster.
        console: prints messages and progress.

    Raises as `theodolite_jobs.capture_run.capture_run` does, and StoreError if another driver has finished the effects
    and removed the vectors.
    """
    stored = PartStore(run.location, run.id, work.digest)
    missing = [part for label in work.tokens for part in work.parts(label) if stored.read_part(part) is None]
    for part in missing:
        stored.drop_part(part)
    if not missing:
        return
    metrics = CaptureMetrics(run.record.model.name, REASONS)
    common = assignment_of(run.id, run.record.spec, run.record.layers, source, Path(), settings)
    assignment = EffectsAssignment(**vars(common) | {"spot_checks": 0.0}, digest=work.digest, questions=work.questions)
    sets = {label: (LAST_TOKEN, tokens) for label, tokens in work.tokens.items()}
    tasks = [ShardTask(LAST_TOKEN, part, work.tokens[part.prompt_set][part.start : part.stop]) for part in missing]
    total = sum(map(len, work.tokens.values()))
    done = total - sum(part.stop - part.start for part in missing)
    with (
        certified_workers(assignment, config, sets, settings, console, metrics, EffectsReplica) as (workers, _),
        unless_removed(run) as look,
        console.bar("effects", total, done, unit="prompts") as bar,
    ):

        def written(_part: ShardPlan, numbers: Mapping[str, Any]) -> None:
            metrics.measured(int(numbers["prompts"]))
            bar.advance(int(numbers["prompts"]))
            look()

        def retried(reason: str) -> None:
            metrics.retried(reason)
            look()
            if reason == STORE and _is_finished(run, work.digest):
                raise StoreError(f"{run.id}: another driver has finished the effects, and removed their vectors")

        callbacks = Callbacks(written, retried, metrics.replicas, console.say)
        run_shards(workers, tasks, callbacks)


def _is_finished(run: Run, digest: str) -> bool:
    """Return whether the store says that the effects are finished; one that does not respond says nothing."""
    with suppress(StoreError):
        return finished_groups(run).get("effects") == digest
    return False
