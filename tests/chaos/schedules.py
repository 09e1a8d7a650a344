"""Schedules of faults: a function of a seed and of the number of calls of each step, which timing changes a little."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

DRIVER_STEPS = {
    "plan": "theodolite_jobs.prepare:plan_set",
    "tokens": "theodolite_jobs.captured_objects:encode_tokens",
    "run.json": "theodolite_jobs.capture_run:create_run",
    "recover": "theodolite_jobs.capture_run:recover",
    "sweep": "theodolite_jobs.captured_objects:drop_pending",
    "prompts": "theodolite_jobs.captured_objects:encode_prompts",
    "pass 1": "theodolite_jobs.passes.collect:first_passes",
    "pass 2": "theodolite_jobs.passes.collect:second_passes",
    "gram": "theodolite_jobs.groups.gram.compute:compute",
    "layer": "theodolite_jobs.groups.heads.compute:write_layer",
    "vectors": "theodolite_jobs.effects.part_store:PartStore.write_vectors",
    "result": "theodolite.store.result_writer:put",
    "complete": "theodolite.store.manifest:put",
    "drop": "theodolite_jobs.effects.part_store:PartStore.drop",
    "report": "theodolite_jobs.analysis:update_report",
}
"""Steps of the driver: the function that begins each of them, as its module and name."""

REPLICA_STEPS = {
    "load": "theodolite_jobs.cluster.replica:_load_engine",
    "capture": "theodolite_jobs.capture.engine:Engine.launch",
    "forward": "theodolite_jobs.models.load:LoadedModel.run",
    "put": "theodolite.store.commits:put",
    "record": "theodolite.store.commits:put_new",
    "move": "theodolite.store.commits:move",
    "effects": "theodolite_jobs.cluster.effects_replica:EffectsReplica._measured",
    "part": "theodolite_jobs.effects.part_store:put_new",
}
"""Steps of a replica."""

ACTIONS = ("kill", "terminate", "pause", "store error")
"""What happens at a step; a pause stops the process for a while (SIGSTOP)."""

OUT_OF_MEMORY = "out of memory"
"""A batch does not fit into memory, so the replica halves it. Other batches give other bits, so schedules with this
fault are compared in another way."""

DASK = "kill of a Dask worker"
DASK_STEPS = ("pass 1", "pass 2", "gram", "layer")
"""Steps whose tasks run on Dask, in a schedule with a Dask cluster."""

POISON = "poison"
"""A prompt kills each process that captures it: the step of the fault is its set, and the call its sample."""

EVERY, COUNT = 0, "count"
"""The call and the action of a fault that only records each call of its step."""

DISKS = {"full disk": "No space left", "read-only disk": "Read-only file system"}
"""What happens to the disk of a store: it has space for a part of the run, or is read-only for some seconds; and the
error of a write."""

STORE_FAULTS = (
    "500 before",
    "500 after",
    "503 before",
    "503 after",
    "429 before",
    "reset before",
    "reset after",
    "slow",
    "truncated",
    "lost delete",
    "late listing",
)
"""What happens to a request to the bucket, before or after it took effect."""


@dataclass(frozen=True)
class Fault:
    """One fault at the n-th call of a step, before or after the step takes effect."""

    process: str  # driver or replica
    step: str
    call: int
    action: str
    is_after: bool

    def __str__(self) -> str:
        """Return the fault's name in the summary."""
        return self.action if self.action in (DASK, POISON, OUT_OF_MEMORY) else f"{self.action} of {self.process}"


POISONED = Fault("replica", "harmful", 7, POISON, is_after=False)
"""The fault of each attempt of a schedule with poison."""


@dataclass(frozen=True)
class Schedule:
    """The faults of one survey, by attempt; the attempts after the last one run undisturbed."""

    seed: int
    attempts: tuple[tuple[Fault, ...], ...]
    drivers: int  # that begin at the same time
    store_faults: tuple[str, ...]  # one of them disturbs about every eighth request to the bucket; empty: a folder
    disk: str | None = None  # one of DISKS, for the disk of the folder
    with_dask: bool = False
    with_poison: bool = False
    with_little_memory: bool = False


def draw_schedule(seed: int, calls: Mapping[str, int], *, with_bucket: bool, with_dask: bool = False) -> Schedule:
    """Return the schedule of a seed: one to three disturbed attempts with one to three faults each.

    `calls` are the numbers of calls of each step in an undisturbed survey.
    """
    draw = random.Random(seed)
    with_dask = with_dask and draw.random() < 0.2
    attempts = tuple(
        tuple(_draw_fault(draw, calls, with_dask=with_dask) for _ in range(draw.randint(1, 3)))
        for _ in range(draw.choice((1, 1, 2, 3)))
    )
    faults = tuple(sorted(draw.sample(STORE_FAULTS, draw.randint(1, 4)))) if with_bucket else ()
    disk = None if with_bucket or draw.random() < 0.6 else draw.choice(sorted(DISKS))
    drivers, with_poison, with_little_memory = draw.choice((1, 1, 1, 2)), draw.random() < 0.15, draw.random() < 0.1
    if with_little_memory:
        calls_without_memory = draw.sample(range(1, calls["forward"] + 1), calls["forward"] // 2)
        more = [Fault("replica", "forward", call, OUT_OF_MEMORY, is_after=False) for call in calls_without_memory]
        attempts = tuple((*faults_of_attempt, *more) for faults_of_attempt in attempts)
    return Schedule(seed, attempts, drivers, faults, disk, with_dask, with_poison, with_little_memory)


def _draw_fault(draw: random.Random, calls: Mapping[str, int], *, with_dask: bool) -> Fault:
    if with_dask and draw.random() < 0.5:
        return Fault("driver", draw.choice(DASK_STEPS), 1, DASK, is_after=False)
    process = draw.choice(("driver", "replica", "replica"))
    steps: Sequence[str] = list(DRIVER_STEPS if process == "driver" else REPLICA_STEPS)
    step = draw.choice(steps)
    actions = list(ACTIONS)
    if process == "driver":
        actions.remove("store error")  # ends the attempt with one line, as a kill does
    return Fault(process, step, draw.randint(1, calls[step]), draw.choice(actions), draw.random() < 0.5)
