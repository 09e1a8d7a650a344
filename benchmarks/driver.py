"""The scheduling loop alone, with replicas that only pretend to compute: how busy it keeps them, and what it costs.

Two measurements. *busy*: 64 replicas that together do 10 shards a second, as a large model does; the share of the time
in which they compute. *scale*: 1,000 replicas and a million prompts in shards of 64; the loop's own processor time for
a shard, and how much memory grows between the first and the last tenth of the run. No Ray, no model, no store: those
have their own benchmarks, and Ray's call costs some tenths of a millisecond more.

The last line is one JSON object. Usage: python benchmarks/driver.py --help
"""

import argparse
import heapq
import itertools
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import psutil
import torch

from theodolite_jobs.capture.plan import SetPlan, ShardPlan
from theodolite_jobs.cluster.scheduling import Callbacks, run_shards

PROMPTS_OF_SHARD = 64
TOKENS = tuple(range(40))


class Clock:
    """One thread in which all pretended replicas finish their shards when they are due."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Any]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def at(self, due: float, act: Any) -> None:
        """Act when it is time."""
        with self._changed:
            heapq.heappush(self._due, (due, next(self._numbers), act))
            self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._due or self._due[0][0] > time.perf_counter():
                    self._changed.wait(self._due[0][0] - time.perf_counter() if self._due else None)
                act = heapq.heappop(self._due)[2]
            act()


class PretendReplica:
    """Takes some seconds for a shard, one after the other, as an actor does."""

    def __init__(self, clock: Clock, seconds: float, chance: random.Random) -> None:
        self.clock, self.seconds, self.chance = clock, seconds, chance
        self.line: deque[tuple[int, Future[Any]]] = deque()
        self.ready: Future[Any] = Future()
        self.ready.set_result(None)
        self._busy_seconds, self._began = 0.0, 0.0
        self._lock = threading.Lock()

    def capture(self, _plan: SetPlan, shard: ShardPlan, tokens: Any, _halvings: int) -> "Future[Any]":
        """Begin a shard, or put it in line."""
        future: Future[Any] = Future()
        with self._lock:
            self.line.append((len(tokens), future))
            if len(self.line) == 1:
                self._begin()
        return future

    def restart(self, _reason: str) -> None:
        """Never die."""

    def kill(self) -> None:
        """Nobody is left out."""

    def busy_seconds(self) -> float:
        """Return how long it has computed until now."""
        with self._lock:
            return self._busy_seconds + (time.perf_counter() - self._began if self.line else 0.0)

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self.clock.at(self._began + self.seconds * self.chance.uniform(0.8, 1.2), self._finish)

    def _finish(self) -> None:
        with self._lock:
            self._busy_seconds += time.perf_counter() - self._began
            prompts, future = self.line.popleft()
            if self.line:
                self._begin()
        future.set_result({"prompts": prompts})


def main() -> None:
    parser = argparse.ArgumentParser(description="The scheduling loop with pretended replicas, as JSON.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of the first measurement")
    parser.add_argument("--prompts", type=int, default=1_000_000, help="of the second")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    result = {
        "busy": measure(replicas=64, shard_seconds=6.4, shards=int(options.seconds * 10)),
        "scale": measure(replicas=1000, shard_seconds=1.0, shards=options.prompts // PROMPTS_OF_SHARD),
    }
    measuring.publish({**result, **measuring.machine_facts(torch.device("cpu"))}, options.out)


def measure(replicas: int, shard_seconds: float, shards: int) -> dict[str, float]:
    """Run shards through pretended replicas; the share of busy time ends where not all have two any more."""
    measuring.say(f"{replicas} replicas, {shards} shards of {shard_seconds} s")
    clock, chance = Clock(), random.Random(0)
    workers = [PretendReplica(clock, shard_seconds, chance) for _ in range(replicas)]
    ends = [(index * PROMPTS_OF_SHARD, (index + 1) * PROMPTS_OF_SHARD) for index in range(shards)]
    plan = SetPlan("set", (-1,), 0, (), shards * PROMPTS_OF_SHARD, 0)
    work = [(plan, ShardPlan("set", index, *ends[index], ())) for index in range(shards)]
    tokens = {"set": [TOKENS] * (shards * PROMPTS_OF_SHARD)}
    process, memory, done = psutil.Process(), [], [0]
    idle_from: list[float] = []

    def committed(_shard: ShardPlan, numbers: Any) -> None:
        done[0] += 1
        if done[0] in (shards // 10, shards - shards // 10):
            memory.append(process.memory_info().rss)
        if done[0] == shards - 2 * replicas:  # from here on there is not enough for all
            idle_from.append(time.perf_counter())
            idle_from.append(sum(worker.busy_seconds() for worker in workers))

    began, cost = time.perf_counter(), time.thread_time()
    run_shards(workers, work, tokens, Callbacks(committed))
    cost = time.thread_time() - cost
    until, busy = idle_from
    return {
        "replicas": replicas,
        "shards": shards,
        "shards_per_second": (shards - 2 * replicas) / (until - began),
        "busy_share": busy / (replicas * (until - began)),
        "loop_milliseconds_per_shard": cost / shards * 1e3,
        "memory_growth_bytes": memory[1] - memory[0],
    }


if __name__ == "__main__":
    main()
