"""Estimate the GPUs per replica, the hours and the cost of a survey on known kinds of GPU. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from theodolite.spec_parts import CaptureSpec

GPUS_OF_NODE = 8

REACHED = 0.45
"""Share of the peak matrix-product rate that forward passes of large batches reach; measured on an H100 by
benchmarks/capture_gpu.py, for 7B and 32B models: 0.46."""

LAUNCH_SECONDS = 1.6e-3
"""Time in which a process launches the kernels of a block for one batch; measured there too, with small batches."""

_USABLE = 0.9
"""Share of a GPU's memory that a replica can use."""

WRITE_SECONDS = 4e-9
"""Processor time that writes a byte of activations in float32; measured by benchmarks/pipeline.py."""

REDUCE_SECONDS = 1e-9
"""Processor time that reduces such a byte to moments; measured by benchmarks/statistics.py."""


@dataclass(frozen=True)
class Kind:
    """A kind of GPU."""

    memory_bytes: float
    operations_per_second: float  # peak rate of dense bfloat16 matrix products, from the data sheet
    price_per_hour: float  # approximate cloud price of one GPU in 2026, in US dollars


KINDS = {
    "L40S": Kind(48e9, 362e12, 1.0),
    "A100-80GB": Kind(80e9, 312e12, 1.8),
    "H100-80GB": Kind(80e9, 989e12, 2.8),
    "H200-141GB": Kind(141e9, 989e12, 3.5),
}


LARGE_BATCHES = {"batch_tokens": 16384, "shard_prompts": 256}
"""Options of `capture` for GPUs."""

_NOTICEABLE_SECONDS = 60


def small_batches(waiting: float, capture: CaptureSpec) -> list[str]:
    """Return a sentence if GPUs wait for more than a minute for the launches of small batches, and may have larger."""
    small = {name: value for name, value in LARGE_BATCHES.items() if getattr(capture, name) < value}
    if not small or waiting <= _NOTICEABLE_SECONDS:
        return []
    options = " and ".join(f"capture.{name} to {value}" for name, value in small.items())
    return [
        f"the batches are small: a GPU would wait up to {waiting:,.0f} s for the launches of their kernels; for GPUs, "
        f"set {options} (another run id)"
    ]


def on_kind(
    kind: Kind,
    weight_bytes: float,
    other_bytes: Callable[[int], float],
    operations: float,
    launches: int,
    prompts: int,
    core_seconds: float,
    is_shardable: Callable[[int], bool],
) -> dict[str, Any]:
    """Return the estimate for a node with GPUs of one kind.

    Args:
        kind: the kind of GPU.
        weight_bytes: size of the model's weights.
        other_bytes: returns the bytes that a replica of n GPUs needs on each GPU besides the weights.
        operations: operations of all forward passes.
        launches: number of blocks that are run, once for each batch.
        prompts: number of prompts in the survey.
        core_seconds: processor time of the replicas to write or to reduce all activations.
        is_shardable: returns whether the model can run tensor-parallel over n GPUs.
    """
    needed = [gpus for gpus in (1, 2, 4, 8) if weight_bytes / gpus + other_bytes(gpus) <= _USABLE * kind.memory_bytes]
    if not needed:
        return {"gpus_per_replica": None, "why": f"the model does not fit on one node of {GPUS_OF_NODE} GPUs"}
    gpus, replicas = needed[0], GPUS_OF_NODE // needed[0]
    is_sharded = gpus == 1 or is_shardable(gpus)
    processes = gpus if is_sharded else 1  # each launches kernels from one core
    # In pipeline placement the GPUs work in turn, so several are as fast as one.
    speed = REACHED * kind.operations_per_second * (gpus if is_sharded else 1)
    # The kernels of a batch are launched while the GPU computes earlier ones.
    computing, launching = operations / speed, launches * LAUNCH_SECONDS
    seconds = max(computing, launching)
    gpu_hours = seconds * gpus / 3600
    per_million = gpu_hours / max(prompts, 1) * 1e6
    return {
        "gpus_per_replica": gpus,
        "parallelism": "one GPU" if gpus == 1 else "tensor" if is_sharded else "pipeline",
        "memory_per_gpu_bytes": round(weight_bytes / gpus + other_bytes(gpus)),
        "replicas_per_node": replicas,
        "cores_per_replica": round(processes + core_seconds / max(seconds, 1e-9), 1),
        "seconds_waiting_for_launches": round(max(0.0, launching - computing)),
        "hours_on_one_node": round(gpu_hours / (gpus * replicas), 3),
        "gpu_hours_per_million_prompts": round(per_million, 2),
        "dollars_per_million_prompts": round(per_million * kind.price_per_hour, 2),
        "price_per_gpu_hour": kind.price_per_hour,
    }
