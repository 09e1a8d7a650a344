"""Rehearse the deployment on one machine: the very commands of docker-compose.yml, as processes instead of containers.

Two Ray nodes take a small survey over HTTP; one of them is killed on the way; the survey must still end, and every
counter that Prometheus has seen must be what the commit records say. Hosts, ports and folders of the compose file are
replaced by this machine's, and nothing else, so that what is rehearsed is what is deployed.

Usage: python deploy/rehearse.py [--store URL] [--keep]
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
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import psutil
import yaml

import theodolite
from theodolite.api.credentials import create_token
from theodolite.client import Client, Job
from theodolite.store.commits import read_commits
from theodolite.store.runs import open_run

ROOT = Path(__file__).resolve().parents[1]
SPEC = ROOT / "jobs/theodolite_jobs/specs/rehearsal.yaml"
SECONDS = 180
WORKERS = ("worker-cpu", "worker-cpu-2")
"""Two of the same kind, as `docker compose up --scale worker-cpu=2` would start them."""

OWN_PORTS = {"head": (6379, 8265, 8080), "dask-scheduler": (8786, 8787), "dask-worker": (8787,), "api": (8000,)}
OWN_PORTS |= {"prometheus": (9090,), **dict.fromkeys(WORKERS, (8080,))}
"""Which ports a service listens on inside its container; here each gets a free one."""


class Rehearsal:
    """The services of the compose file as processes, in a folder of their own."""

    def __init__(self, folder: Path, store: str | None) -> None:
        self.folder = folder
        self.services: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
        self.services[WORKERS[1]] = self.services[WORKERS[0]]
        self.ports = {name: {port: free_port() for port in ports} for name, ports in OWN_PORTS.items()}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.given = {"THEODOLITE_REPLICAS": str(len(WORKERS)), "THEODOLITE_STORE": store or f"file://{folder}/store"}
        self.given |= {name: value for name, value in os.environ.items() if name.startswith(("AWS_", "PIP_"))}
        self.places = {
            "/run/secrets": folder / "secrets",
            "/etc/prometheus": folder / "etc",
            "/cache": Path(os.environ.get("THEODOLITE_CACHE", Path.home() / ".cache" / "theodolite")),
            **{f"/{name}": folder / name for name in ("store", "targets", "models", "prometheus", "tmp")},
        }
        for place in self.places.values():
            place.mkdir(parents=True, exist_ok=True)

    @property
    def store(self) -> str:
        """Where runs are."""
        return self.given["THEODOLITE_STORE"]

    def place(self, service: str, port: int) -> str:
        """Return where a service's port is on this machine."""
        return f"127.0.0.1:{self.ports[service][port]}"

    def translated(self, text: str, service: str) -> str:
        """Return a word of a service's command or environment with this machine's hosts, ports and folders."""
        text = re.sub(r"\$\{(\w+)(?::-([^}]*))?\}", lambda found: self.given.get(found[1], found[2] or ""), text)
        hosts = "|".join(sorted(self.ports, key=len, reverse=True))
        folders = "|".join(self.places)
        own = "|".join(map(str, self.ports[service]))
        # All in one go, so that nothing is found in what was put there.
        pattern = (
            rf"\b(?P<host>{hosts}):(?P<port>\d+)|(?<![\w./])(?P<place>{folders})(?![\w.])|(?<!\d)(?P<own>{own})(?!\d)"
        )

        def here(found: re.Match[str]) -> str:
            if found["host"]:
                return self.place(found["host"], int(found["port"]))
            return str(self.places[found["place"]] if found["place"] else self.ports[service][int(found["own"])])

        return re.sub(pattern, here, text).replace("0.0.0.0", "127.0.0.1")

    def environment(self, service: str) -> dict[str, str]:
        """Return what a service's process finds in its environment: the compose file's, and this machine's path."""
        own = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.folder)}
        own |= {"THEODOLITE_CACHE": str(self.places["/cache"]), "RAY_USAGE_STATS_ENABLED": "0"}
        own |= {name: os.environ[name] for name in ("PYTHONPATH", "VIRTUAL_ENV") if name in os.environ}
        for name, value in self.services[service].get("environment", {}).items():
            if value is not None:
                own[name] = self.translated(str(value), service)
            elif name in self.given:
                own[name] = self.given[name]
        return own

    def command(self, service: str) -> list[str]:
        """Return a service's command for this machine; Ray nodes, which share it, also get what tells them apart."""
        words = self.services[service]["command"]
        command = [self.translated(str(word), service) for word in words]
        if words[0] == "ray":
            command += [f"--dashboard-agent-listen-port={free_port()}", "--node-ip-address=127.0.0.1"]
            command += [] if "--head" in words else ["--num-cpus=1"]
        return ["prometheus", *command] if service == "prometheus" else command

    def start(self, service: str) -> None:
        """Start a service; what it prints goes into a file."""
        log = (self.folder / f"{service}.log").open("ab")
        command = self.command(service)
        self.processes[service] = subprocess.Popen(
            command, env=self.environment(service), stdout=log, stderr=log, start_new_session=True, cwd=self.folder
        )
        say(f"{service}: {' '.join(command)}")

    def stop(self, service: str, how: int = signal.SIGTERM) -> None:
        """Stop a service and everything that it started."""
        process = self.processes.pop(service)
        family = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
        process.send_signal(how)
        for one in family if how == signal.SIGKILL else []:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        _, alive = psutil.wait_procs(family, timeout=15)
        for one in alive:
            with suppress(psutil.NoSuchProcess):
                one.kill()
        try:
            process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def write_prometheus(self, token: str) -> None:
        """Write Prometheus' configuration with this machine's places; a name that DNS would tell is written out."""
        (self.places["/run/secrets"] / "metrics_token").write_text(token)
        shutil.copytree(ROOT / "deploy/prometheus/rules", self.places["/etc/prometheus"] / "rules", dirs_exist_ok=True)
        settings = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
        for job in settings["scrape_configs"]:
            job["scrape_interval"] = "1s"
            for found in job.pop("dns_sd_configs", []):
                names = [name for name in self.ports for asked in found["names"] if name.startswith(asked)]
                targets = [f"{name}:{found['port']}" for name in names]
                job.setdefault("static_configs", []).append({"targets": targets})
            for found in job.get("file_sd_configs", []):
                found["refresh_interval"] = "1s"
        settings["global"]["evaluation_interval"] = "1s"
        text = self.translated(yaml.safe_dump(settings), "prometheus")
        (self.places["/etc/prometheus"] / "prometheus.yml").write_text(text)


