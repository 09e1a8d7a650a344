"""Reduce a shard part by part while the device captures the next parts; nothing of the activations is stored."""

from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field

from theodolite.store.runs import Run
from theodolite_jobs.capture.engine import CapturedShard, Engine
from theodolite_jobs.capture.plan import ShardTask, pieces
from theodolite_jobs.cluster.budget import Budget
from theodolite_jobs.passes.norm_layers import NormLayer
from theodolite_jobs.passes.one_shard import FirstPass
from theodolite_jobs.passes.reduced import CapturedSamples, reduce_samples


@dataclass
class ReducedShard(CapturedShard):
    """A captured shard that has the outputs of the first pass in place of the activations."""

    first: FirstPass = field(kw_only=True)

    def __add__(self, other: "ReducedShard") -> "ReducedShard":
        ours, theirs = self.positive_counts, other.positive_counts
        return ReducedShard(
            {},
            None if ours is None or theirs is None else ours + theirs,
            self.batches + other.batches,
            self.quarantined | other.quarantined,
            self.counts.merged(other.counts),
            first=self.first.merged(other.first),
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

    def launch(self, engine: Engine, task: ShardTask) -> Callable[[], ReducedShard]:
        """Capture a shard part by part; return a function that waits for the reduction of the last parts.

        The parts merge in order, so the result does not depend on the number of threads.
        """
        waiting: deque[Future[ReducedShard]] = deque()
        merged: list[ReducedShard] = []

        def merge_next() -> None:
            part = waiting.popleft().result()
            merged[:] = [merged[0] + part] if merged else [part]

        for part in pieces(task, self._shard_prompts):
            while waiting and (waiting[0].done() or len(waiting) > self._threads):  # bounds the results in memory
                merge_next()
            n_bytes = engine.shard_bytes(part)
            self._budget.reserve(n_bytes)
            try:
                finish = engine.launch(part)
            except BaseException:
                self._budget.release(n_bytes)
                raise
            waiting.append(self._pool.submit(self._reduce, finish, part.shard.start, n_bytes))

        def finish_all() -> ReducedShard:
            while waiting:
                merge_next()
            return merged[0]

        return finish_all

    def _reduce(self, finish: Callable[[], CapturedShard], start: int, n_bytes: int) -> ReducedShard:
        try:
            captured = finish()
            samples = CapturedSamples(captured.activations, start, captured.quarantined)
            first = reduce_samples(self._run, samples, self._norms)
        finally:
            self._budget.release(n_bytes)
        return ReducedShard(
            {}, captured.positive_counts, captured.batches, captured.quarantined, captured.counts, first=first
        )
