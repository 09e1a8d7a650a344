"""The leases of drivers: a run that is in use is not removed, and a dead driver keeps nobody from removing it."""

import json
import os
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from socket import gethostname

import pytest
from support.faulty_bucket import faulty_bucket
from support.finished_runs import finished_run
from typer.testing import CliRunner

from theodolite.errors import RunInUseError, StoreError
from theodolite.processes import Process, process_of
from theodolite.query.runs import summaries
from theodolite.query.verification import unexpected_objects, verify
from theodolite.store import leases
from theodolite.store.leases import EXPIRY_SECONDS, held_lease, refuse_in_use
from theodolite.store.objects import keys, open_location, put, version
from theodolite.store.pieces import record
from theodolite.store.removal import remove_run
from theodolite_jobs.cli import app

ELSEWHERE = Process("another machine", 1, 1)


@pytest.fixture
def run(tmp_path):
    return finished_run(tmp_path, {"moments": {}, "curves": {}, "directions": {}})


def write_lease(store, process, *, host="node7", age=0.0, name="0123.json"):
    """Write a lease whose last renewal was some seconds ago by the clock of the store."""
    file = Path(store) / "leases" / "tiny-0" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(record(f"leases/tiny-0/{name}", {"host": host, "process": asdict(process)}))
    os.utime(file, (time.time() - age,) * 2)
    return file


def dead_process():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        return process_of(child.pid)


def test_a_run_is_not_removed_while_a_driver_works_on_it(run, tmp_path):
    before = sorted(keys(run.location))
    with held_lease(str(tmp_path), run.id):
        with pytest.raises(RunInUseError) as error:
            remove_run(run)
        assert sorted(keys(run.location)) == before
    said = str(error.value)
    assert said.startswith(f"tiny-0 is in use: the process {os.getpid()} on {gethostname()} works on it, and renewed ")
    assert "\n" not in said
    assert remove_run(run) == len(before)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_lease_is_no_object_of_the_run(run, tmp_path):
    before = list(verify(run)), unexpected_objects(run), keys(run.location), summaries(str(tmp_path))
    with held_lease(str(tmp_path), run.id):
        assert (list(verify(run)), unexpected_objects(run), keys(run.location), summaries(str(tmp_path))) == before
    assert not (tmp_path / "leases").exists()


def test_each_driver_has_its_own_lease_and_other_runs_are_free(run, tmp_path):
    other = finished_run(tmp_path, {"moments": {}}, run_id=f"{run.id}0")
    with held_lease(str(tmp_path), run.id):
        with held_lease(str(tmp_path), run.id):
            assert len(keys(open_location(str(tmp_path)), "leases")) == 2
        with pytest.raises(RunInUseError):
            remove_run(run)
        remove_run(other)


@pytest.mark.parametrize(("age", "waits"), [(0, [leases.REPLICA_SECONDS]), (2 * EXPIRY_SECONDS, [])])
def test_a_driver_that_died_on_this_machine_holds_nothing_but_its_replicas_may_still_write(
    run, tmp_path, monkeypatch, age, waits
):
    waited = []

    def write_late(seconds):
        waited.append(seconds)
        put(run.location, "pending/harmful/00000.0123/resid_pre", b"late")

    monkeypatch.setattr(leases, "sleep", write_late)
    file = write_lease(tmp_path, dead_process(), age=age)
    remove_run(run)
    assert waited == waits
    assert not file.exists()
    assert not (tmp_path / "runs").exists()


def test_a_driver_that_is_paused_on_this_machine_still_holds_its_lease(run, tmp_path):
    write_lease(tmp_path, process_of(os.getpid()), age=10 * EXPIRY_SECONDS)
    with pytest.raises(RunInUseError, match=r"renewed its lease 6\d\d s ago"):
        remove_run(run)


def test_of_another_host_only_the_time_since_the_renewal_counts(run, tmp_path, monkeypatch):
    write_lease(tmp_path, ELSEWHERE, age=EXPIRY_SECONDS - 5)
    with pytest.raises(RunInUseError, match=r"the process 1 on node7 works on it.*expires after 60 s"):
        remove_run(run)
    file = write_lease(tmp_path, ELSEWHERE, age=EXPIRY_SECONDS + 5)
    remove_run(run)
    assert not file.exists()


