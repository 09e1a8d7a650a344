"""What a survey's driver shows Prometheus, and for how long."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from theodolite.errors import CaptureError, SpecError, StoreError
from theodolite.metrics import REGISTRY
from theodolite.settings import Settings
from theodolite_jobs import metrics_server
from theodolite_jobs.metrics_server import served


def test_a_driver_says_where_it_is_for_as_long_as_it_lives(tmp_path):
    folder = tmp_path / "targets"
    with served(Settings(metrics_port=0, metrics_targets=folder)):
        (file,) = folder.glob("*.json")
        (group,) = json.loads(file.read_text())
        with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=60) as answer:
            assert b"theodolite_build_info" in answer.read()
    assert list(folder.iterdir()) == []


DRIVER = """
import sys, time
from pathlib import Path
from theodolite_jobs.metrics_server import served
from theodolite.settings import Settings

with served(Settings(metrics_port=0, metrics_targets=Path(sys.argv[1]), metrics_linger_seconds=600)):
    print("works", flush=True)
    time.sleep(60)
"""


def test_a_driver_that_is_told_to_stop_takes_its_file_away_and_one_that_was_killed_has_it_taken_by_a_later_one(
    tmp_path,
):
    for how in (signal.SIGTERM, signal.SIGKILL):
        driver = subprocess.Popen([sys.executable, "-c", DRIVER, tmp_path], stdout=subprocess.PIPE, text=True)
        with driver.stdout:
            assert driver.stdout.readline() == "works\n"
        os.kill(driver.pid, how)
        # Less than it would linger: a driver that is told to stop does not.
        assert driver.wait(timeout=120) == (143 if how == signal.SIGTERM else -signal.SIGKILL)
        assert len(list(tmp_path.iterdir())) == (how == signal.SIGKILL)
    (left,) = tmp_path.iterdir()
    left = left.rename(tmp_path / "theodolite-10.0.0.7-40001.json")  # of another machine, or of a container that was
    with served(Settings(metrics_port=0, metrics_targets=tmp_path)):
        assert len(list(tmp_path.iterdir())) == 2, "it may still live"
    os.utime(left, (0, time.time() - 3600))
    with served(Settings(metrics_port=0, metrics_targets=tmp_path)):
        assert len(list(tmp_path.iterdir())) == 1
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_is_left_alone(tmp_path):
    strangers = tmp_path / "node-exporters.json"
    strangers.write_text("[]")
    os.utime(strangers, (0, 0))
    (tmp_path / "theodolite-gone.json").symlink_to(tmp_path / "nowhere")  # as if it went between two looks
    with served(Settings(metrics_port=0, metrics_targets=tmp_path)):
        assert strangers.exists()


def test_a_driver_rewrites_its_target_file(tmp_path):
    with served(Settings(metrics_port=0, metrics_targets=tmp_path), stale_seconds=0.5):
        (file,) = tmp_path.iterdir()
        os.utime(file, (0, 0))
        deadline = time.monotonic() + 60
        while file.stat().st_mtime == 0 and time.monotonic() < deadline:
            time.sleep(0.02)
        assert file.stat().st_mtime > 0


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").touch()
    settings = Settings(metrics_port=0, metrics_targets=tmp_path / "file" / "targets")
    with pytest.raises(SpecError, match="THEODOLITE_METRICS_TARGETS: cannot write"), served(settings):
        pass


def test_nothing_is_served_unless_asked(tmp_path):
    with served(Settings(metrics_targets=tmp_path)):
        assert list(tmp_path.iterdir()) == []


def test_a_port_that_is_taken_is_said(tmp_path):
    with served(Settings(metrics_port=0, metrics_targets=tmp_path)):
        port = int(json.loads(next(tmp_path.glob("*.json")).read_text())[0]["targets"][0].rsplit(":")[1])
        with pytest.raises(SpecError, match=f"cannot listen on {port}"), served(Settings(metrics_port=port)):
            pass


def scraped(folder):
    (file,) = folder.glob("*.json")
    (group,) = json.loads(file.read_text())
    with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith("theodolite_survey_failed "))


@pytest.mark.parametrize("error", [CaptureError("no replica left"), StoreError("full"), ValueError("a bug")])
def test_a_survey_that_failed_is_seen_while_its_driver_lingers(tmp_path, monkeypatch, error):
    seen = []
    monkeypatch.setattr(metrics_server.time, "sleep", lambda _seconds: seen.append(scraped(tmp_path)))
    settings = Settings(metrics_port=0, metrics_targets=tmp_path, metrics_linger_seconds=20)
    with pytest.raises(type(error)), served(settings):
        raise error
    assert seen == [1]
    with served(settings):
        assert scraped(tmp_path) == 0, "the next survey of this process has not failed"
    assert seen == [1, 0]


@pytest.mark.parametrize("stop", [SystemExit(143), KeyboardInterrupt()])
def test_a_survey_that_is_stopped_has_not_failed(tmp_path, stop):
    settings = Settings(metrics_port=0, metrics_targets=tmp_path, metrics_linger_seconds=60)
    with pytest.raises(type(stop)), served(settings):
        raise stop
    assert REGISTRY.get_sample_value("theodolite_survey_failed") == 0
