"""The processes of a survey without Ray: a driver, and replicas behind pipes, each with armed faults."""

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, nullcontext, suppress
from functools import wraps
from itertools import count
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from distributed import Client
from support.forks import PROCESSES, share_forks, start_forks
from support.short_reports import short_reports

from chaos.schedules import COUNT, DASK, DRIVER_STEPS, EVERY, OUT_OF_MEMORY, POISON, REPLICA_STEPS, Fault
from theodolite.errors import CaptureError, StoreError, TheodoliteError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite_jobs import capture_run
from theodolite_jobs.capture.plan import ShardTask
from theodolite_jobs.cluster import replicas, scheduling
from theodolite_jobs.cluster.replica import REPLICA_ENVIRONMENT, Assignment, Replica
from theodolite_jobs.cluster.scheduling import DIED, IN_FLIGHT, Dispatched, ReplicaDiedError
from theodolite_jobs.cluster.session import Resources
from theodolite_jobs.cluster.write_queue import MAX_SHARDS
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

DASK_ADDRESS = "CHAOS_DASK_ADDRESS"
"""Environment variable of a driver with the address of the Dask scheduler, in schedules that have one."""

FIRED = "CHAOS_FIRED"
"""Environment variable with the file to which each process appends the faults that happen, one a line."""

REPLICAS = 2
MAX_RESTARTS = 20


def arm(faults: Sequence[Fault], steps: Mapping[str, str]) -> None:
    """Let the n-th call of a step in this process have its fault."""
    for step in {fault.step for fault in faults}:
        module, name = steps[step].split(":")
        owner = importlib.import_module(module)
        *outer, last = name.split(".")
        for part in outer:
            owner = getattr(owner, part)
        own = [fault for fault in faults if fault.step == step]
        setattr(owner, last, _disturbed(getattr(owner, last), own))


def _disturbed(function: Callable[..., Any], faults: Sequence[Fault]) -> Callable[..., Any]:
    calls = count(1)

    @wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        number = next(calls)
        due = [fault for fault in faults if fault.call in (number, EVERY)]
        if len(options.get("input_ids", ())) == 1:  # one prompt always fits into memory
            due = [fault for fault in due if fault.action != OUT_OF_MEMORY]
        for fault in due:
            if not fault.is_after:
                _happen(fault)
        result = function(*arguments, **options)
        for fault in due:
            if fault.is_after:
                _happen(fault)
        return result

    return call


def _happen(fault: Fault) -> None:
    record(fault.step if fault.action == COUNT else str(fault))
    action = fault.action
    if action == COUNT:
        return
    if action == "store error":
        raise StoreError("cannot write: 503 Service Unavailable (injected)")
    if action == OUT_OF_MEMORY:
        raise torch.OutOfMemoryError("CUDA out of memory (injected)")
    if action == DASK:
        with Client(os.environ[DASK_ADDRESS]) as client:
            pids = client.run(os.getpid, on_error="ignore").values()  # another worker may be restarting
        with suppress(StopIteration, ProcessLookupError):
            os.kill(next(iter(pids)), signal.SIGKILL)
        return
    number = {"kill": signal.SIGKILL, POISON: signal.SIGKILL, "terminate": signal.SIGTERM, "pause": signal.SIGSTOP}[
        action
    ]
    os.kill(os.getpid(), number)


def record(happened: str) -> None:
    """Append what happened to the file of the harness."""
    if FIRED in os.environ:
        with Path(os.environ[FIRED]).open("a") as file:
            file.write(f"{happened}\n")


def start_driver(
    spec: SurveySpec, store: str, faults: Sequence[Fault], environment: Mapping[str, str], log: Path
) -> Any:
    """Start a driver in a process of its own, and return the process."""
    address = start_forks()
    process = PROCESSES.Process(target=_drive, args=(spec, store, list(faults), dict(environment), log, address))
    process.start()
    return process


def _drive(
    spec: SurveySpec, store: str, faults: Sequence[Fault], environment: Mapping[str, str], log: Path, address: str
) -> None:
    share_forks(address)
    os.environ.update(environment)
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        scheduling.PAUSE_SECONDS = 0.1
        arm([fault for fault in faults if fault.process == "driver"], DRIVER_STEPS)
        capture_run.ABANDONED_SECONDS = 0.0  # what an earlier attempt left counts as abandoned at once
        try:
            dask = os.environ.get(DASK_ADDRESS)
            replica_faults = [fault for fault in faults if fault.process == "replica"]
            with capture_without_ray(replica_faults), short_reports():
                survey(spec, Path(), Settings(store=store, replicas_wait_seconds=30, dask_address=dask), Console())
        except TheodoliteError as error:
            print(f"ended: {error}", flush=True)
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)
        os._exit(0)


@contextmanager
def capture_without_ray(faults: Sequence[Fault] = (), threads: int = 1) -> Iterator[None]:
    """Let the drivers of this process capture with replicas behind pipes instead of Ray's, until the context ends.

    Each replica computes with `threads` threads.
    """

    poison = [fault for fault in faults if fault.action == POISON]
    of_first: list[Sequence[Fault]] = []

    def choose_resources(requested: int | None, *_: Any, **__: Any) -> Resources:
        of_first[:] = [[fault for fault in faults if fault.action != POISON]]
        return Resources(requested or REPLICAS, gpus=0, threads=threads, cpus=1)

    def start_worker(assignment: Any, _resources: Resources, replica_class: type[Replica]) -> ProcessWorker:
        # The first replica has the faults, and only in its first life; poison kills every life of each.
        return ProcessWorker(replica_class, assignment, of_first.pop() if of_first else (), poison)

    start_forks()
    with (
        patch.object(replicas, "ray_session", lambda _address, _message: nullcontext()),
        patch.object(replicas, "choose_resources", choose_resources),
        patch.object(replicas, "RayWorker", start_worker),
        # On a busy machine the processes start slowly; without Ray, nothing says what is free.
        patch.object(replicas, "has_node_for", lambda _resources: True),
        patch.object(replicas, "describe_free", lambda: "processes start slowly"),
    ):
        yield


