"""A Ray cluster of its own for tests that submit jobs: other tests' Ray is left alone."""

import os
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil

BIN = Path(sys.executable).parent
SECONDS = 150
TOKEN = "only-here"

T = TypeVar("T")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Cluster:
    """A Ray head that asks for a token."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dashboard, self.port = folder, free_port(), 0
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.port = free_port()
        ports = {"port": self.port, "dashboard-port": self.dashboard, "dashboard-agent-listen-port": free_port()}
        options = [f"--{name}={number}" for name, number in ports.items()]
        command = [str(BIN / "ray"), "start", "--head", "--block", "--num-cpus=2", "--dashboard-host=127.0.0.1"]
        command += ["--object-store-memory=100000000", "--disable-usage-stats", *options]
        environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
        environment |= {"RAY_AUTH_TOKEN": TOKEN}
        with open(self.folder / "ray.log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        wait_for(lambda: answers(self.request("")), "the cluster to answer")

    def request(self, submission: str) -> urllib.request.Request:
        """Return what asks the cluster of a submission, or of all."""
        return urllib.request.Request(f"{self.url}/api/jobs/{submission}", headers={"Authorization": f"Bearer {TOKEN}"})

    def kill(self) -> None:
        """Kill the head and everything it has started, jobs too, at once."""
        if self.process is None:
            return
        family = [*psutil.Process(self.process.pid).children(recursive=True), psutil.Process(self.process.pid)]
        for one in family:
            if one.is_running():
                one.kill()
        psutil.wait_procs(family, timeout=20)
        self.process.wait()
        self.process = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.dashboard}"


def answers(request: urllib.request.Request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def wait_for(condition: Callable[[], T], what: str) -> T:
    """Return the first true value of `condition`, which is called until the time limit."""
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.3)
    raise AssertionError(f"waited {SECONDS} s for {what}")
