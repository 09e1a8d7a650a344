"""A run that is removed while a driver works on it: the command refuses; after `rm -rf`, the survey ends in a line."""

import importlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from unittest.mock import patch

import pytest
from support.damages import flip, opened, settings, store_of
from support.nightly import at_night
from support.tiny_survey import spec_of
from typer.testing import CliRunner

from theodolite.errors import RunDamagedError, RunInUseError, RunNotFoundError, StoreError
from theodolite.query.verification import verify
from theodolite.store.leases import held_lease, refuse_in_use
from theodolite.store.manifest import list_groups
from theodolite.store.objects import keys
from theodolite.store.removal import unless_removed
from theodolite_jobs.cli import app
from theodolite_jobs.progress import Console
from theodolite_jobs.repair.run import repair
from theodolite_jobs.survey import capture, survey

pytestmark = pytest.mark.usefixtures("forked_replicas", "without_figures")

STAGES = {
    "shards": "theodolite_jobs.capture_run:run_shards",
    "first shard": "theodolite.metrics:CaptureMetrics.committed",
    "end of the capture": "theodolite_jobs.captured_objects:_record_checksums",
    "first pass": "theodolite_jobs.passes.collect:first_passes",
    "layers of heads": "theodolite_jobs.groups.heads.compute:write_layer",
    "results": "theodolite.store.result_writer:put",
    "report": "theodolite_jobs.analysis:update_report",
    "effects": "theodolite_jobs.measure_effects:measure_effects",
    "parts of effects": "theodolite.metrics:CaptureMetrics.measured",
}
"""Functions that are called while a driver works, at the begin of a stage or after its first step."""

EACH_DAY = ("first shard", "end of the capture", "results", "parts of effects")


def before(function, act):
    """Return a patch that calls `act` with the same arguments before each call of a function."""
    module, _, name = function.partition(":")
    owner = importlib.import_module(module)
    *outer, last = name.split(".")
    for part in outer:
        owner = getattr(owner, part)
    original = getattr(owner, last)

    def call(*arguments, **options):
        act()
        return original(*arguments, **options)

    return patch.object(owner, last, call)


@pytest.mark.parametrize("stage", [*EACH_DAY, *at_night(stage for stage in STAGES if stage not in EACH_DAY)])
def test_a_survey_whose_run_is_deleted_ends_in_one_line(tiny_folder, tmp_path, monkeypatch, stage):
    monkeypatch.setattr("theodolite.store.removal._LOOK_SECONDS", 0.1)
    monkeypatch.setattr("theodolite_jobs.cluster.scheduling.PAUSE_SECONDS", 0.2)  # while the store refuses shards
    with_effects = {"analyses": ["curves", "effects"]} if "effects" in stage else {}

    def remove():
        shutil.rmtree(tmp_path / "runs", ignore_errors=True)

    with before(STAGES[stage], remove), pytest.raises(RunNotFoundError) as error:
        survey(spec_of(tiny_folder, **with_effects), Path(), settings(tmp_path), Console())
    said = str(error.value)
    assert ": the run was removed while this process worked on it; run the survey again, or delete what is" in said
    assert "\n" not in said
    assert not (tmp_path / "leases").exists()


def test_after_a_deletion_the_same_survey_starts_again(whole, tiny_folder, tmp_path):
    with (
        before(STAGES["first pass"], lambda: shutil.rmtree(tmp_path / "runs", ignore_errors=True)),
        pytest.raises(RunNotFoundError),
    ):
        survey(spec_of(tiny_folder), Path(), settings(tmp_path), Console())
    run = survey(spec_of(tiny_folder), Path(), settings(tmp_path), Console())
    assert run.id == whole.name
    assert list(verify(run)) == []


def test_a_run_that_vanishes_stops_a_loop_within_seconds(damaged, monkeypatch):
    monkeypatch.setattr("theodolite.store.removal._LOOK_SECONDS", 0.0)

    def loop():
        with unless_removed(opened(damaged)) as look:
            look()
            (damaged / "run.json").unlink()
            look()
            pytest.fail("the loop goes on")

    with pytest.raises(RunNotFoundError, match="the run was removed"):
        loop()


