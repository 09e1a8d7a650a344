"""Run a schedule of faults to its end, and compare the store with that of an undisturbed run."""

import atexit
import os
import random
import shutil
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.forkserver import _forkserver  # its process is the parent of all others
from pathlib import Path
from subprocess import run as execute
from threading import Timer
from typing import Any

from distributed import LocalCluster
from support.faulty_bucket import LATE_SECONDS, FaultyBucket, faulty_bucket
from support.tiny_survey import EFFECTS, save_model, spec_of

from chaos.outcomes import Outcome, batches_of, compare, contents, lacking, open_only_run, records_of
from chaos.processes import DASK_ADDRESS, FIRED, start_driver
from chaos.recapture import recaptured
from chaos.schedules import (
    COUNT,
    DISKS,
    DRIVER_STEPS,
    EVERY,
    POISONED,
    REPLICA_STEPS,
    Fault,
    Schedule,
    draw_schedule,
)
from theodolite.errors import TheodoliteError
from theodolite.query.verification import verify
from theodolite.store.runs import Run

SECONDS = 120.0
"""Time without a line in the log after which an attempt counts as hung."""

MAX_ATTEMPTS = 12
"""Undisturbed attempts after which a survey counts as lost; a store that fails at random may end a few of them."""

PAUSE_SECONDS = 1.0

CAPTURE = {"shard_prompts": 5, "batch_tokens": 200, "keep": 10}
"""Two of the three shards of a set are stored, and one is reduced; effects need ten stored prompts."""

PROMPTS, SETS = 13, ("harmful", "harmless")

_chaos: "Chaos"  # the harness of a process of the pool


class Chaos:
    """A tiny model, the undisturbed runs of its survey, a bucket and, for schedules with Dask, a cluster."""

    def __init__(self, folder: Path, bucket: FaultyBucket, dask: LocalCluster | None) -> None:
        """Run the survey without faults, once without and once with a prompt that kills its replica."""
        self.folder, self.bucket, self.dask = folder, bucket, dask
        sets = {name: {"source": f"builtin:{name}", "limit": PROMPTS, "template": "none"} for name in SETS}
        self.spec = spec_of(save_model(folder / "model"), prompts=sets, capture=CAPTURE, effects=EFFECTS)
        counting = [
            *(Fault("driver", step, EVERY, COUNT, is_after=False) for step in DRIVER_STEPS),
            *(Fault("replica", step, EVERY, COUNT, is_after=False) for step in REPLICA_STEPS),
        ]
        run, steps = self._undisturbed("plain", counting)
        self.calls = Counter(steps)
        never = [step for step in (*DRIVER_STEPS, *REPLICA_STEPS) if not self.calls[step]]
        assert not never, f"a survey never comes to {never}: their faults would not happen"
        self.size = sum(file.stat().st_size for file in Path(run.url).rglob("*") if file.is_file())
        poisoned, _ = self._undisturbed("poison", [POISONED])
        self.whole = {False: run, True: poisoned}

    def _undisturbed(self, name: str, faults: Sequence[Fault]) -> tuple[Run, list[str]]:
        """Return the run of an attempt that must end well, and what its faults recorded."""
        folder, outcome = self.folder / name, Outcome(Schedule(-1, (), 1, ()))
        folder.mkdir()
        ended = self._attempt(str(folder / "store"), [faults], outcome, folder)
        assert ended, log_of(folder)
        assert outcome.problems == {}
        run = open_only_run(str(folder / "store"))
        assert list(verify(run)) == []
        return run, fired(folder)

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
        self.bucket.disturbed.clear()
        always = [POISONED] if schedule.with_poison else []
        with bad_disk(schedule.disk, folder / "store", self.size, draw) as wait_for_disk:
            for faults in schedule.attempts:
                self._attempt(store, [[*faults, *always]] * schedule.drivers, outcome, folder)
                outcome.lost += lacking(store, self.whole[schedule.with_poison])
            self.bucket.choose = lambda _method, _key: None
            time.sleep(LATE_SECONDS if "late listing" in schedule.store_faults else 0)
            wait_for_disk()
            for _ in range(MAX_ATTEMPTS):
                if self._attempt(store, [always], outcome, folder):
                    break
            else:
                outcome.lost.append(f"the survey did not end in {MAX_ATTEMPTS} undisturbed attempts: {log_of(folder)}")
            try:
                run, whole = open_only_run(store), self.whole[schedule.with_poison]
                is_halved = schedule.with_little_memory and batches_of(run) != batches_of(whole)
                expected = recaptured(run, whole, outcome) if is_halved else (contents(whole), records_of(whole))
                compare(run, *expected, outcome)
            except TheodoliteError as error:
                outcome.lost.append(str(error))
            outcome.left_behind += [str(file) for file in Path(store).rglob("*#*")]
        outcome.left_behind += processes_left(folder)
        outcome.faults = [*fired(folder), *(f"store: {fault}" for _, _, fault in self.bucket.disturbed)]
        outcome.faults += ["two drivers"] * (schedule.drivers - 1)
        outcome.faults += [disk for disk, error in DISKS.items() if error in text_of(folder)]
        outcome.seconds = time.monotonic() - begin
        if not outcome.problems:
            shutil.rmtree(folder)
        return outcome

    def _attempt(self, store: str, faults_of_drivers: Sequence[Sequence[Any]], outcome: Outcome, folder: Path) -> bool:
        """Run drivers at the same time; return whether one of them finished the survey."""
        outcome.attempts += 1
        environment = self.bucket.environment | {"THEODOLITE_CACHE": str(self.folder / "cache")}
        environment[FIRED] = str(folder / "fired.txt")
        if outcome.schedule.with_dask:
            assert self.dask is not None
            environment[DASK_ADDRESS] = self.dask.scheduler_address
        drivers = [
            start_driver(self.spec, store, faults, environment, folder / "log.txt") for faults in faults_of_drivers
        ]
        with paused_processes_continue():
            for driver in drivers:
                if not ends(driver, folder / "log.txt"):
                    outcome.hung.append(f"attempt {outcome.attempts}: {log_of(folder)}")
                    driver.kill()
                    driver.join()
        for driver in drivers:
            if driver.exitcode not in (0, 1, -signal.SIGKILL, -signal.SIGTERM):
                outcome.crashed.append(f"attempt {outcome.attempts}: {log_of(folder)}")
        return any(driver.exitcode == 0 for driver in drivers)


