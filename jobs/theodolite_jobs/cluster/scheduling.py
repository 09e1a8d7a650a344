"""The scheduling loop: feeding shards to replicas until all are committed. It knows no Ray.

It waits for nothing but answers: a replica that dies, loads or restarts keeps no other one from its work.
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
"""Shards given to a replica at a time: one computes, one waits, so that it never idles between two."""

MAX_ATTEMPTS = 3
"""Tries of a shard before the run gives up; a shard that kills its replica must not do so without end."""

DIED, OUT_OF_MEMORY = REASONS = ("died", "out_of_memory")
"""Why a shard goes back to the queue; where memory ran out, halved batches may fit."""


class ReplicaDiedError(Exception):
    """A replica is gone, with the shards it had; another one, or the same begun anew, may do them.

    Args:
        reason: one of REASONS.
        detail: what is known.
        had_begun: whether it was busy with the shard whose answer this is, which may have been its death; others only
            waited in its line.
    """

    def __init__(self, reason: str, detail: str, *, had_begun: bool = True) -> None:
        super().__init__(detail)
        self.reason, self.had_begun = reason, had_begun


class Worker(Protocol):
    """A replica, as the loop sees it.

    Attributes:
        ready: what says that it can be given shards, or never will be; it may still look for a place.
    """

    ready: "Future[Any]"

    def capture(
        self, plan: SetPlan, shard: ShardPlan, tokens: Sequence[TokenIds], halvings: int
    ) -> "Future[Mapping[str, Any]]":
        """Begin a shard, and return what will be the numbers of its commit, or ReplicaDiedError."""

    def restart(self, reason: str) -> "Future[Any] | None":
        """Begin anew after it died; return the new `ready`, and None where it is not tried again."""

    def kill(self) -> None:
        """End all its processes, so that others may have their place."""


@dataclass(frozen=True)
class Watch:
    """Who is told what happens.

    Attributes:
        committed: a shard is committed, with the numbers of its commit record.
        retried: a shard goes back to the queue, and why.
        replicas: how many replicas there are now.
        tell: what happened to a replica, in a sentence.
    """

    committed: Callable[[ShardPlan, Mapping[str, Any]], None]
    retried: Callable[[str], None] = lambda _reason: None
    replicas: Callable[[int], None] = lambda _count: None
    tell: Callable[[str], None] = lambda _sentence: None


@dataclass(eq=False)
class _Seat:
    """A replica's place in the loop."""

    worker: Worker
    life: int = 0
    works: bool = False
    is_gone: bool = False


@dataclass(eq=False)
class _Task:
    """A shard that a replica has, in one of the replica's lives."""

    seat: _Seat
    life: int
    plan: SetPlan
    shard: ShardPlan
    halvings: int


def run_shards(
    workers: Sequence[Worker],
    work: Sequence[tuple[SetPlan, ShardPlan]],
    tokens: Mapping[str, Sequence[TokenIds]],
    watch: Watch,
) -> None:
    """Give every shard to some replica, at most `IN_FLIGHT` at a time each, until all are committed.

    A replica joins when it is ready. The shards of one that died go back to the head of the queue, and it gets others
    once it is back; one that does not come back is left out while others remain. A shard that was the death of
    `MAX_ATTEMPTS` ends the run.

    Raises:
        CaptureError: a shard failed `MAX_ATTEMPTS` times, or no replica is left; names the shard.
    """
    _Loop(workers, work, tokens, watch).run()


