"""What a dead driver leaves behind of Ray is killed, and nothing else."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest
import ray
from support.each import each
from support.nightly import at_night

from theodolite.processes import process_of
from theodolite_jobs.cluster import session
from theodolite_jobs.cluster.left_behind import kill_left_behind, marked
from theodolite_jobs.cluster.session import ray_session

pytestmark = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the system has no /proc")

VARIABLE = "THEODOLITE_RAY_DRIVER"


@contextmanager
def process_with(marker: str | None, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """Run a process whose environment has a marker, until the context ends."""
    environment = {"PATH": os.environ["PATH"]} | ({} if marker is None else {VARIABLE: marker})
    with subprocess.Popen(["sleep", "600"], env=environment, **options) as child:
        try:
            yield child
        finally:
            child.kill()


def is_killed(child: subprocess.Popen[bytes]) -> bool:
    """Look for processes of dead drivers; return whether the child was one of them."""
    kill_left_behind()
    child.terminate()  # a process that was killed does not notice it
    return child.wait() == -signal.SIGKILL


def marker_of(process) -> str:
    return json.dumps(asdict(process))


@pytest.fixture
def dead():
    """A driver that has died."""
    with process_with(None) as child:
        return process_of(child.pid)


def test_a_process_of_a_dead_driver_is_killed(dead):
    with process_with(marker_of(dead)) as child:
        assert is_killed(child)


def test_a_process_of_a_driver_whose_number_another_process_has_now_is_killed():
    own = process_of(os.getpid())
    with process_with(marker_of(replace(own, started=own.started - 1))) as child:
        assert is_killed(child)


def test_a_process_of_a_live_driver_stays():
    with process_with(marker_of(process_of(os.getpid()))) as child:
        assert not is_killed(child)


def test_a_process_of_a_driver_in_another_container_or_boot_stays(dead):
    with process_with(marker_of(replace(dead, machine="another"))) as child:
        assert not is_killed(child)


@each("marker", [None, "", "1", "{}", '{"pid": 1}', '{"machine": "", "pid": 0, "started": "x"}'])
def test_a_process_without_a_valid_marker_stays(marker):
    with process_with(marker) as child:
        assert not is_killed(child)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")
def test_a_process_of_another_user_stays(dead):
    with process_with(marker_of(dead), user=65534) as child:
        assert not is_killed(child)


def test_only_what_is_started_inside_the_context_is_marked():
    show = ["sh", "-c", f"echo ${VARIABLE}"]
    with marked():
        inside = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    outside = subprocess.run(show, capture_output=True, text=True, check=True).stdout
    assert json.loads(inside) == asdict(process_of(os.getpid()))
    assert outside == "\n"


def test_the_variables_of_the_user_stay(monkeypatch):
    monkeypatch.setenv("SPT_NOENV", "mine")
    before = dict(os.environ)
    with marked():
        assert os.environ != before
    assert os.environ == before


def test_a_survey_that_starts_ray_kills_first_what_a_dead_driver_left(dead, monkeypatch):
    messages, marks = [], []
    with process_with(marker_of(dead)) as child:

        def init(**_options):
            marks.append((json.loads(os.environ[VARIABLE])["pid"], child.wait()))

        monkeypatch.setattr(ray, "init", init)
        monkeypatch.setattr(ray, "is_initialized", lambda: False)
        monkeypatch.setattr(ray, "shutdown", lambda: None)  # other tests of this process may use Ray
        monkeypatch.setattr(session, "temporary_folder", lambda _message: None)
        with ray_session(None, messages.append):
            assert VARIABLE not in os.environ
    assert marks == [(os.getpid(), -signal.SIGKILL)]
    (message,) = messages
    assert re.fullmatch(r"killed \d+ process(es)? of Ray that a driver left on this machine when it died", message)


DRIVER = """
import sys
from theodolite_jobs.cluster.session import ray_session
with ray_session(None):
    import ray
    print(ray.get(ray.remote(lambda: "ready").remote()), flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("first", ["driver", *at_night(["gcs_server"])])
def test_a_driver_that_was_killed_leaves_nothing_of_ray(first):
    """Agents of Ray live for another minute."""
    with subprocess.Popen(
        [sys.executable, "-c", DRIVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=os.environ
    ) as driver:
        try:
            assert driver.stdout.readline() == b"ready\n"
            family = psutil.Process(driver.pid).children(recursive=True)
            assert len(family) > 5
            kill_left_behind()
            assert [one for one in family if process_of(one.pid) is None] == [], "its driver lives"
            if first == "gcs_server":
                next(one for one in family if one.name() == "gcs_server").kill()
        finally:
            driver.kill()
    assert kill_left_behind() > 0
    deadline = time.monotonic() + 60
    while left := [one for one in family if process_of(one.pid) is not None]:
        assert time.monotonic() < deadline, left
        time.sleep(0.1)
