"""Restore what the capture wrote: descriptions of arrays, prompts, tokens, shards and their commit records."""

from collections.abc import Collection, Iterable
from dataclasses import replace

from theodolite.query.verification import ShardKey
from theodolite.settings import Settings
from theodolite.store.commits import read_commit
from theodolite.store.manifest import drop_groups, finished_groups, forget, list_groups
from theodolite.store.objects import delete
from theodolite.store.records import record_key
from theodolite.store.runs import Run
from theodolite_jobs.capture.plan import ShardPlan
from theodolite_jobs.capture_run import capture_replicas, capture_shards, check_same_arithmetic
from theodolite_jobs.captured_objects import describe, finish_capture
from theodolite_jobs.prepared import Prepared
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.commit_records import rebuild_records, restore_spelling, rests_on_these_shards


def restore_captured(
    run: Run,
    prepared: Prepared,
    damaged: Iterable[ShardKey],
    lost: Collection[ShardKey],
    settings: Settings,
    console: Console,
) -> list[str]:
    """Restore what the capture of a run wrote; return a sentence for each shard that cannot be restored.

    COMPLETE lists a damaged object until it is restored, so a repair that is interrupted hides no damage.

    Args:
        run: the run.
        prepared: its survey.
        damaged: the shards whose arrays are damaged.
        lost: the shards whose commit records are damaged or missing.
        settings: the store, and the cluster that captures shards.
        console: prints messages and progress.
    """
    describe(run, prepared)
    lost = restore_spelling(run, lost)
    if lost and rebuild_records(run, prepared, lost):
        console.say(f"COMPLETE proves the arrays of {len(lost)} shard(s) whose commit records were lost")
        lost = set()
    shards = [*(_as_committed(run, prepared, key) for key in damaged), *(_planned(prepared, key) for key in lost)]
    refused: list[str] = []
    if shards:
        with capture_replicas(prepared, shards, settings, console) as (workers, parity):
            check_same_arithmetic(run, parity)
            # A record that COMPLETE does not list is a damage too: it stays named until the shard is captured.
            forget(run, [record_key(*shard) for shard in lost])
            delete(run.location, [record_key(*shard) for shard in lost])
            capture_shards(workers, run, prepared, shards, console, lambda error: refused.append(str(error)))
    if not refused:
        checksums = finish_capture(run, prepared)
        if not rests_on_these_shards(run):
            drop_groups(run, finished_groups(run))
        list_groups(run, {}, checksums)
    return refused


def _planned(prepared: Prepared, key: ShardKey) -> ShardPlan:
    name, index = key
    return prepared.plans[name].shards[index]


def _as_committed(run: Run, prepared: Prepared, key: ShardKey) -> ShardPlan:
    """Return the plan of a shard with the batches of its commit record.

    Other batches give other rounding errors; the plan's were halved where memory ran out.
    """
    batches = tuple(tuple(batch) for batch in read_commit(run, *key).batches)
    return replace(_planned(prepared, key), batches=batches)