def main() -> None:
    """Rehearse, and end with what was seen as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--store", help="a store's URL; by default a folder that is removed again")
    parser.add_argument("--keep", action="store_true", help="leave logs and data where they are")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="rehearsal-"))
    try:
        print(json.dumps(rehearse(folder, options.store)))
    except BaseException:
        options.keep = True
        say(f"what was printed lies in {folder}")
        raise
    finally:
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)


def rehearse(folder: Path, store: str | None) -> dict[str, Any]:
    """Start everything, submit, kill, wait, ask, and stop everything; return what was seen."""
    began = time.monotonic()
    stage = Rehearsal(folder, store)
    (stage.places["/run/secrets"] / "ray_token").write_text(secrets.token_hex(16))
    tokens = [create_token(stage.store, scopes)[0] for scopes in (["read"], ["read", "submit"])]
    stage.write_prometheus(tokens[0])
    has_prometheus = shutil.which("prometheus") is not None
    with started(stage, has_prometheus):
        client = Client(f"http://{stage.place('api', 8000)}", tokens[1])
        wait_for(lambda: is_up(f"{client.url}/readyz"), "the service to be ready", stage)
        job = client.submit(SPEC)
        wait_for(lambda: is_halfway(job), "some shards, and not all", stage)
        stage.stop(WORKERS[0], signal.SIGKILL)
        say(f"killed {WORKERS[0]} after {job.progress}")
        reader = job.wait(timeout=SECONDS)
        counters = commit_counters(stage.store, reader.id)
        seen = {
            "run_id": reader.id,
            "job": job.describe(),
            "curve_points": int(reader.curves(contrast="refusal")["value"].size),
            "committed": counters,
        }
        if has_prometheus:
            seen |= asked_of_prometheus(f"http://{stage.place('prometheus', 9090)}", counters)
        else:
            say("Prometheus is not installed here (Debian's package prometheus): its part was not rehearsed")
    seen["seconds"] = round(time.monotonic() - began, 1)
    return seen


@contextmanager
def started(stage: Rehearsal, has_prometheus: bool) -> Iterator[None]:
    """Start all services in the order of their conditions, and stop them in the end, in the other."""
    names = ["dask-scheduler", "head", *WORKERS, "dask-worker", "api", *(["prometheus"] if has_prometheus else [])]
    try:
        for name in names:
            stage.start(name)
            # One after the other, as on machines of their own: Ray gives a node half a minute to start.
            for port in {8265, 8080} & set(OWN_PORTS[name]):
                wait_for(partial(answers, stage.place(name, port)), name, stage)
        yield
    finally:
        for name in reversed(list(stage.processes)):
            stage.stop(name)


def is_halfway(job: Job) -> bool:
    """Return whether some prompts are committed, and not all."""
    now = job.describe()
    if now["state"] not in ("queued", "running"):
        raise SystemExit(f"the job {now['state']}: {now['reason']}")
    done, total = (sum(at[name] for at in now["progress"].values()) for name in ("done", "total"))
    return bool(0 < done < total)


def commit_counters(store: str, run_id: str) -> dict[str, float]:
    """Return what the commit records of a run add up to."""
    run = open_run(store, run_id)
    commits = [commit for name in run.record.sets for commit in read_commits(run.location, name).values()]
    names = ("prompts", "tokens", "shared_tokens", "padding_tokens", "quarantined", "oom_backoffs", "stored_bytes")
    return {"shards": len(commits), **{name: sum(commit.numbers()[name] for commit in commits) for name in names}}


def asked_of_prometheus(url: str, counters: dict[str, float]) -> dict[str, Any]:
    """Return what Prometheus has seen; raises SystemExit where it differs from the commit records."""
    metrics = {
        "shards": "shards_committed",
        "prompts": "prompts_captured",
        "tokens": "tokens_captured",
        "shared_tokens": "prefix_tokens_saved",
        "padding_tokens": "padding_tokens",
        "quarantined": "prompts_quarantined",
        "oom_backoffs": "oom_backoffs",
        "stored_bytes": "store_bytes_written",
    }

    def ask(query: str) -> float | None:
        found = httpx.get(f"{url}/api/v1/query", params={"query": query}).json()["data"]["result"]
        return float(found[0]["value"][1]) if found else None

    def last(name: str) -> float | None:
        return ask(f"max(max_over_time(theodolite_{name}_total[10m]))")

    wait_for(lambda: last("shards_committed") == counters["shards"], "Prometheus to see the last shard")
    seen = {name: last(metric) for name, metric in metrics.items()}
    different = {name: (seen[name], counters[name]) for name in metrics if seen[name] != counters[name]}
    if different:
        raise SystemExit(f"Prometheus has seen other numbers than the commit records say: {different}")
    retries = ask("sum(max_over_time(theodolite_shard_retries_total[10m]))")
    if not retries:
        raise SystemExit("a node was killed, and no shard went back to the queue")
    rules = httpx.get(f"{url}/api/v1/rules").json()["data"]["groups"]
    states = {rule["name"]: rule["state"] for group in rules for rule in group["rules"]}
    if states["TheodoliteNodeDown"] == "inactive":
        raise SystemExit("a node was killed, and the alarm TheodoliteNodeDown does not see it")
    return {"prometheus": seen, "retries": retries, "alarms": states}


def wait_for(condition: Callable[[], bool], what: str, stage: Rehearsal | None = None) -> None:
    """Wait until something is so; raises SystemExit when the time is over, or a service of the stage has ended."""
    deadline = time.monotonic() + SECONDS
    while not condition():
        ended = [name for name, process in stage.processes.items() if process.poll() is not None] if stage else []
        if ended:
            raise SystemExit(f"{ended[0]} has ended; {stage.folder / ended[0]}.log says why")  # type: ignore[union-attr]
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {SECONDS} s for {what}")
        time.sleep(0.2)


def is_up(url: str) -> bool:
    """Return whether a page is answered."""
    try:
        return httpx.get(url, timeout=5).is_success
    except httpx.HTTPError:
        return False


def answers(place: str) -> bool:
    """Return whether something listens."""
    host, port = place.rsplit(":", 1)
    try:
        socket.create_connection((host, int(port)), timeout=2).close()
    except OSError:
        return False
    return True


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def say(text: str) -> None:
    """Say what happens where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    say(f"Theodolite {theodolite.__version__}")
    main()
