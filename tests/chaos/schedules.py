"""Schedules of faults: a pure function of a seed."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

DRIVER_STEPS = {
    "plan": "theodolite_jobs.prepare:plan_set",
    "tokens": "theodolite_jobs.capture_run:write_tokens",
    "run.json": "theodolite_jobs.capture_run:create_run",
    "recover": "theodolite_jobs.capture_run:recover",
    "sweep": "theodolite_jobs.capture_run:drop_pending",
    "prompts": "theodolite_jobs.capture_run:write_prompts",
    "pass 1": "theodolite_jobs.passes.all_shards:first_passes",
    "pass 2": "theodolite_jobs.passes.all_shards:second_passes",
    "gram": "theodolite_jobs.results.gram:compute",
    "layer": "theodolite_jobs.results.heads:write_layer",
    "result": "theodolite.store.result_writer:put",
    "complete": "theodolite.store.manifest:put",
    "report": "theodolite_jobs.analysis:write_report",
}
"""Steps of the driver: the function that begins each of them, as its module and name."""

REPLICA_STEPS = {
    "load": "theodolite_jobs.cluster.replica:_load_engine",
    "capture": "theodolite_jobs.capture.engine:Engine.capture",
    "forward": "theodolite_jobs.models.load:LoadedModel.run",
    "put": "theodolite.store.commits:put",
    "record": "theodolite.store.commits:put_new",
    "move": "theodolite.store.commits:move",
}
"""Steps of a replica."""

ACTIONS = ("kill", "terminate", "pause", "store error")
MEMORY = "out of memory"
"""What happens at a step; a pause stops the process for a while (SIGSTOP), and memory runs out only in a forward."""

STORE_FAULTS = (
    "500 before",
    "500 after",
    "503 before",
    "503 after",
    "429 before",
    "reset before",
    "reset after",
    "slow",
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


@dataclass(frozen=True)
class Schedule:
    """The faults of one survey, by attempt; the attempts after the last one run undisturbed."""

    seed: int
    attempts: tuple[tuple[Fault, ...], ...]
    drivers: int  # that begin at the same time
    store_faults: tuple[str, ...]  # one of them disturbs about every eighth request to the bucket; empty: a folder

    @property
    def kinds(self) -> list[str]:
        """The names of all faults, for the summary."""
        of_steps = [f"{fault.action} of {fault.process}" for faults in self.attempts for fault in faults]
        return [*of_steps, *(f"store: {fault}" for fault in self.store_faults), *["two drivers"] * (self.drivers - 1)]


def draw_schedule(seed: int, *, with_bucket: bool) -> Schedule:
    """Return the schedule of a seed: one to three disturbed attempts with one to three faults each."""
    draw = random.Random(seed)
    attempts = tuple(
        tuple(_draw_fault(draw) for _ in range(draw.randint(1, 3))) for _ in range(draw.choice((1, 1, 2, 3)))
    )
    faults = tuple(sorted(draw.sample(STORE_FAULTS, draw.randint(1, 4)))) if with_bucket else ()
    return Schedule(seed, attempts, draw.choice((1, 1, 1, 2)), faults)


def _draw_fault(draw: random.Random) -> Fault:
    process = draw.choice(("driver", "replica", "replica"))
    steps: Sequence[str] = list(DRIVER_STEPS if process == "driver" else REPLICA_STEPS)
    step = draw.choice(steps)
    actions = [*ACTIONS, *([MEMORY] if step == "forward" else [])]
    if process == "driver":
        actions.remove("store error")  # ends the attempt with one line, as a kill does
    return Fault(process, step, draw.randint(1, 6), draw.choice(actions), draw.random() < 0.5)
