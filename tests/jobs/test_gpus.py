"""What a survey would take on GPUs, by hand."""

import pytest

from theodolite_jobs.costs import LAUNCH_SECONDS, WRITE_SECONDS
from theodolite_jobs.gpus import KINDS, on_kind


def other(_gpus):
    return 5e9


def on_kinds(*survey):
    return {name: on_kind(kind, *survey) for name, kind in KINDS.items()}


def test_a_model_of_65_gb_takes_one_h200_and_two_gpus_of_80_gb():
    found = on_kinds(65e9, other, 2 * 32e9 * 40 * 1e6, 1000, 1_000_000, 2.6e12 * WRITE_SECONDS, lambda _gpus: True)
    assert found["H200-141GB"]["gpus_per_replica"] == 1
    assert found["H100-80GB"]["gpus_per_replica"] == 1  # 70 of 72 GB
    found = on_kinds(70e9, other, 2 * 32e9 * 40 * 1e6, 1000, 1_000_000, 2.6e12 * WRITE_SECONDS, lambda _gpus: True)
    assert found["H100-80GB"]["gpus_per_replica"] == 2
    assert found["H100-80GB"]["memory_per_gpu_bytes"] == 40e9
    assert found["H100-80GB"]["replicas_per_node"] == 4
    assert found["L40S"]["gpus_per_replica"] == 2


def test_hours_and_cost_follow_from_operations():
    operations = 2 * 32e9 * 40 * 1e6  # a million prompts of 40 tokens
    found = on_kinds(64e9, other, operations, 1000, 1_000_000, 2.6e12 * WRITE_SECONDS, lambda _gpus: True)["H200-141GB"]
    hours = operations / (0.5 * 989e12) / 3600
    assert found["gpu_hours_per_million_prompts"] == pytest.approx(hours, abs=0.01)
    assert found["cores_per_replica"] == pytest.approx(1 + 2.6e12 * 4e-9 / (hours * 3600), abs=0.05)
    assert found["hours_on_one_node"] == pytest.approx(hours / 8, abs=0.001)
    assert found["dollars_per_million_prompts"] == pytest.approx(hours * KINDS["H200-141GB"].price_per_hour, abs=0.01)


def test_small_batches_take_the_time_of_their_launches():
    few, many = (
        on_kinds(14e9, other, 1e15, launches, 1000, 0.0, lambda _gpus: True)["H100-80GB"] for launches in (100, 28_000)
    )
    assert few["gpu_hours_per_million_prompts"] == pytest.approx(1e15 / (0.5 * 989e12) / 3.6, abs=0.01)
    assert many["gpu_hours_per_million_prompts"] == pytest.approx(28_000 * LAUNCH_SECONDS / 3.6, abs=0.01)


def test_ranks_share_the_operations_but_not_the_launches():
    alone, sharded = (
        on_kinds(weights, other, 1e18, 1_000_000, 1000, 0.0, lambda _gpus: True)["H100-80GB"]
        for weights in (60e9, 120e9)
    )
    assert (alone["gpus_per_replica"], sharded["gpus_per_replica"]) == (1, 2)
    # Alone, 2,022 s of computation hide 1,600 s of launches; two GPUs would compute for 1,011 s.
    assert alone["gpu_hours_per_million_prompts"] == pytest.approx(1e18 / (0.5 * 989e12) / 3.6, abs=0.01)
    assert sharded["gpu_hours_per_million_prompts"] == pytest.approx(2 * 1600 / 3.6, abs=0.01)


def test_gpus_that_work_in_turn_cost_their_number():
    cut, laid = (
        on_kinds(140e9, other, 1e18, 1000, 1000, 2.6e9 * WRITE_SECONDS, lambda _gpus, way=way: way)["H100-80GB"]
        for way in (True, False)
    )
    assert (cut["parallelism"], laid["parallelism"]) == ("tensor", "pipeline")
    assert laid["hours_on_one_node"] == pytest.approx(cut["hours_on_one_node"] * cut["gpus_per_replica"], rel=0.01)


def test_a_model_that_no_node_holds_is_said():
    found = on_kinds(1e12, other, 1e18, 1000, 1000, 2.6e9 * WRITE_SECONDS, lambda _gpus: True)
    assert found["L40S"] == {"gpus_per_replica": None, "why": "the model does not fit on one node of 8 GPUs"}
