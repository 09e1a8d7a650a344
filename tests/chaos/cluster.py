"""Kill or stop processes of a real Ray cluster during surveys, and compare the store with undisturbed surveys."""

import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from support.ray_cluster import TOKEN, Cluster
from support.tiny_survey import save_model, spec_of

from chaos.harness import log_of
from chaos.outcomes import Outcome, compare, contents, records_of
from theodolite.store.runs import Run, list_run_ids, open_run

SECONDS = 300.0
"""Time after which an attempt counts as hung: two drivers on two cores start for a minute."""

MAX_ATTEMPTS = 6
STOPPED_SECONDS = 3.0
LIMITS = (10, 7)
"""Prompts in each set of the two surveys."""

NAMES = {"replica": "ray::Replica", "raylet": "raylet", "GCS": "gcs_server"}
"""How the name of each process begins that a fault strikes, besides the driver."""

DRIVER = "from theodolite_jobs.cli import main; main()"

Expected = dict[int, tuple[dict[str, bytes], dict[str, dict[str, Any]]]]
"""Objects and commit records of the undisturbed run of each survey."""


@dataclass(frozen=True)
class ClusterFault:
    """A signal to a process after a part of the time that an undisturbed survey takes."""

    process: str  # driver, or one of NAMES
    is_stop: bool  # stopped for STOPPED_SECONDS instead of killed
    after: float


@dataclass(frozen=True)
class ClusterSchedule:
    """The faults of each attempt; the attempts after the last one run undisturbed."""

    seed: int
    attempts: tuple[tuple[ClusterFault, ...], ...]
    surveys: tuple[int, ...]  # the surveys of the drivers that begin at the same time
    ranks: int  # of each replica


def draw_cluster_schedule(seed: int) -> ClusterSchedule:
    """Return the schedule of a seed: one or two disturbed attempts with one or two faults each."""
    draw = random.Random(seed)

    def fault() -> ClusterFault:
        process = draw.choice(("driver", "replica", "replica", "raylet", "GCS"))
        return ClusterFault(process, draw.random() < 0.25, draw.uniform(0.1, 1.1))

    attempts = tuple(tuple(fault() for _ in range(draw.randint(1, 2))) for _ in range(draw.randint(1, 2)))
    return ClusterSchedule(seed, attempts, draw.choice(((0,), (0,), (0, 0), (0, 1))), draw.choice((1, 1, 2)))


