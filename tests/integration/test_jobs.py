"""Surveys submitted to a real Ray cluster on this machine: through the cluster's death, and from the page."""

import json
import os
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
from starlette.testclient import TestClient
from support.ray_cluster import BIN, SECONDS, TOKEN, Cluster, wait_for

from theodolite.api.app import create_app
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.result_reader import read_group
from theodolite.store.runs import open_run
from theodolite.submission.job_store import Attempt
from theodolite.submission.ray_jobs import cluster_state, stop, submit

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def one_cluster(tmp_path_factory):
    made = Cluster(tmp_path_factory.mktemp("cluster"))
    yield made
    made.kill()


@pytest.fixture
def cluster(one_cluster):
    if one_cluster.process is None:  # the first test, or one that failed after it had killed the cluster
        one_cluster.start()
    return one_cluster


def survey_of(prompts: int) -> dict:
    sets = {name: {"source": f"builtin:{name}", "limit": prompts} for name in ("harmful", "harmless")}
    contrast = {"refusal": {"positive": "harmful", "negative": "harmless", "paired": True}}
    capture = {"shard_prompts": 8, "batch_tokens": 512}
    asked = {"model": {"id": "smollm2-135m-instruct"}, "prompts": sets, "contrasts": contrast, "capture": capture}
    return {**asked, "analyses": ["curves"], "words": {"sentences": []}}


def done(job) -> int:
    return sum(one["done"] for one in job["progress"].values())


