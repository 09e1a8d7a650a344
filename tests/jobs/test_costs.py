"""The model of cost, against every stored measurement of capture."""

import json
from pathlib import Path

from support.each import each

from theodolite_jobs.costs import CPU_SHARE, GPU, Forward, core

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
ALLOWED = 0.25
WEIGHTS = {"7b": 28 * 233_057_792, "32b": 64 * 487_065_600, "smollm2-135m-instruct": 30 * 3_540_096}
BLOCKS = {"7b": 28, "32b": 64}


def stored(pattern):
    return [json.loads(path.read_text()) for path in sorted(RESULTS.glob(pattern))]


def on_cpus():
    """Yield the name, the estimated and the measured seconds of each set of prompts on a CPU."""
    for result in stored("capture_*.json"):
        for name, mix in result["mixes"].items():
            device = Forward(mix["matrix_peak_operations_per_second"], CPU_SHARE)
            operations = 2 * WEIGHTS[mix["model"]] * mix["computed_tokens"]
            needed = 2 * WEIGHTS[mix["model"]] * mix["needed_tokens"]
            measured = needed / (mix["share_of_matrix_peak"] * mix["matrix_peak_operations_per_second"])
            yield name, device.seconds(operations, 0), measured


def on_gpus():
    """Yield the same of each plan on a GPU, without writing: the stored runs had two shards, and the last one waits."""
    for result in stored("capture-gpu_*.json"):
        for name, shape in result["shapes"].items():
            for plan in shape["plans"]:
                tokens = plan.get("computed_tokens", COMPUTED.get(plan["batch_tokens"]))
                seconds = GPU.seconds(2 * WEIGHTS[name] * tokens, plan["batches"] * BLOCKS[name])
                yield f"{name} {plan['batch_tokens']}", seconds, shape["prompts"] / plan["prompts_per_second"]
    for result in stored("fusions-gpu_*.json"):
        n_tokens = {plan["batch_tokens"]: plan for plan in result["plan_tokens"]}
        weights = WEIGHTS["7b"] / BLOCKS["7b"] * result["layers"]
        for plan in result["plans"]:
            if plan["variant"] in ("F.rms_norm", "plain"):
                counts = n_tokens[plan["batch_tokens"]]
                seconds = GPU.seconds(2 * weights * counts["computed_tokens"], counts["batches"] * result["layers"])
                share = plan["capture_share"] * result["matrix_peak_operations_per_second"]
                yield (
                    f"{plan['batch_tokens']} {plan['variant']}",
                    seconds,
                    2 * weights * counts["needed_tokens"] / share,
                )


COMPUTED = {2048: 114_662, 16384: 117_589}
"""Computed tokens of plans that were stored without this number: those of the same prompts and budgets."""


@each("measurements", [on_cpus, on_gpus])
def test_the_estimate_is_near_each_measurement(measurements):
    rows = list(measurements())
    assert len(rows) >= 3
    far = [(name, estimated, measured) for name, estimated, measured in rows if abs(estimated / measured - 1) > ALLOWED]
    assert far == []


def test_launches_of_small_batches_take_longer_than_their_computation():
    device = Forward(100.0, 0.5, 2.0)
    assert device.seconds(operations=1000, launches=4) == 20
    assert device.seconds(operations=1000, launches=40) == 80


def test_the_peak_of_a_core_is_measured_and_threads_are_as_before():
    import torch

    before = torch.get_num_threads()
    assert 1e9 < core().peak < 1e12
    assert core().share == CPU_SHARE
    assert torch.get_num_threads() == before
