"""The metrics of a capture and of the analyses."""

import pytest

from theodolite.metrics import REGISTRY, CaptureMetrics, timed
from theodolite.store.records import Commit

COMMIT = Commit(
    run_id="run-0",
    prompt_set="set",
    index=0,
    start=10,
    stop=14,
    attempt="a",
    checksums={},
    batches=[[10, 11], [12, 13]],
    quarantined={12: "not finite"},
    oom_backoffs=2,
    spot_checks=3,
    spot_checks_rerouted=1,
    spot_check_error=0.25,
    tokens=100,
    shared_tokens=40,
    computed_tokens=75,
    padding_tokens=15,
    seconds=1.5,
    stored_bytes=4096,
    encode_seconds=0.5,
    store_seconds=0.25,
    idle_seconds=0.125,
)


def value(name, **labels):
    return REGISTRY.get_sample_value(f"theodolite_{name}", labels)


def test_counters_equal_the_sums_of_the_commit_records():
    counted = CaptureMetrics("by-hand", ("died",))
    assert value("shards_committed_total", model="by-hand") == 0, (
        "`rate` does not see the first increment of a new series"
    )
    assert value("shard_retries_total", model="by-hand", reason="died") == 0
    counted.committed({**COMMIT.numbers(), "commit_seconds": 0.75})
    counted.committed({**COMMIT.numbers(), "commit_seconds": 0.25})
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
        "spot_checks_total": 6,
        "spot_checks_rerouted_total": 2,
        "spot_check_error": 0.25,
        "store_bytes_written_total": 8192,
        "capture_seconds_sum": 3.0,
        "capture_seconds_count": 2,
        "encode_seconds_sum": 1.0,
        "store_write_seconds_sum": 0.5,
        "commit_seconds_sum": 1.0,
        "replica_idle_seconds_total": 0.25,
        "run_progress_ratio": 0.75,
    }
    assert {name: value(name, model="by-hand") for name in expected} == expected
    assert value("shard_retries_total", model="by-hand", reason="died") == 1


def test_the_requested_replicas_are_not_the_ready_ones():
    metrics = CaptureMetrics("two-of-three", ())
    metrics.wanted(3)
    metrics.replicas(2)
    assert value("replicas_wanted", model="two-of-three") == 3
    assert value("replicas", model="two-of-three") == 2


def test_an_analysis_that_fails_is_not_timed():
    before = value("statistics_seconds_count", analysis="by hand") or 0
    with timed("by hand"):
        pass
    with pytest.raises(ValueError, match="no"), timed("by hand"):
        raise ValueError("no")
    assert value("statistics_seconds_count", analysis="by hand") == before + 1
