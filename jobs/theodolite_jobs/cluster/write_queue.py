"""Threads that write captured shards while the device computes the next ones."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

from theodolite_jobs.cluster.budget import Budget

MAX_SHARDS = 8
"""Maximum number of shards of a replica that are being captured or written."""


class Slot:
    """The place of one shard in the queue."""

    def __init__(self) -> None:
        self.n_bytes: int | None = None  # None before `reserve`
        self.write: Callable[[], Any] | None = None


class WriteQueue:
    """Threads that write shards, and the result of each shard, by the number of its call."""

    def __init__(self, threads: int, max_bytes: int) -> None:
        """Start no thread before the first shard.

        Args:
            threads: number of threads.
            max_bytes: maximum number of bytes of the activations of all shards; a single shard may have more.
        """
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="write")
        self._budget = Budget(MAX_SHARDS, max_bytes)
        self._lock = threading.Lock()
        self._results: dict[int, Future[Any]] = {}

    @contextmanager
    def slot(self, call: int) -> Iterator[Slot]:
        """Capture a shard inside the context; at its end, a thread calls the slot's `write`, if it has been set.

        What the context raises is the shard's result too.
        """
        slot = Slot()
        try:
            yield slot
        except BaseException as error:
            self._release(slot)
            self._result(call).set_exception(error)
            raise
        if slot.write is None:
            self._release(slot)
        else:
            self._pool.submit(self._run, call, slot, slot.write)

    def reserve(self, slot: Slot, n_bytes: int) -> None:
        """Wait until a shard of so many bytes may be captured."""
        self._budget.reserve(n_bytes)
        slot.n_bytes = n_bytes

    def result(self, call: int) -> Any:
        """Wait for a shard, which may be captured later; return what its `write` returned, or raise its error."""
        try:
            return self._result(call).result()
        finally:
            with self._lock:
                del self._results[call]

    def _run(self, call: int, slot: Slot, write: Callable[[], Any]) -> None:
        try:
            value = write()
        except BaseException as error:
            self._release(slot)
            self._result(call).set_exception(error)
        else:
            self._release(slot)
            self._result(call).set_result(value)

    def _release(self, slot: Slot) -> None:
        if slot.n_bytes is not None:
            self._budget.release(slot.n_bytes)

    def _result(self, call: int) -> "Future[Any]":
        with self._lock:
            return self._results.setdefault(call, Future())
