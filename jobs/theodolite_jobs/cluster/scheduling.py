"""The scheduling loop: dispatch shards to replicas until all shards are committed. This module does not import Ray.

The loop blocks only on its event queue. A replica that loads, restarts or dies does not delay the other replicas.
"""

from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from queue import SimpleQueue
from threading import Timer
from typing import Any, Protocol

from theodolite.errors import CaptureError, RunDamagedError, StoreError
from theodolite_jobs.capture.plan import ShardPlan, ShardTask
from theodolite_jobs.cluster.poison import MAX_POISON, PoisonSearch, without
from theodolite_jobs.full_disk import is_full

IN_FLIGHT = 2
"""Slots of a replica: it captures one shard and queues one, so that it does not idle between shards. Shards that are
captured and not yet committed hold no slot."""

PAUSE_SECONDS = 10.0
"""Time after which replicas try again to write to a store that is full, or that refused a shard."""

MAX_OUTAGES = 6
"""Successive pauses, each twice as long as the one before up to eight times PAUSE_SECONDS, that the loop waits for a
store that accepts no shard: five minutes, besides the attempts of the store's client."""

RESTART_SECONDS = 2.0
"""The pause before the second restart of a replica without a commit in between; each later one is twice as long."""

MAX_ATTEMPTS = 3
"""Failures of one shard that end the run, or start the search for a prompt that kills the replica."""

POISON = "kills the process that captures it"
"""The reason of the quarantine of such a prompt."""

DIED, OUT_OF_MEMORY, STORE = REASONS = ("died", "out_of_memory", "store")
"""Reasons to requeue a shard. After `out_of_memory` the loop halves the batches; after `store` the replica lives on."""


class ReplicaDiedError(Exception):
    """A replica died and lost its shards; another replica, or the same replica after a restart, can run them.

    The reason is one of REASONS. `was_executing` is True if this shard was executing when the replica died. Queued
    shards are not counted as failed.
    """

    def __init__(self, reason: str, detail: str, *, was_executing: bool = True) -> None:
        super().__init__(detail)
        self.reason, self.was_executing = reason, was_executing


@dataclass(frozen=True)
class Dispatched:
    """A shard that was sent to a replica; `committed` fails with ReplicaDiedError, also if `captured` fails."""

    captured: "Future[Any]"  # the replica can take another shard, while it writes this one
    committed: "Future[Any]"  # the numbers of the shard's commit record


class Worker(Protocol):
    """The interface of a replica to the loop."""

    ready: "Future[Any]"
    """Completes when the replica accepts shards, or fails. The replica may still wait for resources."""

    def capture(self, task: ShardTask) -> Dispatched:
        """Capture and commit a shard."""

    def probe(self, task: ShardTask) -> "Future[Mapping[str, Any] | None]":
        """Capture a part of a shard without writing it, to see whether it kills the replica."""

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
    refused: Callable[[RunDamagedError], None] | None = None  # when the store has other bits of a shard; None ends all


@dataclass(eq=False)
class _Replica:
    """The loop's state of a replica; `incarnation` counts all deaths, `n_deaths` the unexpected ones since a commit."""

    worker: Worker
    incarnation: int = 0
    n_deaths: int = 0
    is_ready: bool = False
    is_removed: bool = False


@dataclass(eq=False)
class _Attempt:
    """A shard that was dispatched to one incarnation of a replica, or a part of it that the search probes."""

    replica: _Replica
    incarnation: int
    task: ShardTask
    search: PoisonSearch | None
    holds_slot: bool = True


def run_shards(workers: Sequence[Worker], tasks: Iterable[ShardTask], callbacks: Callbacks) -> None:
    """Dispatch each shard to a replica, at most `IN_FLIGHT` shards per replica, until all shards are committed.

    A replica gets shards when it is ready. When a replica dies, the loop puts its shards at the head of the queue and
    restarts it. A replica that has no restart left is removed.

    Raises:
        CaptureError: a shard failed `MAX_ATTEMPTS` times, also without the prompts that killed its replica, the store
            accepted no shard during `MAX_OUTAGES` pauses, or all replicas were removed; names the shard.
    """
    _Loop(workers, tasks, callbacks).run()


