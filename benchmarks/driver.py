"""Measure the scheduling loop with simulated replicas: their utilisation, and the loop's own time and memory.

There are two measurements. *busy*: 64 replicas that capture 10 shards per second together, as with a large model; the
result is the share of time in which they compute. *scale*: 1,000 replicas and a million prompts in shards of 64; the
result is the loop's processor time per shard, and the growth of memory between the first and the last tenth of the run.
Ray, models and the store take no part; a Ray call costs some tenths of a millisecond more.

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
    """A thread that calls functions at given times; all simulated replicas share it."""

    def __init__(self) -> None:
        self._due: list[tuple[float, int, Any]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        threading.Thread(target=self._run, daemon=True).start()

    def at(self, due: float, act: Any) -> None:
        """Call `act` at the time `due`."""
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


class SimulatedReplica:
    """A replica that takes some seconds for each shard, one shard after the other, as an actor does."""

    def __init__(self, clock: Clock, seconds: float, chance: random.Random) -> None:
        self.clock, self.seconds, self.chance = clock, seconds, chance
        self.queue: deque[tuple[int, Future[Any]]] = deque()
        self.ready: Future[Any] = Future()
        self.ready.set_result(None)
        self._busy_seconds, self._started = 0.0, 0.0
        self._lock = threading.Lock()

    def capture(self, _plan: SetPlan, shard: ShardPlan, tokens: Any, _halvings: int) -> "Future[Any]":
        """Start a shard, or queue it."""
        future: Future[Any] = Future()
        with self._lock:
            self.queue.append((len(tokens), future))
            if len(self.queue) == 1:
                self._start()
        return future

    def restart(self, _reason: str) -> None:
        """Do nothing; a simulated replica never dies."""

    def kill(self) -> None:
        """Do nothing; a simulated replica is never killed."""

    def busy_seconds(self) -> float:
        """Return the seconds of computation until now."""
        with self._lock:
            return self._busy_seconds + (time.perf_counter() - self._started if self.queue else 0.0)

    def _start(self) -> None:
        self._started = time.perf_counter()
        self.clock.at(self._started + self.seconds * self.chance.uniform(0.8, 1.2), self._finish)

    def _finish(self) -> None:
        with self._lock:
            self._busy_seconds += time.perf_counter() - self._started
            prompts, future = self.queue.popleft()
            if self.queue:
                self._start()
        future.set_result({"prompts": prompts})


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the scheduling loop with simulated replicas; print JSON.")
    parser.add_argument("--seconds", type=float, default=60.0, help="duration of the first measurement")
    parser.add_argument("--prompts", type=int, default=1_000_000, help="prompts of the second measurement")
    parser.add_argument("--out", type=Path, help="also write the JSON to this file")
    options = parser.parse_args()
    result = {
        "busy": measure(replicas=64, shard_seconds=6.4, shards=int(options.seconds * 10)),
        "scale": measure(replicas=1000, shard_seconds=1.0, shards=options.prompts // PROMPTS_OF_SHARD),
    }
    measuring.publish({**result, **measuring.machine_facts(torch.device("cpu"))}, options.out)


def measure(replicas: int, shard_seconds: float, shards: int) -> dict[str, float]:
    """Return the measurements of a run; the busy share covers the time in which each replica can have two shards."""
    measuring.say(f"{replicas} replicas, {shards} shards of {shard_seconds} s")
    clock, chance = Clock(), random.Random(0)
    workers = [SimulatedReplica(clock, shard_seconds, chance) for _ in range(replicas)]
    bounds = [(index * PROMPTS_OF_SHARD, (index + 1) * PROMPTS_OF_SHARD) for index in range(shards)]
    plan = SetPlan("set", (-1,), 0, (), shards * PROMPTS_OF_SHARD, 0)
    work = [(plan, ShardPlan("set", index, *bounds[index], ())) for index in range(shards)]
    tokens = {"set": [TOKENS] * (shards * PROMPTS_OF_SHARD)}
    process, memory, done = psutil.Process(), [], [0]
    idle_from: list[float] = []

    def committed(_shard: ShardPlan, numbers: Any) -> None:
        done[0] += 1
        if done[0] in (shards // 10, shards - shards // 10):
            memory.append(process.memory_info().rss)
        if done[0] == shards - 2 * replicas:  # the remaining shards are too few for all replicas
            idle_from.append(time.perf_counter())
            idle_from.append(sum(worker.busy_seconds() for worker in workers))

    started, cost = time.perf_counter(), time.thread_time()
    run_shards(workers, work, tokens, Callbacks(committed))
    cost = time.thread_time() - cost
    until, busy = idle_from
    return {
        "replicas": replicas,
        "shards": shards,
        "shards_per_second": (shards - 2 * replicas) / (until - started),
        "busy_share": busy / (replicas * (until - started)),
        "loop_milliseconds_per_shard": cost / shards * 1e3,
        "memory_growth_bytes": memory[1] - memory[0],
    }


if __name__ == "__main__":
    main()
