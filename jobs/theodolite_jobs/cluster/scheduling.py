"""The scheduling loop: dispatch shards to replicas until all shards are committed. This module does not import Ray.

The loop blocks only on its event queue. A replica that loads, restarts or dies does not delay the other replicas.
"""

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from theodolite.errors import CaptureError
from theodolite.spec import TokenIds
from theodolite_jobs.capture.plan import SetPlan, ShardPlan

IN_FLIGHT = 2
"""Slots of a replica: it executes one shard and queues one, so that it does not idle between shards."""

MAX_ATTEMPTS = 3
"""Failures of one shard that end the run, so that a shard that kills its replica is not retried forever."""

DIED, OUT_OF_MEMORY = REASONS = ("died", "out_of_memory")
"""Reasons to requeue a shard. After `out_of_memory` the loop halves the batches."""


class ReplicaDiedError(Exception):
    """A replica died and lost its shards; another replica, or the same replica after a restart, can run them.

    The reason is one of REASONS. `was_executing` is True if this shard was executing when the replica died. Queued
    shards are not counted as failed.
    """

    def __init__(self, reason: str, detail: str, *, was_executing: bool = True) -> None:
        super().__init__(detail)
        self.reason, self.was_executing = reason, was_executing


class Worker(Protocol):
    """The interface of a replica to the loop."""

    ready: "Future[Any]"
    """Completes when the replica accepts shards, or fails. The replica may still wait for resources."""

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: Sequence[TokenIds], halvings: int
    ) -> "Future[Mapping[str, Any]]":
        """Return a future of the numbers of the shard's commit record; it fails with ReplicaDiedError."""

    def restart(self, reason: str) -> "Future[Any] | None":
        """Restart a dead replica and return the new `ready`, or None if the replica has no restart left."""

    def kill(self) -> None:
        """Kill all processes of the replica, which frees their resources."""


@dataclass(frozen=True)
class Callbacks:
    """Functions that the loop calls when something happens."""

    committed: Callable[[ShardPlan, Mapping[str, Any]], None]  # with a shard and the numbers of its commit record
    retried: Callable[[str], None] = lambda _reason: None  # when a shard is requeued
    replicas: Callable[[int], None] = lambda _count: None  # when the number of ready replicas changes
    message: Callable[[str], None] = lambda _sentence: None  # about a replica


@dataclass(eq=False)
class _Replica:
    """The loop's state of a replica; `incarnation` counts the deaths."""

    worker: Worker
    incarnation: int = 0
    is_ready: bool = False
    is_removed: bool = False


@dataclass(eq=False)
class _Task:
    """A shard that was dispatched to one incarnation of a replica."""

    replica: _Replica
    incarnation: int
    plan: SetPlan
    shard: ShardPlan
    halvings: int


Work = Sequence[tuple[SetPlan, ShardPlan]]
Tokens = Mapping[str, Sequence[TokenIds]]


def run_shards(workers: Sequence[Worker], work: Work, tokens: Tokens, callbacks: Callbacks) -> None:
    """Dispatch each shard to a replica, at most `IN_FLIGHT` shards per replica, until all shards are committed.

    A replica gets shards when it is ready. When a replica dies, the loop puts its shards at the head of the queue and
    restarts it. A replica that has no restart left is removed.

    Raises:
        CaptureError: a shard failed `MAX_ATTEMPTS` times, or all replicas were removed; names the shard.
    """
    _Loop(workers, work, tokens, callbacks).run()


