"""Run a replica without Ray: its engine is given, and its shards are captured, written and committed as in a survey."""

import os
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported

from theodolite.spec import TokenIds
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import SetPlan
from theodolite_jobs.cluster import write_queue
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.cluster.scheduling import IN_FLIGHT


def assignment_to(url: str, layers: Sequence[int], shard_prompts: int) -> Assignment:
    """Return the configuration of a replica on a GPU that writes into the run with this URL."""
    return Assignment(
        run_id=url.rpartition("/")[2],
        run_url=url,
        model=ModelSpec(id="none"),
        revision="none",
        folder=Path(),
        cache=Path(),
        sites=measuring.CAPTURED,
        layers=tuple(layers),
        shard_prompts=shard_prompts,
        threads=os.cpu_count() or 1,
        gpus=1,
    )


def replica_with(engine: Engine, url: str, shard_prompts: int) -> Replica:
    """Return a replica on a GPU that has this engine and writes into the run with this URL."""
    replica = Replica(assignment_to(url, engine.layers, shard_prompts))
    replica._engine = engine
    return replica


def run_replica(
    replica: Replica, plan: SetPlan, tokens: Sequence[TokenIds]
) -> tuple[list[dict[str, Any]], list[float]]:
    """Capture and write the shards of a plan as the scheduling loop does.

    Returns the numbers of each shard's commit record, and the times of the commits in their order.
    """
    committed_at = []

    def written(call: int) -> dict[str, Any]:
        numbers = replica.written(call)
        committed_at.append(time.perf_counter())
        return numbers

    with ThreadPoolExecutor(IN_FLIGHT + write_queue.MAX_SHARDS) as waiting:
        futures = []
        for call, shard in enumerate(plan.shards):
            futures.append(waiting.submit(written, call))
            replica.capture(call, plan.task(shard, tokens))
        return [future.result() for future in futures], committed_at
