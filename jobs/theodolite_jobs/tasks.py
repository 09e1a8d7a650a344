"""Running one function over many arguments: on this process's threads, or on a Dask cluster."""

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
"""Called with what is being done, how many tasks are done, and how many there are."""


@dataclass(frozen=True)
class _Executor:
    """Where tasks run.

    Attributes:
        submit: takes a function and its arguments, and returns a future.
        n_threads: returns how many tasks run at once.
        share: returns what tasks take for a value that all of them share.
        discard: takes a future whose result is not wanted any more.
    """

    submit: Callable[..., Any]
    n_threads: Callable[[], int]
    share: Callable[[Any], Any]
    discard: Callable[[Any], object]


_EXECUTOR: ContextVar[_Executor | None] = ContextVar("executor", default=None)


def run_tasks(
    function: Callable[..., T], arguments: Sequence[tuple[Any, ...]], done: Callable[[int], None], rounds: int = 2
) -> Iterator[T]:
    """Yield the result of each call in order; a slow call does not keep the threads from those after it.

    At most `rounds` calls for each thread are submitted and not yet yielded, so memory does not grow with the number of
    calls.

    Args:
        function: what to call; it must be importable where the tasks run.
        arguments: the positional arguments of each call. Pass what all calls share through `shared`.
        done: called with how many calls are finished, in whatever order they finish.
        rounds: how many calls each thread may be ahead.

    Raises:
        Exception: the first error of any call, as soon as it is known; calls that have not begun are cancelled.
    """
    with ExitStack() as stack:
        executor = _EXECUTOR.get() or stack.enter_context(_threads())
        limit = rounds * executor.n_threads()
        remaining = enumerate(arguments)
        submitted: deque[tuple[int, Any]] = deque()
        finished: SimpleQueue[tuple[int, Any]] = SimpleQueue()  # put by whichever thread a call finishes in
        known: set[int] = set()
        done(0)
        try:
            while True:
                for index, of_call in islice(remaining, limit - len(submitted)):
                    future = executor.submit(function, *of_call)
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
    """Return what to pass as an argument that all tasks share: the value itself, or its future on a cluster."""
    executor = _EXECUTOR.get()
    return value if executor is None else executor.share(value)


@contextmanager
def scheduler(address: str | None, threads: int | None = None) -> Iterator[None]:
    """Run tasks on a `dask.distributed` scheduler, or on this process's threads.

    Args:
        address: the scheduler's address; None is this process.
        threads: how many threads of this process; None is those of a surrounding context, or one for each core.

    Raises:
        StoreError: the scheduler does not answer.
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
    """Each thread gets one core of the linear algebra libraries.

    Two decompositions side by side are three times as fast as two that share two cores.
    """
    n_threads = count or CPU_COUNT
    pool = ThreadPoolExecutor(n_threads, "task")
    try:
        with threadpool_limits(limits=1):
            yield _Executor(pool.submit, lambda: n_threads, _unchanged, Future.cancel)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an error, running calls end by themselves


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
        # On every worker: a scattered value that was on a lost worker alone could not be computed again.
        (future,) = client.scatter([value], broadcast=True)
        return future

    with client:
        # A future that nobody holds is cancelled by Dask itself.
        yield _Executor(partial(client.submit, pure=False), n_threads, share, lambda _future: None)


def _unchanged(value: Any) -> Any:
    return value


def _put(finished: "SimpleQueue[tuple[int, Any]]", index: int, future: Any) -> None:
    finished.put((index, future))
