"""A replica on Ray: start it, send shards to it, and tell the scheduling loop how it fails."""

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from itertools import count
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from theodolite.errors import (
    CaptureError,
    RankOutOfMemoryError,
    RankOutOfStepError,
    StoreError,
    TheodoliteError,
    first_line,
)
from theodolite_jobs.capture.plan import ShardTask
from theodolite_jobs.cluster.ranks import ranks_of_group
from theodolite_jobs.cluster.replica import REPLICA_ENVIRONMENT, Arithmetic, Assignment, Replica
from theodolite_jobs.cluster.scheduling import DIED, IN_FLIGHT, OUT_OF_MEMORY, Dispatched, ReplicaDiedError
from theodolite_jobs.cluster.session import Resources
from theodolite_jobs.cluster.write_queue import MAX_SHARDS
from theodolite_jobs.stages import Stage

WRITING = "writing"
"""The threads of an actor that wait until shards are written."""

MAX_RESTARTS = 4
"""Maximum number of restarts of a replica since its last commit. Restarts after out-of-memory are not counted."""


class RayWorker:
    """A replica on Ray: one actor, or a group of actors that share a model. It restarts as a whole, on any node.

    Attributes:
        placed: a future that completes when all processes have started.
        ready: a future of the parity certificate, which the replica returns after it loaded the model.
        expected: the arithmetic that the replica must have; None until the first replica is certified.
    """

    def __init__(
        self,
        assignment: Assignment,
        resources: Resources,
        replica_class: type[Replica] = Replica,
    ) -> None:
        """Submit the actors to Ray, which starts them when resources are free."""
        self._class = replica_class
        self._ranks, self._cpus = resources.ranks, resources.cpus / resources.ranks
        self._options = {
            "num_cpus": self._cpus,
            "num_gpus": resources.gpus / resources.ranks,
            "max_restarts": 0,  # the loop restarts replicas
            "max_task_retries": 0,  # a lost call may have succeeded; the loop decides what to retry
            "runtime_env": {"env_vars": {**REPLICA_ENVIRONMENT, "OMP_NUM_THREADS": str(resources.threads)}},
        }
        self._assignment = assignment
        self._restarts, self._is_probing, self._calls = 0, False, count()
        self._placement_group: Any = None
        self.expected: Arithmetic | None = None
        self._start()

    def _start(self) -> None:
        self._killed = threading.Event()
        self.actors = self._actors()
        self.placed = _gather([actor.process_id.remote() for actor in self.actors], "a replica")
        self.certify()

    def certify(self) -> None:
        """Request the parity certificate, or request it again with the current `expected`."""
        calls = [actor.certify.remote(self.expected) for actor in self.actors]
        self.ready = _gather(calls, "a replica", loads=True)

    def loading(self) -> "Future[Stage | None]":
        """Return a future of what the replica counts while it loads the model; None if it counts nothing."""
        future: Future[Stage | None] = self.actors[0].loading.options(concurrency_group=WRITING).remote().future()
        return future

    def capture(self, task: ShardTask) -> Dispatched:
        """Capture and commit a shard; all ranks of a group get the same calls in the same order."""
        self._is_probing = False
        call, name = next(self._calls), f"shard {task.shard.name}"
        captured = self._run("capture", task, call)
        committed: Future[Any] = Future()
        committed.add_done_callback(self._on_committed)
        written = self.actors[0].written.options(concurrency_group=WRITING).remote(call).future()
        killed = self._killed

        def on_written(done: "Future[Any]") -> None:
            error = done.exception()
            if error is None:
                committed.set_result(done.result())
                return
            # The death of the process is counted against the shard that was captured at that time.
            is_own = isinstance(error, ray.exceptions.RayTaskError) and not killed.is_set()
            committed.set_exception(_loop_error(error, name, was_executing=is_own, is_group=False))

        def on_captured(done: "Future[Any]") -> None:
            if (error := done.exception()) is not None:
                committed.set_exception(error)
            else:
                written.add_done_callback(on_written)

        captured.add_done_callback(on_captured)
        return Dispatched(captured, committed)

    def probe(self, task: ShardTask) -> "Future[Mapping[str, Any] | None]":
        """Return a future that completes when a part of a shard is captured; nothing is written."""
        self._is_probing = True
        return self._run("probe", task)

    def _run(self, method: str, task: ShardTask, *numbers: int) -> "Future[Any]":
        # An actor runs its calls in order, so `process_id` returns when the actor comes to the shard.
        started, killed = [actor.process_id.remote().future() for actor in self.actors], self._killed

        def was_executing(rank: int) -> bool:
            return not killed.is_set() and started[rank].done() and started[rank].exception() is None

        calls = [getattr(actor, method).remote(*numbers, task) for actor in self.actors]
        return _gather(calls, f"shard {task.shard.name}", was_executing)

    def restart(self, reason: str) -> "Future[Any] | None":
        """Restart the replica and return the new `ready`, or None after `MAX_RESTARTS` restarts without a commit.

        The replica waits for resources without a time limit, while the other replicas work. Restarts that are expected
        are not counted: after out-of-memory, because the next batches are smaller, and after a probe.
        """
        is_expected = reason == OUT_OF_MEMORY or self._is_probing
        if self._restarts == MAX_RESTARTS and not is_expected:
            return None
        self.kill()
        self._restarts += not is_expected
        self._is_probing = False
        self._start()
        return self.ready

    def kill(self) -> None:
        """Kill all processes, because the remaining ranks of a group would wait for the dead one."""
        self._killed.set()  # calls that fail from now on do not count as failures of their shards
        for actor in self.actors:
            ray.kill(actor)
        if self._placement_group is not None:
            ray.util.remove_placement_group(self._placement_group)

    def _on_committed(self, result: "Future[Any]") -> None:
        if result.exception() is None:
            self._restarts = 0

    def _actors(self) -> list[Any]:
        # All other calls run in order, in a thread of their own.
        groups: Any = {"concurrency_groups": {WRITING: IN_FLIGHT + MAX_SHARDS}}
        actor_class: Any = ray.remote(**groups)(self._class)
        if self._ranks == 1:
            return [actor_class.options(**self._options).remote(self._assignment)]
        bundles = [{"CPU": self._cpus, "GPU": 1.0}] * self._ranks
        # One node for all ranks, because they communicate in every layer.
        self._placement_group = ray.util.placement_group(bundles, strategy="STRICT_PACK")
        placement = {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._placement_group)}
        ranks: Any = ray.remote(ranks_of_group).options(num_cpus=0, num_returns=self._ranks, **placement)
        placed = actor_class.options(**self._options, **placement)
        return [placed.remote(self._assignment, rank) for rank in ranks.remote(self._ranks)]


