"""How tasks run on Dask: where, and how many at a time."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import islice
from typing import Any

import dask
from dask.base import compute
from threadpoolctl import threadpool_limits

from theodolite.errors import StoreError

Progress = Callable[[str, int, int], None]
"""Called with what is being done, how many tasks are done, and how many there are."""

_THREADS = ContextVar("threads", default=os.cpu_count() or 1)
"""How many tasks run at once, here or on the cluster."""


def in_windows(tasks: Sequence[Any], done: Callable[[int], None], rounds: int = 2) -> Iterator[Any]:
    """Yield each task's result in order, computing a few at a time, so that memory does not grow with their number.

    Args:
        tasks: delayed values.
        done: called with how many are finished.
        rounds: how many tasks a thread is given at once.
    """
    size = rounds * _THREADS.get()
    finished = 0
    done(finished)
    remaining = iter(tasks)
    while window := list(islice(remaining, size)):
        yield from compute(*window)
        finished += len(window)
        done(finished)


@contextmanager
def scheduler(address: str | None) -> Iterator[None]:
    """Run tasks on a `dask.distributed` scheduler, or on this process's threads.

    Each of those threads gets one core of the linear algebra libraries: two decompositions side by side are three
    times as fast as two that share two cores.
    """
    if address is None:
        with dask.config.set(scheduler="threads"), threadpool_limits(limits=1):
            yield
        return
    from distributed import Client

    try:
        client = Client(address, timeout="10s")
    except (OSError, ValueError) as error:
        raise StoreError(f"cannot connect to the Dask scheduler at {address}: {error}") from error
    with client:
        token = _THREADS.set(max(1, sum(client.nthreads().values())))
        try:
            yield
        finally:
            _THREADS.reset(token)