class _Loop:
    """The state of the loop: replicas, their free slots, and the queue of shards. One thread runs all methods."""

    def __init__(self, workers: Sequence[Worker], work: Work, tokens: Tokens, callbacks: Callbacks) -> None:
        self.tokens, self.callbacks = tokens, callbacks
        self.replicas = [_Replica(worker) for worker in workers]
        self.free_slots: deque[_Replica] = deque()
        self.queue = deque(work)
        self.in_flight = 0
        self.failures: Counter[str] = Counter()
        self.halvings = 0  # applies to every batch: a batch size that ran out of memory once would do so again
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()  # the threads of the futures put events

    def run(self) -> None:
        for replica in reversed(self.replicas):  # the replica that becomes ready last gets the next shard
            self._when_ready(replica, replica.worker.ready)
        while not self.events.empty():
            self.events.get()()
        while self.queue or self.in_flight:
            while self.queue and self.free_slots:
                self._dispatch(self.free_slots.popleft(), *self.queue.popleft())
            self.events.get()()

    def _dispatch(self, replica: _Replica, plan: SetPlan, shard: ShardPlan) -> None:
        task = _Task(replica, replica.incarnation, plan, shard, self.halvings)
        self.in_flight += 1
        tokens = self.tokens[shard.prompt_set][shard.start : shard.stop]
        # Without its other shards the plan is small to send; the replica needs only this shard's batches.
        future = replica.worker.capture(replace(plan, shards=()), shard, tokens, self.halvings)
        future.add_done_callback(lambda done: self.events.put(partial(self._on_finished, task, done)))

    def _on_finished(self, task: _Task, future: "Future[Mapping[str, Any]]") -> None:
        error, is_current = future.exception(), task.incarnation == task.replica.incarnation
        if isinstance(error, ReplicaDiedError):
            self.queue.appendleft((task.plan, task.shard))
            self.callbacks.retried(error.reason)
            if is_current:  # the first event of this death
                self._on_death(task.replica, error)
            if error.was_executing:
                self._count_failure(task, error)
        elif error is not None:
            raise error  # an error of the code, which a retry would repeat
        else:
            self.callbacks.committed(task.shard, future.result())
            if is_current:
                self.free_slots.append(task.replica)
        self.in_flight -= 1

    def _on_death(self, replica: _Replica, error: ReplicaDiedError) -> None:
        """Remove the free slots of a dead replica and restart it."""
        replica.incarnation, replica.is_ready = replica.incarnation + 1, False
        self.free_slots = deque(other for other in self.free_slots if other is not replica)
        self._restart(replica, error.reason, error)

    def _count_failure(self, task: _Task, error: ReplicaDiedError) -> None:
        """Halve the batches after the first out-of-memory error of a size, else count a failure of the shard."""
        if error.reason == OUT_OF_MEMORY and task.halvings < self.halvings:
            return  # the shard's next attempt has smaller batches already
        if error.reason == OUT_OF_MEMORY and 2**self.halvings < max(map(len, task.shard.batches)):
            self.halvings += 1
        else:
            self.failures[task.shard.name] += 1
        if self.failures[task.shard.name] >= MAX_ATTEMPTS:
            raise _capture_error(task.shard, f"failed {MAX_ATTEMPTS} times", error)

    def _restart(self, replica: _Replica, reason: str, error: BaseException) -> None:
        ready = replica.worker.restart(reason)
        if ready is None:
            self._remove(replica, error)
            return
        self._report_replicas()
        self.callbacks.message(f"a replica died and restarts as soon as resources are free: {error}")
        self._when_ready(replica, ready)

    def _when_ready(self, replica: _Replica, ready: "Future[Any]") -> None:
        ready.add_done_callback(lambda future: self.events.put(partial(self._on_ready, replica, future)))

    def _on_ready(self, replica: _Replica, ready: "Future[Any]") -> None:
        error = ready.exception()
        if isinstance(error, ReplicaDiedError):
            self._restart(replica, DIED, error)
        elif error is not None:  # a restart would repeat it
            self._remove(replica, error)
        else:
            replica.is_ready = True
            self.free_slots.appendleft(replica)  # an idle replica comes before slots that would only queue a shard
            self.free_slots.extend([replica] * (IN_FLIGHT - 1))
            self._report_replicas()

    def _remove(self, replica: _Replica, error: BaseException) -> None:
        replica.is_removed = True
        replica.worker.kill()
        self._report_replicas()
        self.callbacks.message(f"a replica was removed: {error}")
        if all(other.is_removed for other in self.replicas):
            raise _capture_error(self.queue[0][1], "has no replica left to run on", error)

    def _report_replicas(self) -> None:
        self.callbacks.replicas(sum(replica.is_ready for replica in self.replicas))


def _capture_error(shard: ShardPlan, problem: str, error: BaseException) -> CaptureError:
    return CaptureError(
        f"shard {shard.name} {problem}; last error: {error}; committed shards are kept: run the survey again to resume"
    )