@pytest.mark.nightly
def test_a_job_outlives_the_service_and_its_cluster(cluster, tmp_path, chat_model_folder):
    settings = Settings(store=str(tmp_path / "store"), jobs_url=cluster.url, ray_token=TOKEN)

    def service():
        return TestClient(create_app(settings, open_without_tokens=True), base_url="http://localhost")

    client, spec = service(), survey_of(48)
    submitted = client.post("/v1/jobs", json=spec)
    assert submitted.status_code == 202
    place = submitted.headers["Location"]
    assert submitted.json()["state"] in ("queued", "running")
    assert client.post("/v1/jobs", json=spec).json()["attempt"] == 1

    def job():
        return client.get(place).json()

    halfway = wait_for(lambda: (now := job()) and 0 < done(now) < 96 and now, "some shards")
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
    assert (ended["state"], done(ended)) == ("succeeded", 96)
    logs = client.get(f"{place}/logs").text
    assert "capture:" in logs
    texts = Path(tmp_path / "store/runs" / ended["run_id"] / "run.json").read_text()
    assert json.loads(texts)["run_id"] == ended["run_id"]
    run = open_run(settings.store, ended["run_id"])
    assert list(verify(run)) == []
    assert read_group(run, "curves").sizes["layer"] == 30
    assert client.get(f"/v1/runs/{run.id}/curves?statistic=cosine_of_means").status_code == 200

    stopped = client.post("/v1/jobs", json=survey_of(64)).headers["Location"]
    wait_for(lambda: client.get(stopped).json()["state"] == "running", "the second job to run")
    assert client.delete(stopped).json()["state"] == "stopped"
    wait_for(lambda: "STOPPED" in cluster_says(cluster, client.get(stopped).json()), "the cluster to stop it")


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("token", "options", "said"),
    [
        ({"RAY_AUTH_MODE": "token"}, [], "no token is set for the Ray cluster at 127.0.0.1"),
        ({"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "another"}, [], "rejects the token; set RAY_AUTH_MODE=token"),
        ({}, [], "rejects the token; set RAY_AUTH_MODE=token, and RAY_AUTH_TOKEN"),
        (
            {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
            ["--gpus-per-replica", "2"],
            "1 replicas of 2 GPUs do not fit: the nodes of the cluster have [0] GPUs; change --replicas",
        ),
    ],
)
def test_what_is_wrong_with_a_cluster_is_said_before_any_work(
    cluster, tmp_path, chat_model_folder, token, options, said
):
    (tmp_path / "spec.json").write_text(json.dumps(survey_of(8)))
    ours = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH")}
    asked = ["survey", tmp_path / "spec.json", "--store", tmp_path / "store", "--ray", f"127.0.0.1:{cluster.port}"]
    found = subprocess.run(
        [BIN / "theodolite", *asked, *options],
        env=ours | token | {"HOME": str(tmp_path), "THEODOLITE_CACHE": str(Settings().cache)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert said in found.stderr.replace("\n", " ")
    assert not (tmp_path / "store/runs").exists()


@pytest.mark.nightly
def test_another_version_of_ray_on_the_cluster_is_said_before_any_work(cluster, tmp_path, chat_model_folder):
    (tmp_path / "spec.json").write_text(json.dumps(survey_of(8)))
    older = "import ray; ray.__version__ = '2.59.0'; from theodolite_jobs.cli import main; main()"
    asked = ["survey", tmp_path / "spec.json", "--store", tmp_path / "store", "--ray", f"127.0.0.1:{cluster.port}"]
    found = subprocess.run(
        [sys.executable, "-c", older, *asked],
        env=os.environ | {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": TOKEN},
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 1
    assert "Ray: 2.59.0" in found.stderr
    assert "install the same Ray and Python on this machine and on every node" in found.stderr
    assert not (tmp_path / "store/runs").exists()


def cluster_says(cluster, job):
    with urllib.request.urlopen(cluster.request(""), timeout=60) as answer:
        known = json.loads(answer.read())
    name = f"theodolite-{job['id'][:16]}-{job['attempt']}-"
    return next(one["status"] for one in known if str(one["submission_id"]).startswith(name))


@pytest.mark.nightly
def test_a_driver_waits_for_its_memory_on_the_head(cluster, tmp_path):
    fitting, waiting = (Settings(jobs_url=cluster.url, ray_token=TOKEN, driver_memory=size) for size in (2**20, 2**45))
    for settings, name in ((waiting, "waiting"), (fitting, "fitting")):
        submit(settings, str(tmp_path), "0" * 64, Attempt(1, "local", "2026-01-01T00:00:00+00:00", name))
    ended = wait_for(lambda: (now := cluster_state(fitting, "fitting")).state == "failed" and now, "the driver to end")
    assert ended.reason  # the store has no such spec
    assert cluster_state(waiting, "waiting").state == "queued"
    stop(waiting, "waiting")


@pytest.mark.nightly
def test_an_estimate_has_the_sizes_of_batches_for_the_cluster(cluster, tmp_path, chat_model_folder):
    settings = Settings(store=str(tmp_path / "store"), jobs_url=cluster.url, ray_token=TOKEN)
    client = TestClient(create_app(settings, open_without_tokens=True), base_url="http://localhost")

    def estimate():
        answer = client.post("/v1/spec/estimate", json=survey_of(8) | {"capture": {}})
        assert answer.status_code in (200, 202), answer.text
        return answer.status_code == 200 and answer.json()

    found = wait_for(estimate, "the estimate")
    assert (found["batch_tokens"], found["shard_prompts"]) == (2048, 64)


@pytest.mark.nightly
@pytest.mark.browser
def test_a_survey_is_refused_and_then_submitted_on_the_page_and_followed_to_its_end(
    cluster, tmp_path, chat_model_folder
):
    if CHROMIUM is None:
        pytest.fail("CI needs Chromium") if os.environ.get("CI") else pytest.skip("Chromium is not installed")
    from playwright.sync_api import expect, sync_playwright

    environment = os.environ | {"THEODOLITE_JOBS_URL": cluster.url, "THEODOLITE_RAY_TOKEN": TOKEN}
    command = [BIN / "theodolite", "serve", "--store", tmp_path / "store", "--port", "0"]
    service = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        place = service.stdout.readline().split()[3]
        with sync_playwright() as play:
            browser = play.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
            page = browser.new_page()
            page.set_default_timeout(1000 * SECONDS)
            said = []
            page.on("pageerror", lambda error: said.append(str(error)))
            page.goto(f"{place}/#/new")
            page.fill("#spec-text", json.dumps(survey_of(8) | {"model": {"id": "/etc"}}))
            page.click("#submit-spec")
            expect(page.locator("#spec-problem")).to_contain_text("does not survey '/etc'", timeout=1000 * SECONDS)
            page.fill("#spec-text", json.dumps(survey_of(8)))
            page.click("#submit-spec")
            expect(page.locator("li.job[data-job-state=running]")).to_be_visible(timeout=1000 * SECONDS)
            expect(page.locator("li.job[data-job-state=succeeded]")).to_be_visible(timeout=1000 * SECONDS)
            page.locator("li.job a[href*='#/runs/']").first.click()
            expect(page.locator("h1").last).to_contain_text("smollm2-135m-instruct", timeout=1000 * SECONDS)
            expect(page.locator(".js-plotly-plot .main-svg").first).to_be_visible(timeout=1000 * SECONDS)
            assert said == []
            browser.close()
    finally:
        service.terminate()
        service.wait()
        service.stdout.close()
