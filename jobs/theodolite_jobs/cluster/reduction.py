"""Reduce a shard part by part while the device captures the next parts; nothing of the activations is stored."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from theodolite.shard_counts import ShardCounts
from theodolite.spec import TokenIds
from theodolite.store.runs import Run
from theodolite_jobs.capture.engine import CapturedShard, Engine
from theodolite_jobs.capture.plan import Batch, SetPlan, ShardPlan, pieces
from theodolite_jobs.cluster.budget import Budget
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass
from theodolite_jobs.passes.reduced import CapturedSamples, reduce_samples


@dataclass
class ReducedShard:
    """The result of reducing a shard; fields with the names of those of `CapturedShard` have their meaning."""

    first: FirstPass
    positive_counts: NDArray[np.int32] | None
    batches: list[Batch]
    quarantined: dict[int, str]
    counts: ShardCounts

    def __add__(self, other: "ReducedShard") -> "ReducedShard":
        ours, theirs = self.positive_counts, other.positive_counts
        return ReducedShard(
            self.first.merged(other.first),
            None if ours is None or theirs is None else ours + theirs,
            self.batches + other.batches,
            self.quarantined | other.quarantined,
            self.counts.merged(other.counts),
        )


class Reducer:
    """Threads that reduce the captured parts of shards."""

    def __init__(
        self, run: Run, norms: Sequence[NormLayer] | None, shard_prompts: int, threads: int, max_bytes: int
    ) -> None:
        """Start no thread before the first part.

        Args:
            run: the run.
            norms: its norm layers; None if they cannot be read.
            shard_prompts: number of prompts in a part.
            threads: number of threads.
            max_bytes: maximum number of bytes of the activations that are captured and not reduced.
        """
        self._run, self._norms, self._shard_prompts, self._threads = run, norms, shard_prompts, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="reduce")
        self._budget = Budget(threads + 1, max_bytes)

    def launch(
        self, engine: Engine, plan: SetPlan, shard: ShardPlan, tokens: Sequence[TokenIds], units: int, halvings: int
    ) -> Callable[[], ReducedShard]:
        """Capture a shard part by part; return a function that waits for the reduction of the last parts.

        The parts merge in order, so the result does not depend on the number of threads. The arguments are those of
        `Engine.launch`.
        """
        waiting: deque[Future[ReducedShard]] = deque()
        merged: list[ReducedShard] = []

        def merge_next() -> None:
            part = waiting.popleft().result()
            merged[:] = [merged[0] + part] if merged else [part]

        for part in pieces(shard, self._shard_prompts):
            while waiting and (waiting[0].done() or len(waiting) > self._threads):  # bounds the results in memory
                merge_next()
            own = tokens[part.start - shard.start : part.stop - shard.start]
            n_bytes = engine.shard_bytes(plan, part, units)
            self._budget.reserve(n_bytes)
            try:
                finish = engine.launch(plan, part, own, units, halvings)
            except BaseException:
                self._budget.release(n_bytes)
                raise
            waiting.append(self._pool.submit(self._reduce, finish, part, n_bytes))

        def finish_all() -> ReducedShard:
            while waiting:
                merge_next()
            return merged[0]

        return finish_all

    def _reduce(self, finish: Callable[[], CapturedShard], part: ShardPlan, n_bytes: int) -> ReducedShard:
        try:
            captured = finish()
            samples = CapturedSamples(captured.activations, part.start, captured.quarantined)
            first = reduce_samples(self._run, samples, self._norms)
        finally:
            self._budget.release(n_bytes)
        return ReducedShard(first, captured.positive_counts, captured.batches, captured.quarantined, captured.counts)
