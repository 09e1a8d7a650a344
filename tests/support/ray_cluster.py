"""A Ray cluster of its own for tests that submit jobs: other tests' Ray is left alone."""

import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pytest

BIN = Path(sys.executable).parent
SECONDS = 600  # of patience: beside other tests, a step takes several times its own time
START_ATTEMPTS = 3
TOKEN = "only-here"

T = TypeVar("T")


def free_port() -> int:
    """Return a port that is free, between those of Ray's workers and those that outgoing connections take."""
    while True:
        port = random.randrange(20_000, 32_768)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue


class Cluster:
    """A Ray head that asks for a token."""

    def __init__(self, folder: Path, gpus: int = 0) -> None:
        """Choose the ports; the node pretends to have these GPUs."""
        self.folder, self.gpus, self.dashboard, self.port = folder, gpus, free_port(), 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the head; try again if another process takes one of its ports in the meantime.

        Raises:
            RuntimeError: the head ends or does not answer; with what it printed.
        """
        for _ in range(START_ATTEMPTS):
            self._start_head()
            try:
                wait_for(self.answers, "the cluster to answer")
                return
            except AssertionError:
                self.kill()
        raise RuntimeError((self.folder / "ray.log").read_text()[-4000:])

    def _start_head(self) -> None:
        self.port = free_port()
        ports = {"port": self.port, "dashboard-port": self.dashboard, "dashboard-agent-listen-port": free_port()}
        options = [f"--{name}={number}" for name, number in ports.items()]
        command = [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", f"--num-gpus={self.gpus}"]
        command += ["--dashboard-host=127.0.0.1", "--object-store-memory=100000000", "--disable-usage-stats", *options]
        environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
        environment |= {"RAY_AUTH_TOKEN": TOKEN, "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
        with open(self.folder / "ray.log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)

    def processes(self, name: str) -> list[psutil.Process]:
        """Return the processes of the cluster whose names begin with `name`."""
        if self.process is None or self.process.poll() is not None:
            return []
        found = []
        for one in psutil.Process(self.process.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # also if it is a zombie
                if one.name().startswith(name):
                    found.append(one)
        return found

    def is_alive(self) -> bool:
        """Return whether the head runs and answers."""
        try:
            return self.process is not None and self.answers()
        except AssertionError:
            return False

    def answers(self) -> bool:
        """Return whether the cluster can be asked; raise AssertionError if its head has ended."""
        assert self.process is not None
        assert self.process.poll() is None, "the head has ended"
        try:
            with urllib.request.urlopen(self.request(""), timeout=30) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def request(self, submission: str) -> urllib.request.Request:
        """Return what asks the cluster of a submission, or of all."""
        return urllib.request.Request(f"{self.url}/api/jobs/{submission}", headers={"Authorization": f"Bearer {TOKEN}"})

    def kill(self) -> None:
        """Kill the head and everything it has started, jobs too, at once."""
        if self.process is None:
            return
        if self.process.poll() is None:  # else the head has ended, and has taken everything with it
            family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
            for one in family:
                if one.is_running():
                    one.kill()
            psutil.wait_procs(family, timeout=120)
            self.process.wait()
        self.process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"


def wait_for(condition: Callable[[], T], what: str) -> T:
    """Return the first true value of `condition`, which is called until the time limit."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.3)
    raise AssertionError(f"waited {SECONDS} s for {what}")


def kill_after_the_first_shard(
    monkeypatch: pytest.MonkeyPatch, module: Any, *, actors: int = 1, rank: int = 0, **callbacks: Any
) -> list[int]:
    """Let the first replica of `run_shards` in a module lose a rank after its first shard; return the killed processes.

    The replica must have this number of actors. `callbacks` take the place of those of the loop.
    """
    import ray

    run_shards = module.run_shards
    killed: list[int] = []

    def run(workers: Any, tasks: Any, watch: Any) -> None:
        assert len(workers[0].actors) == actors
        victim = ray.get(workers[0].actors[rank].process_id.remote())

        def committed(shard: Any, numbers: Any) -> None:
            if not killed:
                os.kill(victim, signal.SIGKILL)
                killed.append(victim)
            watch.committed(shard, numbers)

        run_shards(workers, tasks, replace(watch, committed=committed, **callbacks))

    monkeypatch.setattr(module, "run_shards", run)
    return killed