def test_a_store_that_does_not_respond_has_removed_nothing(damaged, monkeypatch):
    def failing(*_arguments):
        raise StoreError("cannot read run.json: connection lost")

    monkeypatch.setattr("theodolite.store.removal._LOOK_SECONDS", 0.0)
    monkeypatch.setattr("theodolite.store.removal.version", failing)
    with unless_removed(opened(damaged)) as look:
        look()
    with pytest.raises(ValueError, match="another problem"), unless_removed(opened(damaged)):
        raise ValueError("another problem")


def test_complete_is_not_written_without_any_copy_of_the_record(damaged):
    run = opened(damaged)
    for name in ("run.json", "COMPLETE"):
        (damaged / name).unlink()
    with pytest.raises(RunDamagedError, match=r"run\.json is missing"):
        list_groups(run, {"curves": "digest"})
    assert not (damaged / "COMPLETE").exists()


def test_a_record_that_is_damaged_during_the_capture_ends_the_survey_in_one_line(tiny_folder, tmp_path):
    def damage():
        (record,) = tmp_path.glob("runs/*/run.json")
        flip(record)

    with before(STAGES["end of the capture"], damage), pytest.raises(RunDamagedError, match=r"run\.json .*--repair"):
        survey(spec_of(tiny_folder), Path(), settings(tmp_path), Console())


def refused(store, run_id):
    """Return whether the run is in use."""
    try:
        refuse_in_use(str(store), run_id)
    except RunInUseError:
        return True
    return False


@pytest.mark.nightly
@pytest.mark.parametrize("stage", ["first pass", *at_night(["first shard", "report"])])
def test_a_survey_holds_its_run_in_each_stage(whole, tiny_folder, tmp_path, stage):
    seen = []
    with before(STAGES[stage], lambda: seen.append(refused(tmp_path, whole.name))):
        run = survey(spec_of(tiny_folder), Path(), settings(tmp_path), Console())
    assert seen
    assert all(seen)
    assert {path.name for path in tmp_path.iterdir()} == {"runs"}
    assert set(keys(run.location)) == set(keys(opened(whole).location))


@pytest.mark.nightly
def test_a_capture_and_a_later_analysis_hold_their_run(whole, tiny_folder, tmp_path):
    seen = []
    with before(STAGES["first shard"], lambda: seen.append(refused(tmp_path, whole.name))):
        capture(spec_of(tiny_folder), Path(), settings(tmp_path), Console())
    assert seen
    assert all(seen)
    seen.clear()
    assert not refused(tmp_path, whole.name)
    with before(STAGES["report"], lambda: seen.append(refused(tmp_path, whole.name))):
        done = CliRunner().invoke(app, ["run", "analyse", whole.name, "--store", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert set(seen) == {True}  # the report is written after the first results, and at the end
    assert not refused(tmp_path, whole.name)


def test_a_repair_refuses_a_run_that_is_in_use_and_holds_its_own(damaged):
    store, seen = store_of(damaged), []
    flip(damaged / "tables" / "curves.parquet")
    with held_lease(str(store), damaged.name), pytest.raises(RunInUseError):
        repair(damaged.name, None, Path(), settings(store), Console())
    with before(STAGES["report"], lambda: seen.append(refused(store, damaged.name))):
        repair(damaged.name, None, Path(), settings(store), Console())
    assert set(seen) == {True}  # the report is written after the first results, and at the end
    assert list(verify(opened(damaged))) == []
    assert not refused(store, damaged.name)


HOLD = """
import sys
from theodolite.store.leases import held_lease
with held_lease(*sys.argv[1:]):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_run_is_removed_as_soon_as_its_driver_was_killed(damaged, monkeypatch):
    monkeypatch.setattr("theodolite.store.leases.REPLICA_SECONDS", 0.0)
    store = str(store_of(damaged))
    command = [sys.executable, "-c", HOLD, store, damaged.name]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ) as driver:
        assert driver.stdout.readline() == b"held\n"
        (lease,) = (store_of(damaged) / "leases" / damaged.name).iterdir()
        assert json.loads(lease.read_text())["process"]["pid"] == driver.pid
        assert refused(store, damaged.name)
        driver.kill()
    done = CliRunner().invoke(app, ["run", "remove", damaged.name, "--yes", "--store", store])
    assert done.exit_code == 0, done.output
    assert not damaged.exists()
    assert not (store_of(damaged) / "leases").exists()
