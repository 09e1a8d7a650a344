"""Run one function over many arguments, on this process's threads or on a Dask cluster."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, TypeVar

from dask.system import CPU_COUNT
from threadpoolctl import threadpool_limits

from theodolite.errors import StoreError

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the number of finished tasks, and the number of tasks."""


@dataclass(frozen=True)
class _Executor:
    """The functions that run tasks on threads or on a cluster.

    Attributes:
        submit: takes a function and its arguments; returns a future.
        n_threads: returns the number of tasks that run at the same time.
        share: takes a value that all tasks use; returns the argument to pass for it.
        discard: takes a future whose result is no longer needed.
    """

    submit: Callable[..., Any]
    n_threads: Callable[[], int]
    share: Callable[[Any], Any]
    discard: Callable[[Any], object]


_EXECUTOR: ContextVar[_Executor | None] = ContextVar("executor", default=None)


def run_tasks(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], done: Callable[[int], None], rounds: int = 2
) -> Iterator[T]:
    """Yield the results of the calls in order; while one call is slow, the threads run later calls.

    At most `rounds` calls per thread are submitted and not yet yielded, which bounds the memory.

    Args:
        function: what to call; it must be importable where the tasks run.
        arguments: the positional arguments of each call. Pass what all calls share through `shared`.
        done: called with the number of finished calls, which may finish in any order.
        rounds: maximum number of calls per thread that are not yet yielded.

    Raises:
        Exception: the first error of any call, immediately; calls that have not started are cancelled.
    """
    with ExitStack() as stack:
        executor = _EXECUTOR.get() or stack.enter_context(_threads())
        limit = rounds * executor.n_threads()
        remaining = enumerate(arguments)
        submitted: deque[tuple[int, Any]] = deque()
        finished: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # the thread that finishes a call puts it
        known: set[int] = set()
        done(0)
        try:
            while True:
                for index, call_arguments in islice(remaining, limit - len(submitted)):
                    future = executor.submit(function, *call_arguments)
                    submitted.append((index, future))
                    future.add_done_callback(partial(_put, finished, index))
                if not submitted:
                    return
                while submitted[0][0] not in known:
                    index, future = finished.get()
                    if error := future.exception():
                        raise error
                    known.add(index)
                    done(len(known))
                yield submitted.popleft()[1].result()
        finally:
            while submitted:
                executor.discard(submitted.pop()[1])


def shared(value: T) -> T:
    """Return the argument to pass for a value that all tasks use: the value itself, or its future on a cluster."""
    executor = _EXECUTOR.get()
    return value if executor is None else executor.share(value)


@contextmanager
def scheduler(address: str | None, threads: int | None = None) -> Iterator[None]:
    """Run tasks on a `dask.distributed` scheduler, or on this process's threads.

    Args:
        address: the scheduler's address; None is this process.
        threads: threads of this process; None is the executor of a surrounding context, or one thread per core.

    Raises:
        StoreError: the scheduler does not respond.
    """
    if address is None and threads is None and _EXECUTOR.get() is not None:
        yield
        return
    with _threads(threads) if address is None else _cluster(address) as executor:
        token = _EXECUTOR.set(executor)
        try:
            yield
        finally:
            _EXECUTOR.reset(token)


@contextmanager
def _threads(count: int | None = None) -> Iterator[_Executor]:
    """Run tasks on threads that each use one core of the linear algebra libraries.

    Two decompositions on one core each are three times as fast as two that share two cores.
    """
    n_threads = count or CPU_COUNT
    pool = ThreadPoolExecutor(n_threads, "task")
    try:
        with threadpool_limits(limits=1):
            yield _Executor(pool.submit, lambda: n_threads, _unchanged, Future.cancel)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an error, running calls finish in the background


@contextmanager
def _cluster(address: str) -> Iterator[_Executor]:
    from distributed import Client

    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot connect to the Dask scheduler at {address}: {error}") from error

    def n_threads() -> int:
        threads: dict[str, int] = client.nthreads()
        return max(1, sum(threads.values()))

    def share(value: Any) -> Any:
        client.wait_for_workers(1)
        # Broadcast to every worker, because Dask cannot recompute a scattered value whose only worker is lost.
        (future,) = client.scatter([value], broadcast=True)
        return future

    with client:
        # Dask cancels a future without references itself.
        yield _Executor(partial(client.submit, pure=False), n_threads, share, lambda _future: None)


def _unchanged(value: Any) -> Any:
    return value


def _put(finished: "SimpleQueue[tuple[int, Any]]", index: int, future: Any) -> None:
    finished.put((index, future))