class ProcessWorker:
    """A replica in a process behind a pipe, with the interface that the scheduling loop needs."""

    def __init__(
        self,
        replica_class: type[Replica],
        assignment: Assignment,
        faults: Sequence[Fault],
        poison: Sequence[Fault],
    ) -> None:
        self._class, self._assignment = replica_class, assignment
        self._faults, self._poison = list(faults), list(poison)
        self._restarts = 0
        self.expected: Any = None
        self._start()

    def _start(self) -> None:
        self._connection, theirs = PROCESSES.Pipe()
        environment = {**os.environ, **REPLICA_ENVIRONMENT}
        arguments = theirs, self._class, self._assignment, self._faults, self._poison, environment
        self._process = PROCESSES.Process(target=_serve, args=arguments, daemon=True)
        self._process.start()
        theirs.close()
        self._faults = []
        self._numbers, self._lock = count(), threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._captured: dict[int, Future[Any]] = {}
        self._executing: int | None = None
        self._is_dead = False
        threading.Thread(target=self._receive, args=(self._connection,), daemon=True).start()
        self.placed = self._call("process_id")
        self.certify()

    def certify(self) -> None:
        self.ready = self._call("certify", self.expected)

    def loading(self) -> Future[None]:
        counts_nothing: Future[None] = Future()
        counts_nothing.set_result(None)
        return counts_nothing

    def capture(self, task: ShardTask) -> Dispatched:
        captured: Future[Any] = Future()
        committed = self._call("capture", task, captured=captured)
        committed.add_done_callback(self._on_committed)
        return Dispatched(captured, committed)

    def probe(self, task: ShardTask) -> "Future[Any]":
        return self._call("probe", task)

    def restart(self, _reason: str) -> "Future[Any] | None":
        if self._restarts == MAX_RESTARTS:
            return None
        self.kill()
        self._restarts += 1
        self._start()
        return self.ready

    def kill(self) -> None:
        self._process.kill()

    def _on_committed(self, result: "Future[Any]") -> None:
        if result.exception() is None:
            self._restarts = 0

    def _call(self, method: str, *arguments: Any, captured: "Future[Any] | None" = None) -> "Future[Any]":
        result: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            if self._is_dead:
                result.set_exception(ReplicaDiedError(DIED, "the replica is dead", was_executing=False))
                return result
            self._waiting[number] = result
            if captured is not None:
                self._captured[number] = captured
        with suppress(OSError):  # the receiving thread sees the death too
            self._connection.send((number, method, arguments))
        return result

    def _receive(self, connection: Connection) -> None:
        waiting, captured = self._waiting, self._captured
        try:
            while True:
                number, kind, value = connection.recv()
                if kind == "started":
                    self._executing = number
                    continue
                if self._executing == number:
                    self._executing = None
                if kind == "captured":
                    captured.pop(number).set_result(None)
                    continue
                with self._lock:
                    result = waiting.pop(number)
                if kind == "result":
                    result.set_result(value)
                else:
                    result.set_exception(value)
        except (EOFError, OSError):
            with self._lock:
                self._is_dead = self._waiting is waiting or self._is_dead
                lost = list(waiting.items())
            for number, result in lost:
                executing = number == self._executing
                result.set_exception(ReplicaDiedError(DIED, "its process ended", was_executing=executing))


def _serve(
    connection: Connection,
    replica_class: type[Replica],
    assignment: Assignment,
    faults: Sequence[Fault],
    poison: Sequence[Fault],
    environment: Mapping[str, str],
) -> None:
    """Run the calls of a replica in order."""
    os.environ.clear()  # the server of forks started with the variables of another test
    os.environ.update(environment)
    torch.set_num_threads(1)
    arm(faults, REPLICA_STEPS)
    replica = replica_class(assignment)
    lock, writers = threading.Lock(), ThreadPoolExecutor(IN_FLIGHT + MAX_SHARDS)

    def send(*message: Any) -> None:
        with lock, suppress(OSError):  # the driver may be dead
            connection.send(message)

    def run(number: int, call: Callable[..., Any], *arguments: Any) -> None:
        try:
            send(number, "result", call(*arguments))
        except TheodoliteError as error:
            send(number, "error", type(error)(str(error)))
        except Exception as error:
            traceback.print_exc()
            send(number, "error", CaptureError(f"{type(error).__name__}: {error}"))

    while True:
        try:
            number, method, arguments = connection.recv()
        except (EOFError, OSError):
            os._exit(0)  # the driver is dead
        send(number, "started", None)
        for fault in _due(poison, *arguments) if method in ("capture", "probe") else ():
            _happen(fault)
        if method == "capture":
            with suppress(Exception):  # `written` raises it too
                replica.capture(number, *arguments)
            send(number, "captured", None)
            writers.submit(run, number, replica.written, number)
        else:
            run(number, getattr(replica, method), *arguments)


def _due(poison: Sequence[Fault], task: ShardTask) -> list[Fault]:
    """Return the faults of the poison prompts that a task would run."""
    samples = {sample for batch in task.shard.batches for sample in batch}
    return [fault for fault in poison if fault.step == task.shard.prompt_set and fault.call in samples]
