"""Ranks in processes of their own on this machine, as a driver would start them on one node."""

import os
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from datetime import timedelta
from typing import Any

import torch
from support.forks import PROCESSES, start_forks

from theodolite_jobs.cluster import ranks
from theodolite_jobs.cluster.ranks import join, ranks_of_group

SECONDS = 300


class Group:
    """Processes that each run the same function; what one keeps in its module stays there until it ends."""

    def __init__(self, size: int, joined: bool = True) -> None:
        """Start the processes; they have met unless what runs in them does that itself."""

        self.ranks = ranks_of_group(size)
        start_forks()
        self._processes = [ProcessPoolExecutor(1, mp_context=PROCESSES) for _ in range(size)]
        self.run(_start, joined)

    def submit(self, work: Callable[..., Any], *arguments: Any) -> list[Future[Any]]:
        """Call `work(rank, …)` in each process."""
        return [
            process.submit(work, rank, *arguments) for process, rank in zip(self._processes, self.ranks, strict=True)
        ]

    def run(self, work: Callable[..., Any], *arguments: Any) -> list[Any]:
        """Call `work(rank, …)` in each process, and return what each returns."""
        return [future.result(SECONDS) for future in self.submit(work, *arguments)]

    def end(self, index: int) -> None:
        """End one process."""
        self._processes[index].shutdown()

    def close(self) -> None:
        """End them all."""
        for process in self._processes:
            process.shutdown()


def _start(rank: ranks.Rank, joined: bool) -> None:
    os.environ["OMP_NUM_THREADS"] = "1"
    torch.set_num_threads(1)
    ranks.TIMEOUT = timedelta(seconds=SECONDS)  # a test that hangs ends before CI does
    if joined:
        join(rank)