def ends(driver: Any, log: Path) -> bool:
    """Wait for a driver; return whether it ended before its log was silent for SECONDS."""
    begin = time.time()
    while driver.is_alive():
        driver.join(1)
        last_line = log.stat().st_mtime if log.exists() else begin
        if time.time() - max(begin, last_line) > SECONDS:
            return False
    return True


def fired(folder: Path) -> list[str]:
    """Return the faults that happened in the processes of a schedule."""
    file = folder / "fired.txt"
    return file.read_text().splitlines() if file.exists() else []


@contextmanager
def bad_disk(kind: str | None, folder: Path, size: int, draw: random.Random) -> Iterator[Callable[[], None]]:
    """Give a store a disk of its own that is full or read-only for some seconds; needs the right to mount.

    Yields a function that waits until the disk is well.
    """
    if kind is None or os.geteuid() != 0:
        yield lambda: None
        return
    folder.mkdir()
    space = int(size * (draw.uniform(0.1, 1.2) if kind == "full disk" else 10))
    execute(["mount", "-t", "tmpfs", "-o", f"size={space}", "tmpfs", str(folder)], check=True)
    seconds = draw.uniform(0.5, 4)
    changes = [(seconds, "remount,ro"), (seconds + 2, "remount,rw")]
    if kind == "full disk":
        changes = [(seconds + 2, f"remount,size={10 * size}")]

    def change(option: str) -> None:
        execute(["mount", "-o", option, str(folder)], check=True)

    timers = [Timer(after, change, [option]) for after, option in changes]
    for timer in timers:
        timer.start()

    def wait() -> None:
        for timer in timers:
            timer.join()

    try:
        yield wait
    finally:
        wait()
        execute(["umount", "--lazy", str(folder)], check=True)


def text_of(folder: Path) -> str:
    """Return the log of a schedule's drivers."""
    file = folder / "log.txt"
    return file.read_text() if file.exists() else "no log"


def log_of(folder: Path) -> str:
    """Return the last lines of the log of a schedule's drivers."""
    return " | ".join(text_of(folder).splitlines()[-12:])


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


def run_seeds(
    seeds: Iterable[int],
    *,
    with_bucket: bool = False,
    with_dask: bool = False,
    processes: int = 1,
    report: Callable[[Outcome], None] = lambda _outcome: None,
) -> list[Outcome]:
    """Run the schedules of these seeds, some at the same time, and return their outcomes."""
    folder = Path(tempfile.mkdtemp(prefix="theodolite-chaos-"))
    outcomes = []
    with ProcessPoolExecutor(processes, get_context("spawn"), _open_harness, (folder, with_dask)) as pool:
        for future in as_completed([pool.submit(_run_seed, seed, with_bucket, with_dask) for seed in seeds]):
            outcomes.append(future.result())
            report(outcomes[-1])
    if not any(outcome.problems for outcome in outcomes):
        shutil.rmtree(folder)
    return sorted(outcomes, key=lambda outcome: outcome.schedule.seed)


def _open_harness(folder: Path, with_dask: bool) -> None:
    """Give this process of the pool a harness of its own, until the process ends."""
    global _chaos
    stack = ExitStack()
    atexit.register(stack.close)
    bucket = stack.enter_context(faulty_bucket())
    stack.enter_context(environment_of(bucket.environment))
    dask = (
        stack.enter_context(LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None))
        if with_dask
        else None
    )
    _chaos = Chaos(Path(tempfile.mkdtemp(dir=folder)), bucket, dask)


def _run_seed(seed: int, with_bucket: bool, with_dask: bool) -> Outcome:
    has_bucket = with_bucket and seed % 4 == 1  # these take several times as long
    return _chaos.run(draw_schedule(seed, _chaos.calls, with_bucket=has_bucket, with_dask=with_dask))