class _Loop:
    """Who has which shard, and what is done when something is heard; all of it in one thread."""

    def __init__(
        self,
        workers: Sequence[Worker],
        work: Sequence[tuple[SetPlan, ShardPlan]],
        tokens: Mapping[str, Sequence[TokenIds]],
        watch: Watch,
    ) -> None:
        self.tokens, self.watch = tokens, watch
        self.seats = [_Seat(worker) for worker in workers]
        self.free: deque[_Seat] = deque()
        self.waiting = deque(work)
        self.in_flight = 0
        self.failures: Counter[str] = Counter()
        self.halvings = 0  # of every batch that is given out: what did not fit once would not fit again
        self.events: SimpleQueue[Callable[[], None]] = SimpleQueue()  # put by whatever thread hears of something

    def run(self) -> None:
        for seat in reversed(self.seats):  # the last that joins is served first
            self._await(seat, seat.worker.ready)
        while not self.events.empty():
            self.events.get()()
        while self.waiting or self.in_flight:
            while self.waiting and self.free:
                self._give(self.free.popleft(), *self.waiting.popleft())
            self.events.get()()

    def _give(self, seat: _Seat, plan: SetPlan, shard: ShardPlan) -> None:
        task = _Task(seat, seat.life, plan, shard, self.halvings)
        self.in_flight += 1
        of_shard = self.tokens[shard.prompt_set][shard.start : shard.stop]
        # The plan of the whole set would travel with every shard; this one's batches are enough.
        answer = seat.worker.capture(replace(plan, shards=()), shard, of_shard, self.halvings)
        answer.add_done_callback(lambda future: self.events.put(partial(self._finished, task, future)))

    def _finished(self, task: _Task, answer: "Future[Mapping[str, Any]]") -> None:
        error, is_current = answer.exception(), task.life == task.seat.life
        if isinstance(error, ReplicaDiedError):
            self.waiting.appendleft((task.plan, task.shard))
            self.watch.retried(error.reason)
            if is_current:  # the first that is heard of this death
                self._mourn(task.seat, error)
            if error.had_begun:
                self._blame(task, error)
        elif error is not None:
            raise error  # the code raised: it would raise again
        else:
            self.watch.committed(task.shard, answer.result())
            if is_current:
                self.free.append(task.seat)
        self.in_flight -= 1

    def _mourn(self, seat: _Seat, error: ReplicaDiedError) -> None:
        """Give a replica nothing more, and begin it anew."""
        seat.life, seat.works = seat.life + 1, False
        self.free = deque(other for other in self.free if other is not seat)
        self._restart(seat, error.reason, error)

    def _blame(self, task: _Task, error: ReplicaDiedError) -> None:
        if error.reason == OUT_OF_MEMORY and task.halvings < self.halvings:
            return  # its batches were larger than those that it will get
        if error.reason == OUT_OF_MEMORY and 2**self.halvings < max(map(len, task.shard.batches)):
            self.halvings += 1
        else:
            self.failures[task.shard.name] += 1
        if self.failures[task.shard.name] >= MAX_ATTEMPTS:
            raise _given_up(task.shard, f"failed {MAX_ATTEMPTS} times", error)

    def _restart(self, seat: _Seat, reason: str, error: BaseException) -> None:
        back = seat.worker.restart(reason)
        if back is None:
            self._leave_out(seat, error)
            return
        self._tell_replicas()
        self.watch.tell(f"a replica died and begins anew, as soon as it finds a place: {error}")
        self._await(seat, back)

    def _await(self, seat: _Seat, ready: "Future[Any]") -> None:
        ready.add_done_callback(lambda future: self.events.put(partial(self._joined, seat, future)))

    def _joined(self, seat: _Seat, ready: "Future[Any]") -> None:
        error = ready.exception()
        if isinstance(error, ReplicaDiedError):
            self._restart(seat, DIED, error)
            return
        if error is not None:  # it would come again
            self._leave_out(seat, error)
            return
        seat.works = True
        self.free.appendleft(seat)  # one that has nothing goes before those that would only put it in line
        self.free.extend([seat] * (IN_FLIGHT - 1))
        self._tell_replicas()

    def _leave_out(self, seat: _Seat, error: BaseException) -> None:
        seat.is_gone = True
        seat.worker.kill()
        self._tell_replicas()
        self.watch.tell(f"a replica is left out: {error}")
        if all(other.is_gone for other in self.seats):
            raise _given_up(self.waiting[0][1], "has no replica left to run on", error)

    def _tell_replicas(self) -> None:
        self.watch.replicas(sum(seat.works for seat in self.seats))


def _given_up(shard: ShardPlan, what: str, error: BaseException) -> CaptureError:
    return CaptureError(
        f"shard {shard.name} {what}, last because: {error}; what was committed stays, run the survey again to go on"
    )
