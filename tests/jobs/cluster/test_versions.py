"""A cluster with another version of Theodolite is refused before any work, by the replica or by the survey job."""

from pathlib import Path

import pytest
from support.sealed import reseal

from theodolite import __version__
from theodolite.errors import CaptureError, ClusterRefusedError
from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite.spec_parts import ModelSpec
from theodolite.store.cache import Cache
from theodolite.submission.job_store import create_attempt, read_jobs, store_spec
from theodolite.submission.ray_jobs import SUBMITTED_BY
from theodolite_jobs.cluster.replica import Assignment, Replica
from theodolite_jobs.job import run_job

CERTIFICATE = {"dtype": "float32", "attention": "sdpa", "device": "cpu", "ranks": 1}


def replica_of(version=__version__):
    folder = Path("nowhere")
    return Replica(Assignment("", "", ModelSpec(id="x"), "", folder, folder, (), (), 1, 1, 0, version))


def test_a_node_with_another_version_loads_nothing():
    with pytest.raises(ClusterRefusedError, match=rf"has Theodolite {__version__} and the driver has 9\.9; install"):
        replica_of("9.9").certify()


def test_a_replica_that_computes_in_another_way_is_refused():
    replica = replica_of()
    replica._engine, replica._certificate = object(), CERTIFICATE
    assert replica.certify(("float32", "sdpa", "cpu", "1 rank(s)")) == CERTIFICATE
    with pytest.raises(CaptureError, match="use nodes of one kind"):
        replica.certify(("float32", "sdpa", "cuda", "1 rank(s)"))


def test_a_survey_job_of_another_version_ends_with_the_reason_even_if_its_spec_is_not_understood(tmp_path, monkeypatch):
    spec = parse_spec({"model": {"id": "smollm2-135m-instruct"}, "prompts": {}})
    job_id = store_spec(str(tmp_path), spec)
    create_attempt(str(tmp_path), job_id, 1, "local")
    monkeypatch.setenv(SUBMITTED_BY, "9.9")
    (file,) = tmp_path.rglob("spec.json")
    before = reseal(file, spec={**spec.model_dump(mode="json", exclude_unset=True), "of_the_future": True})
    with pytest.raises(
        ClusterRefusedError, match=rf"has Theodolite {__version__}, but version 9\.9 submitted this survey job"
    ):
        run_job(job_id, 1, Settings(store=str(tmp_path)))
    reseal(file, **before)
    (job,) = read_jobs(str(tmp_path), Cache(0))
    assert job.end is not None
    assert "9.9 submitted this survey job" in str(job.end.reason)