class ClusterChaos:
    """A Ray cluster, two surveys of a tiny model, and their undisturbed runs for each number of ranks."""

    def __init__(self, folder: Path, cluster: Cluster) -> None:
        """Run the surveys without faults."""
        self.folder, self.cluster = folder, cluster
        model = save_model(folder / "model")
        self.specs = [self._write_spec(model, number, limit) for number, limit in enumerate(LIMITS)]
        self.undisturbed_seconds = 0.0
        self.expected: dict[int, Expected] = {}
        for ranks in (1, 2):
            outcome = Outcome(ClusterSchedule(-1, (), (0, 1), ranks))
            place = folder / f"undisturbed-{ranks}"
            begin = time.monotonic()
            if not all(self._attempt(place, outcome, outcome.schedule.surveys, ())):
                raise RuntimeError(f"the undisturbed surveys failed: {log_of(place)}")
            self.undisturbed_seconds = time.monotonic() - begin
            self.expected[ranks] = {n: (contents(run), records_of(run)) for n, run in runs_of(place).items()}

    def _write_spec(self, model: Path, number: int, limit: int) -> Path:
        sets = {
            name: {"source": f"builtin:{name}", "limit": limit, "template": "none"} for name in ("harmful", "harmless")
        }
        spec = spec_of(model, prompts=sets, capture={"shard_prompts": 2, "batch_tokens": 200}, analyses=["curves"])
        file = self.folder / f"spec-{number}.json"
        file.write_text(spec.model_dump_json(exclude_unset=True))
        return file

    def run(self, schedule: ClusterSchedule) -> Outcome:
        """Run the attempts of a schedule, then undisturbed ones until its surveys end, and compare the store."""
        outcome, begin, place = Outcome(schedule), time.monotonic(), self.folder / f"seed-{schedule.seed}"
        if schedule.ranks > 1:
            outcome.faults.append("ranks")
        if len(schedule.surveys) > 1:
            outcome.faults.append("two surveys" if len(set(schedule.surveys)) > 1 else "two drivers")
        for faults in schedule.attempts:
            self._attempt(place, outcome, schedule.surveys, faults)
        for number in sorted(set(schedule.surveys)):
            if not any(all(self._attempt(place, outcome, (number,), ())) for _ in range(MAX_ATTEMPTS)):
                outcome.lost.append(f"survey {number} did not end in {MAX_ATTEMPTS} attempts: {log_of(place)}")
        outcome.left_behind += self._replicas_left()
        found = runs_of(place)
        for number in sorted(set(schedule.surveys)):
            if number not in found:
                outcome.lost.append(f"survey {number} has no run")
                continue
            compare(found[number], *self.expected[schedule.ranks][number], outcome)
        outcome.seconds = time.monotonic() - begin
        if not outcome.problems:
            shutil.rmtree(place)
        return outcome

    def _attempt(
        self, place: Path, outcome: Outcome, surveys: Sequence[int], faults: Sequence[ClusterFault]
    ) -> list[bool]:
        """Run a driver for each survey at the same time; return which of them ended well."""
        self._ensure_cluster()
        place.mkdir(exist_ok=True)
        outcome.attempts += 1
        begin = time.monotonic()
        drivers = [self._start_driver(place, self.specs[number], outcome.schedule.ranks) for number in surveys]
        for fault in sorted(faults, key=lambda fault: fault.after):
            time.sleep(max(0.0, begin + fault.after * self.undisturbed_seconds - time.monotonic()))
            self._strike(fault, drivers, outcome)
        for driver in drivers:
            try:
                driver.wait(max(1.0, begin + SECONDS - time.monotonic()))
            except subprocess.TimeoutExpired:
                outcome.hung.append(f"attempt {outcome.attempts}: {log_of(place)}")
                driver.kill()
                driver.wait()
        if "Traceback" in (place / "log.txt").read_text():
            outcome.crashed.append(f"attempt {outcome.attempts}: {log_of(place)}")
        return [driver.returncode == 0 for driver in drivers]

    def _start_driver(self, place: Path, spec: Path, ranks: int) -> "subprocess.Popen[bytes]":
        options = ["--store", str(place / "store"), "--ray", f"127.0.0.1:{self.cluster.port}"]
        options += ["--replicas", "1" if ranks > 1 else "2", "--gpus-per-replica", str(ranks)]
        environment = os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN}
        environment |= {"THEODOLITE_PARALLELISM": "tensor" if ranks > 1 else "pipeline"}
        environment |= {"THEODOLITE_CACHE": str(self.folder / "cache"), "OMP_NUM_THREADS": "1"}
        with (place / "log.txt").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-c", DRIVER, "survey", str(spec), *options], env=environment, stdout=log, stderr=log
            )

    def _strike(self, fault: ClusterFault, drivers: Sequence["subprocess.Popen[bytes]"], outcome: Outcome) -> None:
        if fault.process == "driver":
            victims = [psutil.Process(drivers[0].pid)] if drivers[0].poll() is None else []
        else:
            victims = self.cluster.processes(NAMES[fault.process])
        for victim in victims[:1]:
            with suppress(psutil.NoSuchProcess):
                if fault.is_stop:
                    victim.suspend()
                    outcome.faults.append(f"stop of {fault.process}")
                    time.sleep(STOPPED_SECONDS)
                    victim.resume()
                else:
                    victim.kill()
                    outcome.faults.append(f"kill of {fault.process}")

    def _replicas_left(self) -> list[str]:
        """Return the replicas that still run some seconds after the last driver has ended."""
        for _ in range(200):
            replicas = self.cluster.processes(NAMES["replica"])
            if not replicas:
                return []
            time.sleep(0.1)
        return [f"the replica {replica.pid}" for replica in replicas]

    def _ensure_cluster(self) -> None:
        if not self.cluster.is_alive():
            self.cluster.kill()
            self.cluster.start()


def runs_of(place: Path) -> dict[int, Run]:
    """Return the run of each survey, by its number."""
    store = str(place / "store")
    runs = [open_run(store, run_id) for run_id in list_run_ids(store)]
    return {LIMITS.index(run.record.sets["harmful"].n_samples): run for run in runs}


def run_cluster_seeds(seeds: Iterable[int], report: Callable[[Outcome], None]) -> list[Outcome]:
    """Run the schedules of these seeds, and return their outcomes."""
    folder, outcomes = Path(tempfile.mkdtemp(prefix="theodolite-chaos-")), []
    cluster = Cluster(folder, gpus=4)
    try:
        cluster.start()
        chaos = ClusterChaos(folder, cluster)
        for seed in seeds:
            outcomes.append(chaos.run(draw_cluster_schedule(seed)))
            report(outcomes[-1])
    finally:
        cluster.kill()
    if not any(outcome.problems for outcome in outcomes):
        shutil.rmtree(folder)
    return outcomes
