"""Measure the scheduling loop with simulated replicas: their utilisation, and the loop's own time and memory.

There are two measurements. *busy*: 64 replicas that capture 10 shards per second together, as with a large model; the
result is the share of time in which they compute. *scale*: 1,000 replicas and a million prompts in shards of 64; the
result is the loop's processor time per shard, and the growth of memory between the first and the last tenth of the run.
Ray, models and the store take no part; a Ray call costs some tenths of a millisecond more.

The last line is one JSON object. Usage: python benchmarks/driver.py --help
"""

import asyncio
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import psutil

from theodolite_jobs.capture.plan import SetLayout, ShardPlan, ShardTask
from theodolite_jobs.cluster.scheduling import Callbacks, Dispatched, run_shards

PROMPTS_OF_SHARD = 64
TOKENS = tuple(range(40))


class SimulatedReplica:
    """A replica that takes some seconds for each shard, one shard after the other, as an actor does."""

    def __init__(self, clock: asyncio.AbstractEventLoop, seconds: float, chance: random.Random) -> None:
        self.clock, self.seconds, self.chance = clock, seconds, chance
        self.queue: deque[tuple[int, Future[Any]]] = deque()
        self.ready: Future[Any] = Future()
        self.ready.set_result(None)
        self._busy_seconds, self._started = 0.0, 0.0
        self._lock = threading.Lock()

    def capture(self, task: ShardTask) -> Dispatched:
        """Start a shard, or queue it."""
        future: Future[Any] = Future()
        with self._lock:
            self.queue.append((len(task.tokens), future))
            if len(self.queue) == 1:
                self._start()
        return Dispatched(captured=future, committed=future)

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
        seconds = self.seconds * self.chance.uniform(0.8, 1.2)
        self.clock.call_soon_threadsafe(self.clock.call_later, seconds, self._finish)

    def _finish(self) -> None:
        with self._lock:
            self._busy_seconds += time.perf_counter() - self._started
            prompts, future = self.queue.popleft()
            if self.queue:
                self._start()
        future.set_result({"prompts": prompts})


def main() -> None:
    options = measuring.read_options(
        "Measure the scheduling loop with simulated replicas; print JSON.",
        seconds=(60.0, "duration of the first measurement"),
        prompts=(1_000_000, "prompts of the second measurement"),
    )
    result = {
        "busy": measure(replicas=64, shard_seconds=6.4, shards=int(options.seconds * 10)),
        "scale": measure(replicas=1000, shard_seconds=1.0, shards=options.prompts // PROMPTS_OF_SHARD),
    }
    measuring.publish(result, options.out)


def measure(replicas: int, shard_seconds: float, shards: int) -> dict[str, float]:
    """Return the measurements of a run; the busy share covers the time in which each replica can have two shards."""
    measuring.say(f"{replicas} replicas, {shards} shards of {shard_seconds} s")
    clock, chance = asyncio.new_event_loop(), random.Random(0)
    threading.Thread(target=clock.run_forever, daemon=True).start()  # one clock for all replicas
    workers = [SimulatedReplica(clock, shard_seconds, chance) for _ in range(replicas)]
    layout, tokens = SetLayout((-1,), 0), [TOKENS] * PROMPTS_OF_SHARD
    bounds = [(index * PROMPTS_OF_SHARD, (index + 1) * PROMPTS_OF_SHARD) for index in range(shards)]
    tasks = [ShardTask(layout, ShardPlan("set", index, *bounds[index], ()), tokens) for index in range(shards)]
    process, memory, done = psutil.Process(), [], [0]
    idle_from: list[float] = []

    def committed(_shard: ShardPlan, numbers: Any) -> None:
        done[0] += 1
        if done[0] in (shards // 10, shards - shards // 10):
            memory.append(process.memory_info().rss)
        if done[0] == shards - 2 * replicas:  # the remaining shards are too few for all replicas
            idle_from.extend([time.perf_counter(), sum(worker.busy_seconds() for worker in workers)])

    started, cost = time.perf_counter(), time.thread_time()
    run_shards(workers, tasks, Callbacks(committed))
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
