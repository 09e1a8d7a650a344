"""What a survey's driver shows Prometheus."""

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request

import pytest

from theodolite import metrics
from theodolite.errors import SpecError
from theodolite.metrics import REGISTRY, CaptureMetrics, served, timed
from theodolite.settings import Settings
from theodolite.store.commits import Commit

COMMIT = Commit(
    prompt_set="set",
    index=0,
    start=10,
    stop=14,
    attempt="a",
    checksums={},
    batches=[[10, 11], [12, 13]],
    quarantined={12: "not finite"},
    oom_backoffs=2,
    tokens=100,
    shared_tokens=40,
    computed_tokens=75,
    padding_tokens=15,
    seconds=1.5,
    stored_bytes=4096,
    store_seconds=0.25,
)


def value(name, **labels):
    return REGISTRY.get_sample_value(f"theodolite_{name}", labels)


def test_counters_are_what_commit_records_say():
    counted = CaptureMetrics("by-hand", ("died",))
    assert value("shards_committed_total", model="by-hand") == 0, "a series that begins at 1 is never seen to grow"
    assert value("shard_retries_total", model="by-hand", reason="died") == 0
    counted.committed(COMMIT.numbers())
    counted.committed(COMMIT.numbers())
    counted.retried("died")
    counted.progress(30, 40)
    expected = {
        "shards_committed_total": 2,
        "prompts_captured_total": 8,
        "tokens_captured_total": 200,
        "prefix_tokens_saved_total": 80,
        "padding_tokens_total": 30,
        "prompts_quarantined_total": 2,
        "oom_backoffs_total": 4,
        "store_bytes_written_total": 8192,
        "capture_seconds_sum": 3.0,
        "capture_seconds_count": 2,
        "store_write_seconds_sum": 0.5,
        "run_progress_ratio": 0.75,
    }
    assert {name: value(name, model="by-hand") for name in expected} == expected
    assert value("shard_retries_total", model="by-hand", reason="died") == 1


def test_an_analysis_that_fails_is_not_timed():
    before = value("statistics_seconds_count", analysis="by hand") or 0
    with timed("by hand"):
        pass
    with pytest.raises(ValueError, match="no"), timed("by hand"):
        raise ValueError("no")
    assert value("statistics_seconds_count", analysis="by hand") == before + 1


def test_a_driver_says_where_it_is_for_as_long_as_it_lives(tmp_path):
    folder = tmp_path / "targets"
    with served(Settings(metrics_port=0, metrics_targets=folder)):
        (file,) = folder.glob("*.json")
        (group,) = json.loads(file.read_text())
        with urllib.request.urlopen(f"http://{group['targets'][0]}/metrics", timeout=5) as answer:
            assert b"theodolite_build_info" in answer.read()
    assert list(folder.iterdir()) == []


DRIVER = """
import sys, time
from pathlib import Path
from theodolite.metrics import served
from theodolite.settings import Settings

with served(Settings(metrics_port=0, metrics_targets=Path(sys.argv[1]), metrics_linger_seconds=60)):
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
        began = time.monotonic()
        os.kill(driver.pid, how)
        assert driver.wait(timeout=30) == (143 if how == signal.SIGTERM else -signal.SIGKILL)
        assert time.monotonic() - began < 20, "it lingered"
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


def test_a_driver_says_that_it_lives(tmp_path, monkeypatch):
    monkeypatch.setattr(metrics, "_SECONDS_OF_SILENCE", 0.5)
    with served(Settings(metrics_port=0, metrics_targets=tmp_path)):
        (file,) = tmp_path.iterdir()
        os.utime(file, (0, 0))
        deadline = time.monotonic() + 20
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