def _gather(
    calls: Sequence[Any],
    subject: str,
    was_executing: Callable[[int], bool] = lambda _rank: True,
    *,
    loads: bool = False,
) -> "Future[Any]":
    """Return a future of rank 0's result, which completes when all ranks have returned or when one fails.

    There is one call of each rank. Error messages name the `subject`, a replica or a shard. `was_executing` returns
    whether a rank was executing its call when it died. While a replica `loads`, an error of the store is its death, so
    that it starts again after a pause.
    """
    result: Future[Any] = Future()
    futures = [call.future() for call in calls]
    n_pending, lock = [len(futures)], threading.Lock()

    def on_done(rank: int, done: "Future[Any]") -> None:
        error = done.exception()
        with lock:
            n_pending[0] -= 1
            if result.done():
                return
            if error is not None:
                is_group = len(futures) > 1
                found = _loop_error(error, subject, was_executing=was_executing(rank), is_group=is_group)
                if loads and isinstance(found, StoreError):
                    found = ReplicaDiedError(DIED, str(found), was_executing=False)
                result.set_exception(found)
            elif n_pending[0] == 0:
                result.set_result(futures[0].result())

    for rank, future in enumerate(futures):
        future.add_done_callback(partial(on_done, rank))
    return result


def _is_of_device(error: BaseException) -> bool:
    """Return whether an error comes from a GPU or from the connection between GPUs."""
    if isinstance(error, NotImplementedError):  # a RuntimeError that names the backend without the operation
        return False
    return isinstance(error, RuntimeError) and re.search("CUDA|CUBLAS|CUDNN|NCCL|HIP", str(error)) is not None


def _is_device_memory(error: BaseException) -> bool:
    """Return whether a GPU, or a library on it, had no memory left outside of the forward passes that run in halves."""
    return _is_of_device(error) and re.search("out of memory|ALLOC_FAILED", str(error)) is not None


def _loop_error(error: BaseException, subject: str, *, was_executing: bool, is_group: bool) -> BaseException:
    """Return ReplicaDiedError for an error after which the loop can retry, else the replica's own TheodoliteError."""
    if isinstance(error, ray.exceptions.RayTaskError):
        cause = error.cause
        if isinstance(cause, RankOutOfMemoryError):
            return ReplicaDiedError(OUT_OF_MEMORY, str(cause))
        if isinstance(cause, RankOutOfStepError):
            return ReplicaDiedError(DIED, str(cause), was_executing=False)
        if _is_device_memory(cause):
            return ReplicaDiedError(OUT_OF_MEMORY, first_line(cause), was_executing=was_executing)
        # When one rank of a group dies, the other ranks fail in the collective call that waits for it. After an error
        # of a GPU, every later call of its process fails too.
        if (is_group or _is_of_device(cause)) and not isinstance(cause, TheodoliteError):
            return ReplicaDiedError(DIED, first_line(cause), was_executing=was_executing)
        if isinstance(cause, TheodoliteError):
            return type(cause)(str(cause))
        return CaptureError(f"{subject} failed: {type(cause).__name__}: {first_line(cause)}")
    if isinstance(error, ray.exceptions.RayError):
        is_memory = isinstance(error, ray.exceptions.OutOfMemoryError)
        return ReplicaDiedError(OUT_OF_MEMORY if is_memory else DIED, first_line(error), was_executing=was_executing)
    return error
