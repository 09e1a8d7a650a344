"""Survey jobs from the command line, with a stand-in for the Ray Jobs API."""

import json

import pytest
from support.serving import SPEC, RayStandIn
from typer.testing import CliRunner

from theodolite.errors import ClusterError, ClusterRefusedError, JobError, SpecError
from theodolite.spec_file import parse_spec
from theodolite.submission.job_store import End, end_attempt, read_job_spec
from theodolite_jobs.cli import app

CLUSTER = ["--cluster", "http://head:8265"]
ID = parse_spec(SPEC).digest()


@pytest.fixture
def ray(monkeypatch):
    cluster = RayStandIn()
    monkeypatch.setattr("theodolite.submission.ray_jobs.httpx.request", cluster.request)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "/nonexistent")
    return cluster


@pytest.fixture
def call(tmp_path, ray):
    spec = tmp_path / "survey.json"
    spec.write_text(json.dumps(SPEC))

    def called(command, *arguments, cluster=CLUSTER, store=tmp_path / "store"):
        given = [spec, *arguments] if command == "submit" else arguments
        found = CliRunner().invoke(app, ["job", command, *map(str, given), *cluster, "--store", str(store)])
        if found.exception is not None and not isinstance(found.exception, SystemExit):
            raise found.exception
        return found.stdout

    return called


def test_a_survey_is_submitted_once_and_addressed_by_a_prefix_of_its_id(call, ray):
    first = json.loads(call("submit", "--json"))
    assert (first["id"], first["state"], first["attempt"]) == (ID, "queued", 1)
    assert json.loads(call("submit", "--json")) == first
    assert len(ray.jobs) == 1
    ray.set_state(ray.submitted[0], "RUNNING")
    assert "state: running" in call("show", ID[:6])
    assert call("list").split()[:2] == [ID[:12], "running"]
    assert json.loads(call("list", "--json"))["items"][0]["state"] == "running"
    assert call("logs", ID[:6]) == ray.log
    assert json.loads(call("stop", ID[:6], "--json"))["state"] == "stopped"
    assert json.loads(call("submit", "--json"))["attempt"] == 2


def test_options_for_replicas_are_passed_to_the_ray_job(call, ray):
    call("submit", "--replicas", 3, "--gpus-per-replica", 2, "--dask", "tcp://scheduler:8786")
    (job,) = ray.jobs.values()
    environment = job["runtime_env"]["env_vars"]
    passed = {name: environment[f"THEODOLITE_{name}"] for name in ("REPLICAS", "GPUS_PER_REPLICA", "DASK_ADDRESS")}
    assert passed == {"REPLICAS": "3", "GPUS_PER_REPLICA": "2", "DASK_ADDRESS": "tcp://scheduler:8786"}


def test_paths_are_made_absolute_because_the_ray_job_runs_in_another_folder(call, tmp_path, ray):
    (tmp_path / "mine.txt").write_text("a prompt\nanother\n")
    spec = {**SPEC, "prompts": {**SPEC["prompts"], "mine": {"source": "file:mine.txt"}}}
    (tmp_path / "survey.json").write_text(json.dumps(spec))
    job = json.loads(call("submit", "--json"))
    stored = read_job_spec(str(tmp_path / "store"), job["id"])
    assert stored.prompts["mine"].source == f"file:{tmp_path}/mine.txt"


def test_fields_that_the_file_omits_are_omitted_from_the_stored_spec(call, tmp_path, ray):
    where = {"source": "file:mine.csv", "where": {"input": None}}
    (tmp_path / "mine.csv").write_text("prompt,input\none,\n")
    spec = {**SPEC, "prompts": {**SPEC["prompts"], "mine": where}, "capture": {"layers": [0]}}
    (tmp_path / "survey.json").write_text(json.dumps(spec))
    stored = read_job_spec(str(tmp_path / "store"), json.loads(call("submit", "--json"))["id"])
    assert stored.capture.model_fields_set == {"layers"}
    assert stored.prompts["mine"].where == {"input": None}


def test_wait_reports_how_the_survey_job_ended(call, tmp_path, ray):
    call("submit")
    end_attempt(str(tmp_path / "store"), ID, 1, End("failed", "the model is too large"))
    with pytest.raises(JobError, match="failed: the model is too large"):
        call("show", ID, "--wait")
    call("submit")
    end_attempt(str(tmp_path / "store"), ID, 2, End("succeeded"))
    assert "state: succeeded" in call("submit", "--wait")


@pytest.mark.parametrize("command", ["show", "logs", "stop"])
def test_an_unknown_id_is_refused(call, command):
    with pytest.raises(SpecError, match="given 'abc', but no survey job starts with it; `theodolite job list` lists"):
        call(command, "abc")


@pytest.mark.parametrize(
    ("version", "message"), [("2.40.0", "runs Ray 2.40.0, but this machine has Ray 2"), ("9.9.9", "install the same")]
)
def test_another_version_of_ray_is_refused_before_any_work(call, ray, version, message):
    ray.version = version
    with pytest.raises(ClusterRefusedError, match=message):
        call("submit")
    assert ray.jobs == {}


def test_a_client_without_ray_requires_a_minimum_version(call, ray, monkeypatch):
    monkeypatch.setattr("theodolite.submission.ray_jobs.importlib.metadata.distributions", lambda **_: iter(()))
    ray.version = "2.59.1"
    with pytest.raises(ClusterRefusedError, match=r"runs Ray 2\.59\.1; the minimum is 2\.60"):
        call("submit")
    ray.version = "3.0.0"
    call("submit")
    assert len(ray.jobs) == 1


def test_a_wrong_token_or_no_cluster_is_refused_before_any_work(call, ray, monkeypatch):
    ray.token = "right"
    monkeypatch.setenv("THEODOLITE_RAY_TOKEN", "wrong")
    with pytest.raises(ClusterRefusedError, match="rejects the token; set THEODOLITE_RAY_TOKEN"):
        call("submit")
    with pytest.raises(ClusterError, match="THEODOLITE_JOBS_URL"):
        call("submit", cluster=[])
