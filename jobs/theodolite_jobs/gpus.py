"""Estimate the GPUs per replica, the hours and the cost of a survey on known kinds of GPU. Pure functions."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from theodolite_jobs.costs import GPU_SHARE, H100_PEAK, LAUNCH_SECONDS, Forward

GPUS_OF_NODE = 8

_USABLE = 0.9
"""Share of a GPU's memory that a replica can use."""


@dataclass(frozen=True)
class Kind:
    """A kind of GPU."""

    memory_bytes: float
    operations_per_second: float  # peak rate of dense bfloat16 matrix products, from the data sheet
    price_per_hour: float  # approximate cloud price of one GPU in 2026, in US dollars


KINDS = {
    "L40S": Kind(48e9, 362e12, 1.0),
    "A100-80GB": Kind(80e9, 312e12, 1.8),
    "H100-80GB": Kind(80e9, H100_PEAK, 2.8),
    "H200-141GB": Kind(141e9, H100_PEAK, 3.5),
}


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
    peak = kind.operations_per_second * (gpus if is_sharded else 1)
    seconds = Forward(peak, GPU_SHARE, LAUNCH_SECONDS).seconds(operations, launches)
    gpu_hours = seconds * gpus / 3600
    per_million = gpu_hours / max(prompts, 1) * 1e6
    return {
        "gpus_per_replica": gpus,
        "parallelism": "one GPU" if gpus == 1 else "tensor" if is_sharded else "pipeline",
        "memory_per_gpu_bytes": round(weight_bytes / gpus + other_bytes(gpus)),
        "replicas_per_node": replicas,
        "cores_per_replica": round(processes + core_seconds / max(seconds, 1e-9), 1),
        "hours_on_one_node": round(gpu_hours / (gpus * replicas), 3),
        "gpu_hours_per_million_prompts": round(per_million, 2),
        "dollars_per_million_prompts": round(per_million * kind.price_per_hour, 2),
        "price_per_gpu_hour": kind.price_per_hour,
    }
