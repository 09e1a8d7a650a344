"""Run a schedule of faults to its end, and compare the store with that of an undisturbed run."""

import json
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing.forkserver import _forkserver  # its process is the parent of all others
from pathlib import Path
from typing import Any

from support.faulty_bucket import FaultyBucket, faulty_bucket
from support.tiny_survey import save_model, spec_of

from chaos.processes import PRELOADED, PROCESSES, start_driver
from chaos.schedules import Schedule, draw_schedule
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store.objects import get, keys
from theodolite.store.runs import Run, list_run_ids, open_run

SECONDS = 120.0
"""Time after which an attempt counts as hung."""

MAX_ATTEMPTS = 12
"""Undisturbed attempts after which a survey counts as lost; a store that fails at random may end a few of them."""

PAUSE_SECONDS = 1.0

_TIMED = ("COMPLETE", "report.html", "run.json")  # contain times
_VARYING = {"attempt", "seconds", "store_seconds", "sha256", "oom_backoffs", "computed_tokens", "padding_tokens"}
"""Fields of a commit record that differ between runs with the same bits."""


@dataclass
class Outcome:
    """What a schedule did to the store; every list is empty if all is well."""

    schedule: Schedule
    seconds: float = 0.0
    attempts: int = 0
    hung: list[str] = field(default_factory=list)
    crashed: list[str] = field(default_factory=list)  # attempts that ended with a traceback
    lost: list[str] = field(default_factory=list)
    doubled: list[str] = field(default_factory=list)
    different: list[str] = field(default_factory=list)
    left_behind: list[str] = field(default_factory=list)

    @property
    def problems(self) -> dict[str, list[str]]:
        """The problems by kind, without the kinds that did not happen."""
        kinds = ("hung", "crashed", "lost", "doubled", "different", "left_behind")
        return {kind: getattr(self, kind) for kind in kinds if getattr(self, kind)}


class Chaos:
    """A tiny model, the undisturbed run of its survey, and a bucket."""

    def __init__(self, folder: Path, bucket: FaultyBucket) -> None:
        """Run the survey once without faults."""
        PROCESSES.set_forkserver_preload(PRELOADED)
        self.folder, self.bucket = folder, bucket
        self.spec = spec_of(save_model(folder / "model"))
        outcome = Outcome(Schedule(-1, (), 1, ()))
        self._attempt(str(folder / "undisturbed"), ((),), outcome)
        run = open_only_run(str(folder / "undisturbed"))
        self.expected = contents(run)
        self.records = records_of(run)
        assert outcome.problems == {}, outcome.problems
        assert list(verify(run)) == []

    def run(self, schedule: Schedule) -> Outcome:
        """Run the attempts of a schedule, then undisturbed ones until the survey ends, and compare the store."""
        outcome, begin = Outcome(schedule), time.monotonic()
        folder = self.folder / f"seed-{schedule.seed}"
        store = f"{self.bucket.url}/{schedule.seed}" if schedule.store_faults else str(folder / "store")
        draw, lock = random.Random(schedule.seed), threading.Lock()

        def choose(_method: str, _key: str) -> str | None:
            with lock:
                return draw.choice(schedule.store_faults) if draw.random() < 1 / 8 else None

        self.bucket.choose = choose if schedule.store_faults else lambda _method, _key: None
        folder.mkdir()
        for faults in schedule.attempts:
            self._attempt(store, [faults] * schedule.drivers, outcome, folder)
        self.bucket.choose = lambda _method, _key: None
        for _ in range(MAX_ATTEMPTS):
            if self._attempt(store, ((),), outcome, folder):
                break
        else:
            outcome.lost.append(f"the survey did not end in {MAX_ATTEMPTS} undisturbed attempts: {log_of(folder)}")
        self._compare(store, outcome)
        outcome.left_behind += processes_left(folder)
        outcome.seconds = time.monotonic() - begin
        if not outcome.problems:
            shutil.rmtree(folder)
        return outcome

    def _attempt(
        self, store: str, faults_of_drivers: Sequence[Sequence[Any]], outcome: Outcome, folder: Path | None = None
    ) -> bool:
        """Run drivers at the same time; return whether one of them finished the survey."""
        folder = folder or self.folder
        outcome.attempts += 1
        environment = self.bucket.environment | {"THEODOLITE_CACHE": str(self.folder / "cache")}
        drivers = [
            start_driver(self.spec, store, faults, environment, folder / "log.txt") for faults in faults_of_drivers
        ]
        with paused_processes_continue():
            for driver in drivers:
                driver.join(SECONDS)
                if driver.is_alive():
                    outcome.hung.append(f"attempt {outcome.attempts}: {log_of(folder)}")
                    driver.kill()
                    driver.join()
        for driver in drivers:
            if driver.exitcode == 2:
                outcome.crashed.append(f"attempt {outcome.attempts}: {log_of(folder)}")
        return any(driver.exitcode == 0 for driver in drivers)

    def _compare(self, store: str, outcome: Outcome) -> None:
        with environment_of(self.bucket.environment):
            try:
                run = open_only_run(store)
            except Exception as error:
                outcome.lost.append(str(error))
                return
            outcome.lost += verify(run)
            outcome.left_behind += unexpected_objects(run)
            outcome.left_behind += keys(run.location, "pending")
            outcome.left_behind += [str(file) for file in Path(store).rglob("*#*")]
            stored, records = contents(run), records_of(run)
        outcome.lost += sorted(self.expected.keys() - stored.keys())
        outcome.doubled += sorted(stored.keys() - self.expected.keys())
        outcome.different += [
            key for key in sorted(self.expected.keys() & stored.keys()) if self.expected[key] != stored[key]
        ]
        outcome.different += [name for name, record in self.records.items() if records.get(name) != record]


