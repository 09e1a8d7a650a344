"""Removing a run from a store."""

import os
import shutil
import time

import pytest
from support.each import each
from support.finished_runs import finished_run
from typer.testing import CliRunner

from theodolite.errors import RunNotFoundError, StoreError
from theodolite.query.runs import summaries
from theodolite.query.verification import verify
from theodolite.store import removal
from theodolite.store.objects import delete, get, keys, move, open_location, put, put_new, sweep_staged, version
from theodolite.store.removal import remove_run
from theodolite.store.runs import open_run
from theodolite_jobs.cli import app

RESULTS = {"moments": {}, "curves": {}, "directions": {}}


@pytest.fixture
def run(tmp_path):
    finished_run(tmp_path, RESULTS, run_id="other-0")
    return finished_run(tmp_path, RESULTS)


def ids(store):
    return sorted(run["run_id"] for run in summaries(str(store)))


def test_a_removed_run_leaves_nothing_and_other_runs_stay(run, tmp_path):
    n_objects = len(keys(run.location))
    assert remove_run(run) == n_objects
    assert ids(tmp_path) == ["other-0"]
    assert not (tmp_path / "runs" / "tiny-0").exists()


def test_a_removed_run_leaves_no_empty_folder_and_no_temporary_file(run, tmp_path):
    """A capture moves objects out of `pending/`, and a killed writer leaves a file that no listing shows."""
    pending = tmp_path / "runs" / "tiny-0" / "pending" / "harmful" / "00000.0123"
    pending.mkdir(parents=True)
    (pending.parent / "report.html#1").write_text("half")
    remove_run(run)
    assert not (tmp_path / "runs" / "tiny-0").exists()
    assert ids(tmp_path) == ["other-0"]
    with pytest.raises(RunNotFoundError):
        open_run(str(tmp_path), "tiny-0")


@each("hours", [-5, 5])
def test_temporary_files_are_swept_by_the_clock_of_the_folder(tmp_path, monkeypatch, hours):
    """A host that shares the folder and whose clock is wrong must not remove a file that is being written."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
    new, old = tmp_path / "report.html#1", tmp_path / "report.html#2"
    for file in (new, old):
        file.write_text("half")
    os.utime(old, (now - 3700,) * 2)
    sweep_staged(str(tmp_path), 3600)
    assert (new.exists(), old.exists()) == (True, False)


def test_a_removal_that_was_interrupted_is_listed_and_can_be_repeated(run, tmp_path, monkeypatch):
    calls = []

    def failing(location, targets):
        calls.append(targets)
        if len(calls) == 2:
            raise StoreError("cannot delete: connection lost")
        original(location, targets)

    original = removal.delete
    monkeypatch.setattr(removal, "delete", failing)
    with pytest.raises(StoreError):
        remove_run(run)
    assert calls[0] == ["runs/tiny-0/COMPLETE"]
    assert ids(tmp_path) == ["other-0", "tiny-0"]
    assert {line["run_id"]: line["state"] for line in summaries(str(tmp_path))}["tiny-0"] != "complete"
    remove_run(run)
    assert calls[-1] == ["runs/tiny-0/run.json"]
    assert ids(tmp_path) == ["other-0"]


def test_the_command_asks_first(run, tmp_path):
    command = ["run", "remove", "tiny-0", "--store", str(tmp_path)]
    refused = CliRunner().invoke(app, command, input="n\n")
    assert refused.exit_code == 1
    assert "tiny, created" in refused.output
    assert ids(tmp_path) == ["other-0", "tiny-0"]
    shutil.copytree(tmp_path, tmp_path.with_name("copy"))
    for store, options, answer in ((tmp_path, [], "y\n"), (tmp_path.with_name("copy"), ["--yes"], "")):
        done = CliRunner().invoke(app, ["run", "remove", "tiny-0", "--store", str(store), *options], input=answer)
        assert done.exit_code == 0, done.output
        assert ids(store) == ["other-0"]


@pytest.fixture
def outside(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outside")
    (folder / "thesis.txt").write_text("mine")
    return folder


def test_a_removal_follows_no_link_out_of_the_store(run, tmp_path, outside):
    folder = tmp_path / "runs" / "tiny-0"
    (folder / "extra").symlink_to(outside)
    (folder / "one.parquet").symlink_to(outside / "thesis.txt")
    assert [problem.partition(":")[0] for problem in verify(run)][:2] == ["extra", "one.parquet"]
    remove_run(run)
    assert (outside / "thesis.txt").read_text() == "mine"
    assert not folder.exists()
    assert ids(tmp_path) == ["other-0"]


def test_a_run_that_is_a_link_is_named_and_its_target_stays(run, tmp_path, outside):
    shutil.move(tmp_path / "runs" / "tiny-0", outside / "moved")
    (tmp_path / "runs" / "tiny-0").symlink_to(outside / "moved")
    with pytest.raises(StoreError, match=r"runs/tiny-0 is a link, and no link is followed in a store"):
        remove_run(run)
    with pytest.raises(StoreError, match="runs/tiny-0 is a link"):
        open_run(run.store, "tiny-0")
    assert (outside / "moved" / "run.json").exists()


def test_a_cycle_of_links_is_named_and_breaks_no_list(run, tmp_path):
    (tmp_path / "runs" / "cycle").symlink_to(tmp_path / "runs")
    (tmp_path / "runs" / "tiny-0" / "cycle").symlink_to(tmp_path)
    assert ids(tmp_path) == ["other-0", "tiny-0"]
    assert next(verify(run)).startswith("cycle: is a link")
    remove_run(run)
    assert ids(tmp_path) == ["other-0"]


def test_nothing_is_read_written_or_deleted_through_a_link(run, tmp_path, outside):
    (tmp_path / "labels").mkdir(exist_ok=True)
    (tmp_path / "labels" / "tiny-0").symlink_to(outside)
    location = open_location(run.store)
    key, link = "labels/tiny-0/thesis.txt", "labels/tiny-0 is a link"
    actions = [
        lambda: get(location, key),
        lambda: put(location, key, b"theirs"),
        lambda: put_new(location, "labels/tiny-0/new.txt", b"theirs"),
        lambda: version(location, key),
        lambda: move(location, key, "elsewhere"),
        lambda: delete(location, [key]),
        lambda: remove_run(run),
    ]
    for action in actions:
        with pytest.raises(StoreError, match=link):
            action()
    assert {file.name: file.read_text() for file in outside.iterdir()} == {"thesis.txt": "mine"}
    assert ids(tmp_path) == ["other-0", "tiny-0"], "nothing of the run was deleted"
