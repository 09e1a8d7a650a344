"""Surveys submitted over HTTP to a real Ray cluster on this machine: to the end, and through the cluster's death."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from starlette.testclient import TestClient

from theodolite.api.app import create_app
from theodolite.query.runs import verify
from theodolite.settings import Settings
from theodolite.store.finished import read_group
from theodolite.store.runs import open_run

pytestmark = pytest.mark.slow

BIN = Path(sys.executable).parent
SECONDS = 150


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Cluster:
    """A Ray head of its own: other tests' Ray is left alone."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.dashboard = folder, free_port()
        self.process: subprocess.Popen | None = None

    def start(self) -> None:
        ports = {"port": free_port(), "dashboard-port": self.dashboard, "dashboard-agent-listen-port": free_port()}
        options = [f"--{name}={number}" for name, number in ports.items()]
        command = [BIN / "ray", "start", "--head", "--block", "--num-cpus=2", "--dashboard-host=127.0.0.1"]
        command += ["--object-store-memory=100000000", "--disable-usage-stats", *options]
        environment = os.environ | {"PATH": f"{BIN}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
        environment |= {"RAY_AUTH_TOKEN": "only-here"}
        with open(self.folder / "ray.log", "ab") as log:
            self.process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        ask = urllib.request.Request(f"{self.url}/api/jobs/", headers={"Authorization": "Bearer only-here"})
        wait_for(lambda: answers(ask), "the cluster to answer")

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


def answers(request) -> bool:
    try:
        with urllib.request.urlopen(request, timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_for(condition, what):
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.3)
    raise AssertionError(f"waited {SECONDS} s for {what}")


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.start()
    yield made
    made.kill()


def survey_of(prompts: int) -> dict:
    sets = {name: {"source": f"builtin:{name}", "limit": prompts} for name in ("harmful", "harmless")}
    contrast = {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}}
    capture = {"shard_prompts": 8, "batch_tokens": 512}
    asked = {"model": {"id": "smollm2-135m-instruct"}, "prompts": sets, "contrasts": contrast, "capture": capture}
    return {**asked, "analyses": ["curves"], "words": {"sentences": []}}


def done(job) -> int:
    return sum(one["done"] for one in job["progress"].values())


def test_a_job_outlives_the_service_and_its_cluster(cluster, tmp_path, chat_model_folder):
    settings = Settings(store=str(tmp_path / "store"), jobs_url=cluster.url, ray_token="only-here")

    def service():
        return TestClient(create_app(settings, open_without_tokens=True), base_url="http://localhost")

    client, spec = service(), survey_of(64)
    submitted = client.post("/v1/jobs", json=spec)
    assert submitted.status_code == 202
    place = submitted.headers["Location"]
    assert submitted.json()["state"] in ("queued", "running")
    assert client.post("/v1/jobs", json=spec).json()["attempt"] == 1

    def job():
        return client.get(place).json()

    halfway = wait_for(lambda: (now := job()) and 0 < done(now) < 128 and now, "some shards")
    assert halfway["state"] == "running"
    assert halfway["run_id"].startswith("smollm2-135m-instruct-")
    cluster.kill()
    client = service()  # the service was restarted too: it knows nothing but what the store does
    lost = job()
    assert lost["state"] == "lost"
    assert "cannot be reached" in lost["reason"]
    assert done(lost) >= done(halfway)
    assert client.post("/v1/jobs", json=spec).status_code == 503

    cluster.start()
    assert job()["state"] == "lost"
    assert client.post("/v1/jobs", json=spec).json()["attempt"] == 2
    ended = wait_for(lambda: (now := job())["state"] not in ("queued", "running") and now, "the end")
    assert (ended["state"], done(ended)) == ("succeeded", 128)
    logs = client.get(f"{place}/logs").text
    assert "capture:" in logs
    texts = Path(tmp_path / "store/runs" / ended["run_id"] / "run.json").read_text()
    assert json.loads(texts)["run_id"] == ended["run_id"]
    run = open_run(settings.store, ended["run_id"])
    assert list(verify(run)) == []
    assert read_group(run, "curves").sizes["layer"] == 30
    assert client.get(f"/v1/runs/{run.id}/curves?statistic=cosine_of_means").status_code == 200

    stopped = client.post("/v1/jobs", json=survey_of(200)).headers["Location"]
    wait_for(lambda: client.get(stopped).json()["state"] == "running", "the second job to run")
    assert client.delete(stopped).json()["state"] == "stopped"
    wait_for(lambda: "STOPPED" in str(cluster_says(cluster, client.get(stopped).json())), "the cluster to stop it")


def cluster_says(cluster, job):
    submission = f"theodolite-{job['id'][:16]}-{job['attempt']}"
    ask = urllib.request.Request(f"{cluster.url}/api/jobs/{submission}", headers={"Authorization": "Bearer only-here"})
    with urllib.request.urlopen(ask, timeout=5) as answer:
        return json.loads(answer.read())["status"]