def open_only_run(store: str) -> Run:
    """Return the only run of a store."""
    (run_id,) = list_run_ids(store)
    return open_run(store, run_id)


def contents(run: Run) -> dict[str, bytes]:
    """Return the objects of a run that contain no times, by key."""
    compared = [key for key in keys(run.location) if not key.startswith(("shards/", "pending/")) and key not in _TIMED]
    return {key: get(run.location, key) or b"" for key in compared}


def records_of(run: Run) -> dict[str, dict[str, Any]]:
    """Return the commit records, without the fields that differ between runs with the same bits."""
    records = {key: json.loads(get(run.location, key) or b"{}") for key in keys(run.location, "shards")}
    return {
        key: {name: value for name, value in record.items() if name not in _VARYING} for key, record in records.items()
    }


def log_of(folder: Path) -> str:
    """Return the last lines of the log of a schedule's drivers."""
    file = folder / "log.txt"
    return " | ".join(file.read_text().splitlines()[-12:]) if file.exists() else "no log"


@contextmanager
def environment_of(variables: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables until the context ends."""
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


@contextmanager
def paused_processes_continue() -> Iterator[None]:
    """Let every process that stopped itself continue after PAUSE_SECONDS, until the context ends."""
    ended = threading.Event()

    def watch() -> None:
        stopped_since: dict[int, float] = {}
        while not ended.wait(0.1):
            now, stopped = time.monotonic(), stopped_processes()
            stopped_since = {pid: stopped_since.get(pid, now) for pid in stopped}
            for pid in [pid for pid, since in stopped_since.items() if now - since > PAUSE_SECONDS]:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        for pid in stopped_processes():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def stopped_processes() -> list[int]:
    """Return the processes of this harness that are stopped."""
    return [pid for pid, state in children() if state == "T"]


def children() -> list[tuple[int, str]]:
    """Return the processes that the server of forks started, and their states."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            state, parent, *_ = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(parent) == _forkserver._forkserver_pid:
                found.append((int(entry.name), state))
    return found


def processes_left(folder: Path) -> list[str]:
    """Return the processes that still run some seconds after the last driver of a schedule has ended."""
    for _ in range(100):
        if not children():
            return []
        time.sleep(0.1)
    return [f"{len(children())} processes; {log_of(folder)}"]


def run_seeds(seeds: Sequence[int], *, with_bucket: bool, report: Any = lambda _outcome: None) -> list[Outcome]:
    """Run the schedules of these seeds, and return their outcomes."""
    folder = Path(tempfile.mkdtemp(prefix="theodolite-chaos-"))
    outcomes = []
    with faulty_bucket() as bucket:
        chaos = Chaos(folder, bucket)
        for seed in seeds:
            outcomes.append(chaos.run(draw_schedule(seed, with_bucket=with_bucket and seed % 2 == 1)))
            report(outcomes[-1])
    if not any(outcome.problems for outcome in outcomes):
        shutil.rmtree(folder)
    return outcomes


def summary(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Return the number of schedules, of faults by kind, and of problems by kind."""
    faults = Counter(kind for outcome in outcomes for kind in outcome.schedule.kinds)
    problems = Counter(kind for outcome in outcomes for kind in outcome.problems)
    return {
        "schedules": len(outcomes),
        "attempts": sum(outcome.attempts for outcome in outcomes),
        "seconds": round(sum(outcome.seconds for outcome in outcomes), 1),
        "slowest_schedule_seconds": round(max(outcome.seconds for outcome in outcomes), 1),
        "faults": dict(sorted(faults.items())),
        **{kind: problems[kind] for kind in ("lost", "doubled", "different", "hung", "crashed", "left_behind")},
        "seeds_with_problems": [outcome.schedule.seed for outcome in outcomes if outcome.problems],
    }
