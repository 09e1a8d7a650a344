"""Simulated replicas: each is a thread that runs its shards in order and dies at the shards that a test names.

No result depends on how fast the threads run: a replica dies and fails its shards in one step, and tests hold threads
back with events.
"""

import threading
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from theodolite_jobs.capture.plan import SetLayout, ShardPlan, ShardTask
from theodolite_jobs.cluster.scheduling import DIED, OUT_OF_MEMORY, Dispatched, ReplicaDiedError

NUMBERS = {"prompts": 1}
SECONDS = 60  # a test that hangs ends before CI does

_Queue = SimpleQueue[tuple[ShardPlan, "Future[Mapping[str, Any]]"]]


def task_of(shard: ShardPlan) -> ShardTask:
    """Return the task of a shard whose prompts have one token each."""
    return ShardTask(SetLayout((-1,), 0), shard, [(1,)] * (shard.stop - shard.start))


def tasks_of(count: int, prompt_set: str = "set") -> list[ShardTask]:
    """Return the tasks of shards of one prompt each, whose batches claim 16 prompts."""
    return [task_of(ShardPlan(prompt_set, index, index, index + 1, ((index,) * 16,))) for index in range(count)]


class SimulatedReplica:
    """Run shards; a shard that `deaths` names kills the replica.

    Args:
        deaths: index of a shard → how often it kills the replica.
        restarts: maximum number of restarts.
        reason: why the replica dies.
        error: an error that every shard raises.
        poison: samples that kill the replica.
        failures: index of a shard → the errors of its first attempts, which the replica survives.

    Attributes:
        may_run: shards wait for this event.
        may_restart: restarts wait for this event.
    """

    def __init__(
        self,
        deaths: Mapping[int, int] | None = None,
        restarts: int = 4,
        reason: str = DIED,
        error: Exception | None = None,
        failures: Mapping[int, Sequence[Exception]] | None = None,
        poison: Collection[int] = (),
    ) -> None:
        self.poison = frozenset(poison)
        self.failures = {index: list(errors) for index, errors in (failures or {}).items()}
        self.deaths, self.restarts = Counter(deaths or {}), restarts
        self.reason, self.error = reason, error
        self.may_run, self.may_restart = threading.Event(), threading.Event()
        self.may_run.set()
        self.may_restart.set()
        self.lock = threading.Lock()
        self.done: list[int] = []
        self.probes = 0
        self.quarantined: dict[int, dict[int, str]] = {}
        self.halvings: dict[int, int] = {}
        self.incarnations, self.most_at_once = 1, 0
        self.has_resources, self.is_killed = True, False
        self.ready: Future[Any] = Future()
        self.ready.set_result(None)
        self._start()

    def _start(self) -> None:
        with self.lock:
            self.queue: _Queue = SimpleQueue()
            self.waiting, self.dead = 0, False
        threading.Thread(target=self._run, args=(self.queue,), daemon=True).start()

    def capture(self, task: ShardTask) -> Dispatched:
        done = self._put(task)
        return Dispatched(captured=done, committed=done)

    def _put(self, task: ShardTask) -> "Future[Mapping[str, Any]]":
        shard = task.shard
        assert len(task.tokens) == shard.stop - shard.start
        future: Future[Mapping[str, Any]] = Future()
        self.halvings[shard.index] = task.halvings
        self.quarantined[shard.index] = dict(shard.quarantined)
        with self.lock:
            self.waiting += 1
            self.most_at_once = max(self.most_at_once, self.waiting)
            if self.dead:
                future.set_exception(ReplicaDiedError(self.reason, "it is dead", was_executing=False))
            else:
                self.queue.put((shard, future))
        return future

    def probe(self, task: ShardTask) -> "Future[Mapping[str, Any]]":
        self.probes += 1
        return self._put(task)

    def restart(self, reason: str) -> "Future[Any] | None":
        if self.restarts == 0:
            return None
        self.restarts -= reason != OUT_OF_MEMORY
        ready: Future[Any] = Future()
        threading.Thread(target=self._finish_restart, args=(ready,), daemon=True).start()
        return ready

    def kill(self) -> None:
        self.is_killed = True

    def _finish_restart(self, ready: "Future[Any]") -> None:
        self.may_restart.wait(SECONDS)
        if not self.has_resources:
            ready.set_exception(ReplicaDiedError(DIED, "no resources"))
            return
        self.incarnations += 1
        self._start()
        ready.set_result(None)

    def _run(self, queue: _Queue) -> None:
        while True:
            shard, future = queue.get()
            self.may_run.wait(SECONDS)
            with self.lock:
                self.waiting -= 1
                poison = [sample for batch in shard.batches for sample in batch if sample in self.poison]
                if self.deaths[shard.index] > 0 or poison:
                    self.deaths[shard.index] -= 1
                    self._die(future, queue)
                    return
            if self.error is not None:
                future.set_exception(self.error)
            elif self.failures.get(shard.index):
                future.set_exception(self.failures[shard.index].pop(0))
            else:
                self.done.append(shard.index)
                future.set_result(NUMBERS)

    def _die(self, executing: "Future[Mapping[str, Any]]", queue: _Queue) -> None:
        """Fail the executing shard before the queued shards, as the loop would see it of an actor."""
        self.dead = True
        executing.set_exception(ReplicaDiedError(self.reason, "killed"))
        while not queue.empty():
            queue.get()[1].set_exception(ReplicaDiedError(self.reason, "killed beside it", was_executing=False))
