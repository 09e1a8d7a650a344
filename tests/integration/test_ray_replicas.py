"""Real replicas of Ray on a tiny model: more of them, kills, two surveys at once, and resumes change no bit."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from chaos.processes import capture_without_ray
from support.commands import THEODOLITE
from support.damages import assert_same_results
from support.ray_cluster import kill_after_the_first_shard
from support.sealed import reseal
from support.tiny_survey import spec_of

from theodolite.errors import CaptureError, RunDamagedError
from theodolite.query.runs import summaries
from theodolite.query.verification import verify
from theodolite.settings import Settings
from theodolite.store.prompts import read_prompts
from theodolite.store.runs import open_run
from theodolite_jobs import capture_run
from theodolite_jobs.cluster import replicas
from theodolite_jobs.progress import Console
from theodolite_jobs.survey import capture, survey

pytestmark = pytest.mark.usefixtures("without_figures")


@pytest.fixture(scope="module")
def spec(tiny_folder):
    return spec_of(tiny_folder)


@pytest.fixture
def run_survey(spec):
    return lambda store, **settings: survey(spec, Path(), Settings(store=str(store), **settings), Console())


@pytest.fixture(scope="module")
def surveyed(spec, tmp_path_factory):
    """The run of a replica that Ray has not started."""
    settings = Settings(store=str(tmp_path_factory.mktemp("one")), replicas=1, gpus_per_replica=0)
    with capture_without_ray():
        return survey(spec, Path(), settings, Console())


@pytest.fixture
def copied(surveyed, tmp_path):
    """A copy of the run in a store of its own."""
    store = Path(shutil.copytree(surveyed.store, tmp_path / "store"))
    return open_run(str(store), surveyed.id)


@pytest.mark.nightly
@pytest.mark.parametrize("replicas", [2, 4])
def test_more_replicas_on_gpus_of_their_own_give_the_same_bits(
    ray_with_pretend_gpus, surveyed, run_survey, tmp_path, replicas
):
    run = run_survey(tmp_path, replicas=replicas, gpus_per_replica=1)
    assert run.id == surveyed.id
    assert_same_results(surveyed, run)
    assert list(verify(run)) == []


def test_a_replica_that_is_killed_restarts_and_the_bits_are_the_same(
    ray_with_pretend_gpus, surveyed, run_survey, tmp_path, monkeypatch
):
    killed = kill_after_the_first_shard(monkeypatch, capture_run)
    run = run_survey(tmp_path, replicas=1, gpus_per_replica=0)
    assert killed
    assert_same_results(surveyed, run)


@pytest.mark.nightly
def test_a_replica_that_is_gone_for_good_leaves_the_work_to_the_other(
    ray_with_pretend_gpus, surveyed, run_survey, tmp_path, monkeypatch
):
    import ray

    run_shards = capture_run.run_shards

    def kill_one_for_good(workers, *arguments):
        workers[0].restart = lambda _reason: None
        ray.kill(workers[0].actors[0])
        run_shards(workers, *arguments)

    monkeypatch.setattr(capture_run, "run_shards", kill_one_for_good)
    assert_same_results(surveyed, run_survey(tmp_path, replicas=2, gpus_per_replica=1))


@pytest.mark.nightly
def test_without_any_replica_left_the_shard_is_named(ray_with_pretend_gpus, run_survey, tmp_path, monkeypatch):
    import ray

    run_shards = capture_run.run_shards

    def kill_all_for_good(workers, *arguments):
        for worker in workers:
            worker.restart = lambda _reason: None
            ray.kill(worker.actors[0])
        run_shards(workers, *arguments)

    monkeypatch.setattr(capture_run, "run_shards", kill_all_for_good)
    with pytest.raises(CaptureError, match=r"shard harmful/0000\d has no replica left"):
        run_survey(tmp_path, replicas=1, gpus_per_replica=0)
    assert [item["state"] for item in summaries(str(tmp_path))] == ["capturing"]


@pytest.mark.nightly
def test_two_surveys_of_the_same_at_once_do_not_harm_each_other(surveyed, spec, tmp_path):
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec.model_dump(mode="json", exclude_unset=True)))
    command = [THEODOLITE, "survey", str(tmp_path / "spec.yaml"), "--store", str(tmp_path)]
    both = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    for process in both:
        _, errors = process.communicate(timeout=900)
        assert process.returncode == 0, errors
    run = open_run(str(tmp_path), surveyed.id)
    assert list(verify(run)) == []
    assert_same_results(surveyed, run)


def test_a_crash_after_the_last_shard_is_mended_by_the_next_survey(copied, run_survey):
    for key in ("prompts/harmless.parquet", "activations.zarr/zarr.json", "COMPLETE"):  # the capture writes these last
        (Path(copied.url) / key).unlink()
    assert list(verify(copied)) != []
    run_survey(copied.store)
    assert list(verify(copied)) == []
    assert len(read_prompts(copied, "harmless")) == 10


def test_a_run_is_not_continued_with_other_arithmetic(copied, run_survey):
    folder = Path(copied.url)
    (folder / "shards/harmless/00001.json").unlink()
    (folder / "COMPLETE").unlink()  # a finished run would be repaired
    reseal(folder / "run.json", versions=copied.record.versions | {"torch": "1.0"})
    with capture_without_ray(), pytest.raises(RunDamagedError, match=r"created with torch 1\.0"):
        run_survey(copied.store, replicas=1, gpus_per_replica=0)


def test_a_second_survey_repeats_nothing(surveyed, run_survey, monkeypatch):
    monkeypatch.setattr(replicas, "ray_session", None)  # would raise if it were entered
    stamps = {path: path.stat().st_mtime_ns for path in Path(surveyed.url).glob("**/c/**/*") if path.is_file()}
    assert run_survey(surveyed.store).id == surveyed.id
    assert {path: path.stat().st_mtime_ns for path in stamps} == stamps


@pytest.mark.nightly
def test_a_model_spread_over_two_gpus_without_gpus_runs_on_the_cpu(ray_with_pretend_gpus, spec, tmp_path):
    settings = Settings(store=str(tmp_path), replicas=1, gpus_per_replica=2)
    run = capture(spec, Path(), settings, Console())
    assert run.record.parity["device"] == "cpu"
    assert replace(run) == open_run(str(tmp_path), run.id)