class _Loop:
    """The state of the loop: replicas, their free slots, and the queue of shards. One thread runs all methods."""

    def __init__(self, workers: Sequence[Worker], tasks: Iterable[ShardTask], callbacks: Callbacks) -> None:
        self.callbacks = callbacks
        self.replicas = [_Replica(worker) for worker in workers]
        self.free_slots: deque[_Replica] = deque()
        self.queue: deque[tuple[ShardTask, PoisonSearch | None]] = deque((task, None) for task in tasks)
        self.n_searches: Counter[str] = Counter()  # by shard
        self.in_flight = 0
        self.failures: Counter[str] = Counter()
        self.halvings = 0  # applies to every batch: a batch size that ran out of memory once would do so again
        self.is_full, self.n_refusals = False, 0  # since the last commit: no space, refusals that led to a pause
        self.is_paused = False  # nothing is dispatched for a while
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()  # the threads of the futures put events

    def run(self) -> None:
        for replica in reversed(self.replicas):  # the replica that becomes ready last gets the next shard
            self._when_ready(replica, replica.worker.ready)
        while not self.events.empty():
            self.events.get()()
        while self.queue or self.in_flight:
            while self.queue and self.free_slots and not self.is_paused:
                self._dispatch(self.free_slots.popleft(), *self.queue.popleft())
            self.events.get()()

    def _dispatch(self, replica: _Replica, task: ShardTask, search: PoisonSearch | None) -> None:
        task = replace(task, halvings=self.halvings)
        attempt = _Attempt(replica, replica.incarnation, task, search)
        self.in_flight += 1
        if search is None:
            sent = replica.worker.capture(task)
        else:
            probe = replica.worker.probe(task)
            sent = Dispatched(captured=probe, committed=probe)
        sent.captured.add_done_callback(lambda done: self.events.put(partial(self._on_captured, attempt, done)))
        sent.committed.add_done_callback(lambda done: self.events.put(partial(self._on_finished, attempt, done)))

    def _on_captured(self, attempt: _Attempt, future: "Future[Any]") -> None:
        if future.exception() is None:  # else `_on_finished` gets the error too
            self._free_slot(attempt)

    def _on_finished(self, attempt: _Attempt, future: "Future[Any]") -> None:
        self.in_flight -= 1
        error = future.exception()
        if isinstance(error, ReplicaDiedError):
            self._on_lost(attempt, error)
            return
        if isinstance(error, RunDamagedError):
            if self.callbacks.refused is None:
                raise error
            self.callbacks.refused(error)
        elif isinstance(error, StoreError):
            self._on_store_error(attempt, error)
            return
        elif error is not None:
            raise error  # an error of the code, which a retry would repeat
        elif attempt.search is not None:
            self._narrow(attempt.search, died=False)
        else:
            self.is_full, self.n_refusals, self.is_paused, attempt.replica.n_deaths = False, 0, False, 0
            self.callbacks.committed(attempt.task.shard, future.result())
        self._free_slot(attempt)

    def _free_slot(self, attempt: _Attempt) -> None:
        """Free the slot of an attempt once, unless its replica has died since."""
        if attempt.holds_slot and attempt.incarnation == attempt.replica.incarnation:
            self.free_slots.append(attempt.replica)
        attempt.holds_slot = False

    def _on_lost(self, attempt: _Attempt, error: ReplicaDiedError) -> None:
        """Requeue a shard whose replica died, or narrow the search that it was a probe of."""
        search = attempt.search if error.was_executing and error.reason == DIED else None
        if search is not None:
            self._narrow(search, died=True)
        else:
            self.queue.appendleft((attempt.task, attempt.search))
        self.callbacks.retried(error.reason)
        if attempt.incarnation == attempt.replica.incarnation:  # the first event of this death
            attempt.replica.n_deaths += error.reason == DIED and attempt.search is None
            self._on_death(attempt.replica, error, is_faulty=search is not None and search.is_replica)
        if error.was_executing and search is None:
            self._count_failure(attempt, error.reason, error)

    def _on_death(self, replica: _Replica, error: ReplicaDiedError, *, is_faulty: bool) -> None:
        """Remove the free slots of a dead replica, and restart it unless it has a fault itself."""
        replica.incarnation, replica.is_ready = replica.incarnation + 1, False
        self.free_slots = deque(other for other in self.free_slots if other is not replica)
        if is_faulty:
            self._remove(replica, error)
        else:
            self._restart(replica, error.reason, error)

    def _on_store_error(self, attempt: _Attempt, error: StoreError) -> None:
        """Requeue a shard that could not be written; if no shard can be, wait until the store may have recovered."""
        self.queue.append((attempt.task, attempt.search))  # last, since the store may refuse this shard alone
        self.callbacks.retried(STORE)
        self._free_slot(attempt)
        if is_full(error):
            if not self.is_full:
                self.callbacks.message(f"the store is full, and the capture goes on when there is space: {error}")
            self.is_full = True
            self._pause(PAUSE_SECONDS)
            return
        if self.is_paused:
            return
        if self.n_refusals > MAX_OUTAGES:
            problem = f"and all others were refused by the store during {MAX_OUTAGES} pauses"
            raise _capture_error(attempt.task.shard, problem, error)
        if self.n_refusals:  # one refusal between two commits stops no other shard
            self._pause(PAUSE_SECONDS * 2 ** min(self.n_refusals - 1, 3))
        else:
            self.callbacks.message(f"the store refused shard {attempt.task.shard.name}; trying again: {error}")
        self.n_refusals += 1

    def _pause(self, seconds: float) -> None:
        """Dispatch nothing for a while."""
        if not self.is_paused:
            self._later(seconds, self._go_on)
        self.is_paused = True

    def _go_on(self) -> None:
        self.is_paused = False

    def _count_failure(self, attempt: _Attempt, reason: str, error: Exception) -> None:
        """Halve the batches after the first out-of-memory error of a size, else count a failure of the shard."""
        if reason == OUT_OF_MEMORY and attempt.task.halvings < self.halvings:
            return  # the shard's next attempt has smaller batches already
        shard = attempt.task.shard
        if reason == OUT_OF_MEMORY and 2**self.halvings < max(map(len, shard.batches), default=1):
            self.halvings += 1
            return
        self.failures[shard.name] += 1
        if self.failures[shard.name] < MAX_ATTEMPTS:
            return
        if reason != DIED or self.n_searches[shard.name] == MAX_POISON or not shard.batches:
            raise _capture_error(shard, f"failed {MAX_ATTEMPTS} times", error)
        self._search(attempt.task)

    def _search(self, task: ShardTask) -> None:
        """Replace a shard that killed its replica, first in the queue, by a search for the prompt that did it."""
        self.queue.popleft()
        self.n_searches[task.shard.name] += 1
        self.failures[task.shard.name] = 0
        self.callbacks.message(
            f"shard {task.shard.name} killed its replica {MAX_ATTEMPTS} times; searching for the prompt that does it"
        )
        search = PoisonSearch(task)
        self.queue.appendleft((search.probe(), search))

    def _narrow(self, search: PoisonSearch, *, died: bool) -> None:
        """Queue the next probe of a search, or at its end the shard, without the prompt that was found."""
        sample, shard = search.narrow(died=died), search.task.shard
        if sample is not None:
            self.callbacks.message(f"prompt {sample} of {shard.prompt_set} kills its replica and is quarantined")
            self.queue.appendleft((without(search.task, sample, POISON), None))
        elif search.suspects:
            self.queue.appendleft((search.probe(), search))
        else:
            if search.is_replica:
                message = f"a replica died with each of {MAX_POISON + 1} prompts alone, so no prompt is the cause"
            else:
                message = f"no prompt of shard {shard.name} kills its replica alone; trying it again"
            self.callbacks.message(message)
            self.queue.appendleft((search.task, None))

    def _restart(self, replica: _Replica, reason: str, error: BaseException) -> None:
        """Restart a dead replica: at once after its first death, after a pause for each later one."""
        self._report_replicas()
        seconds = restart_pause(replica.n_deaths)
        if seconds:
            replica.worker.kill()  # frees its resources during the pause
            self._later(seconds, partial(self._restart_now, replica, reason, error))
        else:
            self._restart_now(replica, reason, error)

    def _restart_now(self, replica: _Replica, reason: str, error: BaseException) -> None:
        ready = replica.worker.restart(reason)
        if ready is None:
            self._remove(replica, error)
            return
        self.callbacks.message(f"a replica died and restarts as soon as resources are free: {error}")
        self._when_ready(replica, ready)

    def _later(self, seconds: float, event: Callable[[], None]) -> None:
        timer = Timer(seconds, self.events.put, [event])
        timer.daemon = True
        timer.start()

    def _when_ready(self, replica: _Replica, ready: "Future[Any]") -> None:
        ready.add_done_callback(lambda future: self.events.put(partial(self._on_ready, replica, future)))

    def _on_ready(self, replica: _Replica, ready: "Future[Any]") -> None:
        error = ready.exception()
        if isinstance(error, ReplicaDiedError):
            replica.n_deaths += 1
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
            raise _capture_error(self.queue[0][0].shard, "has no replica left to run on", error)

    def _report_replicas(self) -> None:
        self.callbacks.replicas(sum(replica.is_ready for replica in self.replicas))


def restart_pause(n_deaths: int) -> float:
    """Return the seconds before a replica restarts, by the number of its deaths since its last commit."""
    return RESTART_SECONDS * 2 ** (n_deaths - 2) if n_deaths > 1 else 0.0


def _capture_error(shard: ShardPlan, problem: str, error: BaseException) -> CaptureError:
    return CaptureError(
        f"shard {shard.name} {problem}; last error: {error}; committed shards are kept: run the survey again to resume"
    )