@pytest.mark.parametrize("hours", [-5, 5])
def test_the_clock_of_the_reader_does_not_count(run, tmp_path, monkeypatch, hours):
    now = time.time()
    write_lease(tmp_path, ELSEWHERE)
    monkeypatch.setattr(time, "time", lambda: now + 3600 * hours)
    with pytest.raises(RunInUseError):
        refuse_in_use(str(tmp_path), run.id)


def test_the_clock_of_the_writer_does_not_count(run, tmp_path):
    """A store that sets times ahead sets them ahead for every object."""
    write_lease(tmp_path, ELSEWHERE, age=-3600)
    with pytest.raises(RunInUseError, match="renewed its lease 0 s ago"):
        refuse_in_use(str(tmp_path), run.id)


def test_a_damaged_lease_counts_until_it_expires(run, tmp_path):
    file = write_lease(tmp_path, ELSEWHERE)
    other = {"host": "a", "process": {"machine": "", "pid": "x", "started": 1}}
    for content in ("", "[]", '{"host": 1}', '{"host": "a", "process": {"pid": 1}}', json.dumps(other)):
        file.write_text(content)
        with pytest.raises(
            RunInUseError, match=r"a process that is not known works on it, .* its lease, leases/tiny-0/"
        ):
            refuse_in_use(str(tmp_path), run.id)
    os.utime(file, (time.time() - EXPIRY_SECONDS - 5,) * 2)
    refuse_in_use(str(tmp_path), run.id)


def test_a_driver_renews_its_lease_and_removes_those_of_the_dead(run, tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.01)
    expired = write_lease(tmp_path, dead_process(), name="4567.json")
    dead = write_lease(tmp_path, ELSEWHERE, age=2 * EXPIRY_SECONDS)
    half = dead.with_name("89ab.json#1")
    half.write_text("half")
    os.utime(half, (time.time() - 2 * EXPIRY_SECONDS,) * 2)
    with held_lease(str(tmp_path), run.id):
        assert not any(file.exists() for file in (dead, expired, half))
        location = open_location(str(tmp_path))
        (own,) = [key for key in keys(location, "leases") if key.endswith(".json")]
        first = version(location, own)
        while version(location, own) == first:
            time.sleep(0.01)
    assert not (tmp_path / "leases").exists()


def test_a_store_that_cannot_be_written_for_a_while_ends_no_survey(run, tmp_path, monkeypatch):
    recovered, refused = threading.Event(), threading.Event()

    def failing(*arguments):
        if not recovered.is_set():
            refused.set()
            raise StoreError("cannot write leases: connection lost")
        put(*arguments)

    monkeypatch.setattr(leases, "RENEWAL_SECONDS", 0.01)
    monkeypatch.setattr(leases, "put", failing)
    with held_lease(str(tmp_path), run.id):
        assert refused.is_set()
        assert keys(open_location(str(tmp_path)), "leases") == []
        recovered.set()
        while not keys(open_location(str(tmp_path)), "leases"):
            time.sleep(0.01)


def test_a_bucket_tells_the_times_of_its_objects(monkeypatch):
    with faulty_bucket() as bucket:
        for name, value in bucket.environment.items():
            monkeypatch.setenv(name, value)
        with held_lease(bucket.url, "tiny-0"):
            with pytest.raises(RunInUseError, match=f"the process {os.getpid()} on "):
                refuse_in_use(bucket.url, "tiny-0")
            assert len(keys(open_location(bucket.url), "leases")) == 1
        refuse_in_use(bucket.url, "tiny-0")
        assert keys(open_location(bucket.url), "leases") == []


def test_the_command_refuses_before_it_asks(run, tmp_path):
    with held_lease(str(tmp_path), run.id):
        refused = CliRunner().invoke(app, ["run", "remove", run.id, "--store", str(tmp_path)])
    assert isinstance(refused.exception, RunInUseError)
    assert refused.output == ""
    assert (tmp_path / "runs" / run.id / "run.json").exists()
