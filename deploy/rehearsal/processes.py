"""Rehearse the deployment on one machine: run the commands of docker-compose.yml as processes instead of containers.

The script submits a small survey over HTTP to two Ray nodes and kills one node during the capture. The survey must
still succeed, and each counter in Prometheus must equal the sum of the commit records. The script replaces only the
hosts, ports and folders of the compose file.

Usage: python deploy/rehearsal/processes.py [--store URL] [--keep]
"""

import argparse
import json
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import yaml
from checks import (
    ROOT,
    SECONDS,
    SPEC_FILE,
    alert_states,
    answers,
    is_halfway,
    is_up,
    prometheus_counters,
    query,
    say,
    wait_for,
)
from records import counters

import theodolite
from theodolite.api.credentials import create_credential
from theodolite.client import Client
from theodolite.errors import JobError
from theodolite.store.runs import open_run

WORKERS = ("worker-cpu", "worker-cpu-2")
"""Two replicas of one service, as `docker compose up --scale worker-cpu=2` starts them."""

START_ATTEMPTS = 3

_GIVEN_PORTS: set[int] = set()

OWN_PORTS = {"head": (6379, 8265, 8080), "dask-scheduler": (8786, 8787), "dask-worker": (8787,), "api": (8000,)}
OWN_PORTS |= {"prometheus": (9090,), **dict.fromkeys(WORKERS, (8080,))}
"""Ports of each service in its container; the rehearsal maps each to a free port."""


