"""The processes of a survey without Ray: a driver, and replicas behind pipes, each with armed faults."""

import importlib
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import nullcontext, suppress
from functools import wraps
from itertools import count
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

from chaos.schedules import DRIVER_STEPS, MEMORY, REPLICA_STEPS, Fault
from theodolite.errors import StoreError, TheodoliteError
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite_jobs import capture_run
from theodolite_jobs.cluster import session, workers
from theodolite_jobs.cluster.replica import Replica
from theodolite_jobs.cluster.scheduling import DIED, ReplicaDiedError
from theodolite_jobs.cluster.session import Resources
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import survey

REPLICAS = 2
MAX_RESTARTS = 20
PROCESSES = get_context("forkserver")
PRELOADED = ["chaos.processes", "theodolite_jobs.capture.parity", "theodolite_jobs.capture.engine", "scipy.stats"]
"""Modules that the server of forks imports once, so that a process starts in milliseconds."""


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
        due = [fault for fault in faults if fault.call == number]
        for fault in due:
            if not fault.is_after:
                _happen(fault.action)
        result = function(*arguments, **options)
        for fault in due:
            if fault.is_after:
                _happen(fault.action)
        return result

    return call


def _happen(action: str) -> None:
    if action == "store error":
        raise StoreError("cannot write: 503 Service Unavailable (injected)")
    if action == MEMORY:
        raise torch.OutOfMemoryError("out of memory (injected)")
    number = {"kill": signal.SIGKILL, "terminate": signal.SIGTERM, "pause": signal.SIGSTOP}[action]
    os.kill(os.getpid(), number)


def start_driver(
    spec: SurveySpec, store: str, faults: Sequence[Fault], environment: Mapping[str, str], log: Path
) -> Any:
    """Start a driver in a process of its own, and return the process."""
    process = PROCESSES.Process(target=_drive, args=(spec, store, list(faults), dict(environment), log))
    process.start()
    return process


def _drive(spec: SurveySpec, store: str, faults: Sequence[Fault], environment: Mapping[str, str], log: Path) -> None:
    os.setpgid(0, 0)  # so that the harness finds what a driver leaves behind
    os.environ.update(environment)
    with log.open("a") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
        of_replicas = [fault for fault in faults if fault.process == "replica"]
        arm([fault for fault in faults if fault.process == "driver"], DRIVER_STEPS)
        capture_run.ABANDONED_SECONDS = 0.0  # what an earlier attempt left counts as abandoned at once
        session.ray_session = lambda _address: nullcontext()
        session.choose_resources = lambda *_, **__: Resources(REPLICAS, gpus=0, threads=1, cpus=1)
        workers.start_workers = lambda assignment, _resources, plans, tokens: _start_replicas(
            assignment, plans, tokens, of_replicas
        )
        try:
            survey(spec, Path(), Settings(store=store, replicas_wait_seconds=30), Console())
        except TheodoliteError as error:
            print(f"ended: {error}", flush=True)
            os._exit(1)
        except BaseException:
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(2)
        os._exit(0)


def _start_replicas(assignment: Any, plans: Any, tokens: Any, faults: Sequence[Fault]) -> list["ProcessWorker"]:
    probes = {name: workers.probe_prompts(tokens[name]) for name in plans}
    without_shards = {name: workers.replace(plan, shards=()) for name, plan in plans.items()}
    # The first replica has the faults, and only in its first life.
    return [
        ProcessWorker(assignment, without_shards, probes, faults if index == 0 else ()) for index in range(REPLICAS)
    ]


class ProcessWorker:
    """A replica in a process behind a pipe, with the interface that the scheduling loop needs."""

    def __init__(self, assignment: Any, plans: Any, probes: Any, faults: Sequence[Fault]) -> None:
        self._arguments = assignment, plans, probes
        self._faults = list(faults)
        self._restarts = 0
        self.expected: Any = None
        self._start()

    def _start(self) -> None:
        self._connection, theirs = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=_serve, args=(theirs, *self._arguments, self._faults), daemon=True)
        self._process.start()
        theirs.close()
        self._faults = []
        self._numbers, self._lock = count(), threading.Lock()
        self._waiting: dict[int, Future[Any]] = {}
        self._executing: int | None = None
        self._is_dead = False
        threading.Thread(target=self._receive, args=(self._connection,), daemon=True).start()
        self.placed = self._call("process_id")
        self.certify()

    def certify(self) -> None:
        self.ready = self._call("certify", self.expected)

    def capture(self, plan: Any, shard: Any, tokens: Any, halvings: int) -> "Future[Any]":
        result = self._call("capture", plan, shard, list(tokens), halvings)
        result.add_done_callback(self._on_captured)
        return result

    def probe(self, plan: Any, shard: Any, tokens: Any, halvings: int) -> "Future[Any]":
        return self._call("probe", plan, shard, list(tokens), halvings)

    def restart(self, _reason: str) -> "Future[Any] | None":
        if self._restarts == MAX_RESTARTS:
            return None
        self.kill()
        self._restarts += 1
        self._start()
        return self.ready

    def kill(self) -> None:
        self._process.kill()

    def _on_captured(self, result: "Future[Any]") -> None:
        if result.exception() is None:
            self._restarts = 0

    def _call(self, method: str, *arguments: Any) -> "Future[Any]":
        result: Future[Any] = Future()
        with self._lock:
            number = next(self._numbers)
            if self._is_dead:
                result.set_exception(ReplicaDiedError(DIED, "the replica is dead", was_executing=False))
                return result
            self._waiting[number] = result
        with suppress(OSError):  # the receiving thread sees the death too
            self._connection.send((number, method, arguments))
        return result

    def _receive(self, connection: Connection) -> None:
        waiting = self._waiting
        try:
            while True:
                number, kind, value = connection.recv()
                if kind == "started":
                    self._executing = number
                    continue
                self._executing = None
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


def _serve(connection: Connection, assignment: Any, plans: Any, probes: Any, faults: Sequence[Fault]) -> None:
    """Run the calls of a replica in order."""
    torch.set_num_threads(1)
    arm(faults, REPLICA_STEPS)
    replica = Replica(assignment, plans, probes)
    while True:
        try:
            number, method, arguments = connection.recv()
        except (EOFError, OSError):
            return  # the driver is dead
        connection.send((number, "started", None))
        try:
            message = number, "result", getattr(replica, method)(*arguments)
        except TheodoliteError as error:
            message = number, "error", type(error)(str(error))
        connection.send(message)
