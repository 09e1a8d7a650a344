"""Rehearse the deployment in containers: bring docker-compose.yml up, and survey while faults are injected.

The faults: a worker is killed; a worker is cut off from the network and let back; the service is restarted in the
middle of an answer; the store's volume is filled; the head is restarted. After each survey, the script compares the
results with those of an undisturbed survey, bit by bit, and the counters of Prometheus with the commit records. It uses
the ports 8000 and 9090 of this machine.

The images are built first, from the cache where nothing changed. Environment variables: BASE names another Python image
(Debian 12) and BUILD_OPTIONS gives more options of `docker build` or `podman build`, for machines without a public
registry; PODMAN_COMPOSE is the path of podman-compose.

Usage: python deploy/rehearsal/containers.py [--keep]
"""

import argparse
import json
import shlex
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import yaml
from checks import RECORDS, is_halfway, is_up, prometheus_counters, query, say, spec_of, wait_for
from engine import Engine

import theodolite
from theodolite.client import Client, Job

SERVICE, PROMETHEUS = "http://127.0.0.1:8000", "http://127.0.0.1:9090"
STORE = "/store"
CUT_OFF_SECONDS = 90


class Stage:
    """The containers, and the client of their service."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.token = ""
        self.faults: list[dict[str, Any]] = []
        self.counted: dict[str, float] = {}

    def up(self) -> None:
        """Start the services, in an order in which the volume of the store is always mounted."""
        self.engine.compose("up", "--detach", "dask-scheduler", "head")
        wait_for(lambda: self.engine.is_healthy(self.one("head")), "the head to be healthy")
        # The service does not start without a bearer token.
        create = ["theodolite", "token", "create", "--scope", "read"]
        token_file = self.engine.folder / "metrics_token"
        token_file.write_text(self.engine.execute(self.one("head"), *create).strip())
        self.token = self.engine.execute(self.one("head"), *create, "--scope", "submit").strip()
        self.engine.compose(
            "up", "--detach", "--scale", "worker-cpu=2", "worker-cpu", "dask-worker", "api", "prometheus"
        )
        wait_for(lambda: is_up(f"{SERVICE}/readyz"), "the service to be ready")
        wait_for(lambda: len(self.workers()) == 2, "two workers")

    def one(self, service: str) -> str:
        """Return the name of a service's only container."""
        (name,) = self.engine.containers(service)
        return name

    def workers(self) -> list[str]:
        """Return the names of the healthy workers."""
        return [name for name in self.engine.containers("worker-cpu") if self.engine.is_healthy(name)]

    def start_workers(self) -> None:
        """Start the workers that are stopped, and wait until both are healthy."""
        self.engine.run("start", *self.engine.containers("worker-cpu", stopped=True))
        wait_for(lambda: len(self.workers()) == 2, "two workers", seconds=300)

    def client(self) -> Client:
        """Return a client of the service."""
        return Client(SERVICE, self.token)

    def survey(self, number: int, fault: str, inject: Callable[[Job], None]) -> None:
        """Submit a survey of its own size, inject a fault when it is halfway, and compare its results."""
        begin = time.monotonic()
        spec = spec_of(f"rehearsal {number}", 24 - number)
        job = self.client().submit(spec)
        wait_for(lambda: is_halfway(job), f"the survey to be halfway ({fault})")
        say(f"{fault}: at {job.progress}")
        inject(job)
        if job.state in ("lost", "failed", "stopped"):
            say(f"{fault}: the job is {job.state}; submitting the survey again")
            job = self.client().submit(spec)
        reader = job.wait(timeout=300)
        problems = self.compare(reader.id, spec)
        self.faults.append(
            {
                "fault": fault,
                "attempts": job.describe()["attempt"],
                "problems": problems,
                "seconds": round(time.monotonic() - begin, 1),
            }
        )
        say(json.dumps(self.faults[-1]))

    def compare(self, run_id: str, spec: dict[str, Any]) -> list[str]:
        """Survey the same prompts into another store, undisturbed, and return what differs."""
        head = self.one("head")
        self.engine.execute(head, "sh", "-c", "cat > /tmp/spec.yaml", text=yaml.safe_dump(spec))
        undisturbed = ["theodolite", "survey", "/tmp/spec.yaml", "--store", f"{STORE}/undisturbed", "--ray", "auto"]
        self.engine.execute(head, *undisturbed)
        found = json.loads(
            self.engine.execute(head, "python", "-", STORE, f"{STORE}/undisturbed", run_id, text=RECORDS)
        )
        for name, value in found["counters"].items():
            self.counted[name] = self.counted.get(name, 0) + value
        return list(found["problems"])

    def check_counters(self) -> dict[str, float | None]:
        """Compare the counters of all surveys so far, disturbed and undisturbed, with the commit records."""
        return prometheus_counters(PROMETHEUS, {name: 2 * value for name, value in self.counted.items()})


def kill_worker(stage: Stage) -> None:
    """Kill a worker; the restart policy does not count a kill by the engine as a crash."""
    stage.engine.run("kill", "--signal", "KILL", stage.workers()[0])