class Rehearsal:
    """The services of the compose file as processes, with their data and logs in one folder."""

    def __init__(self, folder: Path, store: str | None) -> None:
        self.folder = folder
        self.services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        self.services[WORKERS[1]] = self.services[WORKERS[0]]
        self.ports = {name: {port: free_port() for port in ports} for name, ports in OWN_PORTS.items()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.starts: Counter[str] = Counter()
        self.store = store or f"file://{folder}/store"
        self.variables = {"THEODOLITE_REPLICAS": str(len(WORKERS)), "THEODOLITE_STORE": self.store}
        self.variables |= {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PIP_"))}
        self.folders = {
            "/run/secrets": folder / "secrets",
            "/etc/prometheus": folder / "etc",
            "/cache": Path(os.environ.get("THEODOLITE_CACHE", Path.home() / ".cache" / "theodolite")),
            **{f"/{name}": folder / name for name in ("store", "targets", "models", "prometheus", "tmp")},
        }
        for path in self.folders.values():
            path.mkdir(parents=True, exist_ok=True)

    def address(self, service: str, port: int) -> str:
        """Return the host:port on this machine for a service's port in its container."""
        return f"127.0.0.1:{self.ports[service][port]}"

    def translated(self, text: str, service: str) -> str:
        """Return a text of the compose file with its variables, hosts, ports and folders replaced for this machine."""
        text = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda match: self.variables.get(match[1], match[2] or ""), text)
        hosts = "|".join(sorted(self.ports, key=len, reverse=True))
        folders = "|".join(self.folders)
        own = "|".join(map(str, self.ports[service]))
        # One pass, so that replacements are not replaced again.
        pattern = (
            rf"\b(?P<host>{hosts}):(?P<port>\d+)|(?<![\w./])(?P<folder>{folders})(?![\w.])|(?<!\d)(?P<own>{own})(?!\d)"
        )

        def replacement(match: re.Match[str]) -> str:
            if match["host"]:
                return self.address(match["host"], int(match["port"]))
            return str(self.folders[match["folder"]] if match["folder"] else self.ports[service][int(match["own"])])

        return re.sub(pattern, replacement, text).replace("0.0.0.0", "127.0.0.1")

    def environment(self, service: str) -> dict[str, str]:
        """Return the environment of a service's process: the compose file's variables and this machine's PATH."""
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.folder)}
        own |= {"THEODOLITE_CACHE": str(self.folders["/cache"]), "RAY_USAGE_STATS_ENABLED": "0"}
        own |= {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        for name, value in self.services[service].get("environment", {}).items():
            if value is not None:
                own[name] = self.translated(str(value), service)
            elif name in self.variables:
                own[name] = self.variables[name]
        return own

    def command(self, service: str) -> list[str]:
        """Return a service's command for this machine; Ray nodes get options that avoid conflicts on one host."""
        words = self.services[service]["command"]
        command = [self.translated(str(word), service) for word in words]
        if words[0] == "ray":
            command += [f"--dashboard-agent-listen-port={free_port()}", "--node-ip-address=127.0.0.1"]
            command += [] if "--head" in words else ["--num-cpus=1"]
        return ["prometheus", *command] if service == "prometheus" else command

    def start(self, service: str) -> None:
        """Start a service and write its output to a log file."""
        log = (self.folder / f"{service}.log").open("ab")
        command = self.command(service)
        self.processes[service] = subprocess.Popen(
            command, env=self.environment(service), stdout=log, stderr=log, start_new_session=True, cwd=self.folder
        )
        self.starts[service] += 1
        say(f"{service}: {' '.join(command)}")

    def start_again(self, service: str) -> None:
        """Start a service that has ended before it answered, at most twice; compose does so too, without a limit.

        Ray gives a node half a minute to start, which is too short on a busy machine.
        """
        process = self.processes[service]
        if process.poll() is not None and self.starts[service] < START_ATTEMPTS:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # what it started still has its ports
            self.start(service)
        self.check()

    def stop(self, service: str, signal_number: int = signal.SIGTERM) -> None:
        """Stop a service and its child processes."""
        process = self.processes.pop(service)
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(signal_number)
        alive = family if signal_number == signal.SIGKILL else psutil.wait_procs(family, timeout=15)[1]
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def check(self) -> None:
        """Raise SystemExit if a service has ended."""
        ended = [name for name, process in self.processes.items() if process.poll() is not None]
        if ended:
            raise SystemExit(f"{ended[0]} has ended; see {self.folder / ended[0]}.log")

    def write_prometheus(self, token: str) -> None:
        """Write Prometheus' configuration for this machine, with static targets in place of DNS service discovery."""
        (self.folders["/run/secrets"] / "metrics_token").write_text(token)
        shutil.copytree(ROOT / "deploy/prometheus/rules", self.folders["/etc/prometheus"] / "rules", dirs_exist_ok=True)
        settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        for scrape_job in settings["scrape_configs"]:
            scrape_job["scrape_interval"] = "1s"
            for discovery in scrape_job.pop("dns_sd_configs", []):
                names = [name for name in self.ports for prefix in discovery["names"] if name.startswith(prefix)]
                targets = [f"{name}:{discovery['port']}" for name in names]
                scrape_job.setdefault("static_configs", []).append({"targets": targets})
            for discovery in scrape_job.get("file_sd_configs", []):
                discovery["refresh_interval"] = "1s"
        settings["global"]["evaluation_interval"] = "1s"
        text = self.translated(yaml.safe_dump(settings), "prometheus")
        (self.folders["/etc/prometheus"] / "prometheus.yml").write_text(text)


def main() -> None:
    """Run the rehearsal and print its result as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", help="URL of the store; the default is a temporary folder")
    parser.add_argument("--keep", action="store_true", help="keep the logs and data after a success")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    try:
        print(json.dumps(rehearse(folder, options.store)))
    except BaseException:
        options.keep = True
        say(f"the logs are in {folder}")
        raise
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def rehearse(folder: Path, store: str | None) -> dict[str, Any]:
    """Run a survey on the deployment while a node is killed; return the counters and states to compare."""
    start = time.monotonic()
    stage = Rehearsal(folder, store)
    (stage.folders["/run/secrets"] / "ray_token").write_text(secrets.token_hex(16))
    tokens = [create_credential(stage.store, scopes)[0] for scopes in (["read"], ["read", "submit"])]
    stage.write_prometheus(tokens[0])
    has_prometheus = shutil.which("prometheus") is not None
    with started(stage, has_prometheus):
        client = Client(f"http://{stage.address('api', 8000)}", tokens[1])
        wait_for(lambda: is_up(f"{client.url}/readyz"), "the service to be ready", stage.check)
        job = client.submit(SPEC_FILE)
        wait_for(lambda: is_halfway(job), "the survey to be halfway", stage.check)
        stage.stop(WORKERS[0], signal.SIGKILL)
        say(f"killed {WORKERS[0]} after {job.progress}")
        try:
            reader = job.wait(timeout=SECONDS)
        except JobError:
            say(f"the end of the job's output:\n{job.logs()[-6000:]}")
            raise
        committed = counters(open_run(stage.store, reader.id))
        seen = {
            "run_id": reader.id,
            "job": job.describe(),
            "curve_points": int(reader.curves(contrast="refusal")["value"].size),
            "committed": committed,
        }
        if has_prometheus:
            seen |= prometheus_findings(f"http://{stage.address('prometheus', 9090)}", committed)
        else:
            say("Prometheus is not installed on this machine (Debian package prometheus): its part was not rehearsed")
    seen["seconds"] = round(time.monotonic() - start, 1)
    return seen


def prometheus_findings(url: str, committed: dict[str, float]) -> dict[str, Any]:
    """Return counters, retries and alerts; raises SystemExit if they do not show that a node was killed."""
    seen = prometheus_counters(url, committed)
    retries = query(url, "sum(max_over_time(theodolite_shard_retries_total[10m]))")
    if not retries:
        raise SystemExit("a node was killed, but no shard was requeued")
    states = alert_states(url)
    if states["TheodoliteNodeDown"] == "inactive":
        raise SystemExit("a node was killed, but the alert TheodoliteNodeDown is inactive")
    for name in ("TheodoliteHeadDown", "TheodoliteApiMissing"):
        if states[name] != "inactive":
            raise SystemExit(f"the alert {name} is {states[name]}, although nothing is missing")
    return {"prometheus": seen, "retries": retries, "alerts": states}


@contextmanager
def started(stage: Rehearsal, has_prometheus: bool) -> Iterator[None]:
    """Start the services in the order of their dependencies, and stop them in reverse order when the context ends."""
    names = ["dask-scheduler", "head", *WORKERS, "dask-worker", "api", *(["prometheus"] if has_prometheus else [])]
    try:
        for name in names:
            stage.start(name)
            # One at a time, because Ray gives a node half a minute to start.
            for port in {8265, 8080} & set(OWN_PORTS[name]):
                wait_for(partial(answers, stage.address(name, port)), name, partial(stage.start_again, name))
        yield
    finally:
        for name in reversed(list(stage.processes)):
            stage.stop(name)


def free_port() -> int:
    """Return a free port that no service of the rehearsal has got before: the system may offer one twice."""
    while True:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = int(probe.getsockname()[1])
        if port not in _GIVEN_PORTS:
            _GIVEN_PORTS.add(port)
            return port


if __name__ == "__main__":
    say(f"Theodolite {theodolite.__version__}")
    main()
