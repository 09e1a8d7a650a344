"""Run one function over many arguments, on this process's threads or on a Dask cluster."""

import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from functools import partial
from itertools import islice
from queue import SimpleQueue
from typing import Any, NamedTuple, TypeVar

from dask.system import CPU_COUNT
from threadpoolctl import threadpool_limits

from theodolite.errors import ClusterError, StoreError, first_line

T = TypeVar("T")

Progress = Callable[[str, int, int], None]
"""Called with the name of the stage, the number of finished tasks, and the number of tasks."""


_CONNECT_SECONDS = 30
"""Time in which a Dask scheduler must respond; on a machine whose cores are all busy, it can need more than 10."""


class _Executor(NamedTuple):
    """The functions that run tasks on threads or on a cluster.

    The executor of `Client.get_executor` copies each result to this process when its call ends, which may be long
    before it is yielded. The futures of `Client.submit` leave it on the worker.
    """

    submit: Callable[..., Any]
    n_threads: Callable[[], int]  # the number of calls that run at the same time
    share: Callable[[Any], Any]  # returns the argument to pass for a value that all calls use
    discard: Callable[[Any], object]  # takes a future whose result is no longer needed
    on_each_worker: Callable[..., object]  # calls a function in each process, and raises its error


_EXECUTOR: ContextVar[_Executor | None] = ContextVar("executor", default=None)


def run_tasks(
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    progress: Progress = lambda *_: None,
    stage: str = "",
    rounds: int = 2,
) -> Iterator[T]:
    """Yield the results of the calls in order; while one call is slow, the threads run later calls.

    At most `rounds` calls per thread are submitted and not yet yielded, which bounds the memory.

    Args:
        function: what to call; it must be importable where the tasks run.
        arguments: the positional arguments of each call. Pass what all calls share through `shared`.
        progress: called when a call has finished; calls may finish in any order.
        stage: what the calls do, for `progress`.
        rounds: maximum number of calls per thread that are not yet yielded.

    Raises:
        Exception: the first error of any call, immediately; calls that have not started are cancelled.
    """
    with ExitStack() as stack:
        executor = _EXECUTOR.get() or stack.enter_context(_threads())
        limit = rounds * executor.n_threads()
        remaining, n_finished = iter(arguments), 0
        submitted: deque[Any] = deque()
        finished: SimpleQueue[Any] = SimpleQueue()  # the thread that finishes a call puts its future
        known: set[Any] = set()  # futures of finished calls; a future keeps its result in memory until it is yielded
        progress(stage, 0, len(arguments))
        try:
            while True:
                for call_arguments in islice(remaining, limit - len(submitted)):
                    submitted.append(executor.submit(function, *call_arguments))
                    submitted[-1].add_done_callback(finished.put)
                if not submitted:
                    return
                while submitted[0] not in known:
                    known.add(future := finished.get())
                    if error := future.exception():
                        raise error
                    n_finished += 1
                    progress(stage, n_finished, len(arguments))
                known.remove(submitted[0])
                yield submitted.popleft().result()
        finally:
            while submitted:
                executor.discard(submitted.pop())


def shared(value: T) -> T:
    """Return the argument to pass for a value that all tasks use: the value itself, or its future on a cluster."""
    executor = _EXECUTOR.get()
    return value if executor is None else executor.share(value)


def call_on_each_worker(function: Callable[..., object], *arguments: Any) -> None:
    """Call a function on each worker of the cluster, or once in this process; raises the error of a call."""
    executor = _EXECUTOR.get()
    (_call if executor is None else executor.on_each_worker)(function, *arguments)


def _call(function: Callable[..., object], *arguments: Any) -> None:
    function(*arguments)


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
    """Run tasks on threads that each use one core of the linear algebra libraries and of torch.

    Two decompositions on one core each are three times as fast as two that share two cores.
    """
    n_threads = count or CPU_COUNT
    pool = ThreadPoolExecutor(n_threads, "task")
    try:
        with threadpool_limits(limits=1), _one_thread_of_torch():
            yield _Executor(pool.submit, lambda: n_threads, lambda value: value, Future.cancel, _call)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)  # after an error, running calls finish in the background


@contextmanager
def _one_thread_of_torch() -> Iterator[None]:
    """Run each operation of torch on the thread that calls it.

    `threadpool_limits` does not reach torch: MKL is linked into it statically, and each new thread of this process sets
    its own number of OpenMP threads from torch's setting.
    """
    import torch  # here, so that the modules of results that need no torch do not load it

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def _cluster(address: str) -> Iterator[_Executor]:
    from distributed import Client
    from distributed.client import FutureCancelledError
    from distributed.comm.core import CommClosedError
    from distributed.scheduler import KilledWorker

    try:
        client = Client(address, timeout=_CONNECT_SECONDS)
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot connect to the Dask scheduler at {address}: {error}") from error

    # A task and not `Client.scatter`: Dask cannot restore a scattered value if the workers that hold it are lost.
    def share(value: Any) -> Any:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "Sending large graph")
            return client.submit(_same, value, pure=False)

    with client:
        # Dask cancels a future without references itself.
        submit = partial(client.submit, pure=False)
        try:
            yield _Executor(
                submit, lambda: max(1, sum(client.nthreads().values())), share, lambda _future: None, client.run
            )
        except (CommClosedError, FutureCancelledError, KilledWorker) as error:
            raise ClusterError(f"the Dask cluster at {address} lost a task: {first_line(error)}; try again") from error


def _same(value: T) -> T:
    return value