def cut_off_worker(stage: Stage) -> None:
    """Disconnect a worker from the network for longer than Ray waits, and connect it again."""
    worker = stage.workers()[0]
    networks = stage.engine.networks(worker)
    for network in networks:
        stage.engine.run("network", "disconnect", network, worker)
    say(f"{worker} is cut off for {CUT_OFF_SECONDS} s")
    time.sleep(CUT_OFF_SECONDS)
    for network in networks:
        stage.engine.run("network", "connect", network, worker)


def restart_service(stage: Stage, run_id: str) -> dict[str, Any]:
    """Restart the service while it sends the largest file of its page, and read a run before and after.

    The file is larger than what sockets hold, so the client gets a part of it, and must notice that.
    """
    before, problems = stage.client().run(run_id).curves(contrast="refusal"), []
    url, headers = f"{SERVICE}/static/plotly.min.js", {"Accept-Encoding": "identity"}
    with httpx.stream("GET", url, headers=headers) as response:
        length = int(response.headers["Content-Length"])
        pieces = response.iter_raw(chunk_size=4096)
        next(pieces)
        stage.engine.run("restart", "--time", "5", stage.one("api"))
        try:
            for _ in pieces:
                pass
            problems.append("a part of the answer seemed complete")
        except httpx.HTTPError as error:
            say(f"the client got {type(error).__name__}: {error}")
    wait_for(lambda: is_up(f"{SERVICE}/readyz"), "the service after its restart")
    if len(httpx.get(url, headers=headers).content) != length:
        problems.append("the answer after the restart is not whole")
    if not stage.client().run(run_id).curves(contrast="refusal").equals(before):
        problems.append("the curves after the restart differ")
    return {"fault": "service restarted in the middle of an answer", "problems": problems, "bytes": length}


def fill_volume(stage: Stage, job: Job) -> None:
    """Fill the volume of the store until the survey waits, then make space again."""
    head = stage.one("head")
    stage.engine.execute(head, "sh", "-c", f"head -c 1G /dev/zero > {STORE}/filler || true")
    wait_for(lambda: "the store is full" in job.logs(), "the survey to wait for space")
    time.sleep(15)
    stage.engine.execute(head, "rm", f"{STORE}/filler")


def restart_head(stage: Stage, job: Job) -> None:
    """Restart the head, which loses the job's driver; wait until the service knows it and the workers are back."""
    stage.engine.run("restart", "--time", "1", stage.one("head"))
    wait_for(lambda: stage.engine.is_healthy(stage.one("head")), "the head after its restart")
    wait_for(lambda: job.state in ("lost", "failed", "stopped"), "the service to notice the lost job", seconds=300)
    wait_for(lambda: len(stage.workers()) == 2, "the workers to join again", seconds=300)


def rehearse(stage: Stage) -> dict[str, Any]:
    """Inject all faults, one after the other, and return what happened."""
    begin = time.monotonic()
    stage.up()
    say(f"all services are up after {time.monotonic() - begin:.0f} s")
    stage.survey(1, "worker killed", lambda _job: kill_worker(stage))
    run_id = str(stage.client().runs()["run_id"].iloc[0])
    stage.check_counters()
    retries = query(PROMETHEUS, "sum(max_over_time(theodolite_shard_retries_total[30m]))")
    stage.faults.append(restart_service(stage, run_id))
    stage.start_workers()
    stage.survey(2, f"worker cut off for {CUT_OFF_SECONDS} s", lambda _job: cut_off_worker(stage))
    stage.survey(3, "volume full", lambda job: fill_volume(stage, job))
    counters = stage.check_counters()
    stage.start_workers()
    stage.survey(4, "head restarted", lambda job: restart_head(stage, job))
    return {
        "date": time.strftime("%Y-%m-%d"),
        "engine": stage.engine.run("--version").strip(),
        "faults": stage.faults,
        "shard_retries": retries,
        "prometheus_equals_commit_records": counters,
        "seconds": round(time.monotonic() - begin, 1),
    }


def main() -> None:
    """Run the rehearsal and print its result as one JSON object."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--keep", action="store_true", help="keep the containers and volumes")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rehearsal-") as folder:
        engine = Engine(Path(folder))
        engine.build()
        engine.compose("down", "--volumes", check=False)  # of a rehearsal that was interrupted
        try:
            found = rehearse(Stage(engine))
            print(json.dumps(found, indent=1))
        except BaseException:
            for service in ("head", "api", "worker-cpu", "dask-worker"):
                for name in engine.containers(service):
                    say(f"--- the end of {name}'s log: {shlex.join([engine.program, 'logs', name])}")
                    say(engine.run("logs", "--tail", "15", name, check=False))
            raise
        finally:
            if not options.keep:
                engine.compose("down", "--volumes", check=False)
    if any(fault["problems"] for fault in found["faults"]):
        raise SystemExit("a survey differs from the undisturbed one")


if __name__ == "__main__":
    say(f"Theodolite {theodolite.__version__}")
    main()
