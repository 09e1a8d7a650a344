"""What a survey would take on GPUs of known kinds: how many for one copy of the model, hours, and cost. Pure."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

GPUS_OF_NODE = 8

_REACHED = 0.5
"""Share of the peak of matrix products that forward passes reach."""

_USABLE = 0.9
"""Share of a GPU's memory that is left to us."""


@dataclass(frozen=True)
class Kind:
    """A kind of GPU.

    Attributes:
        memory_bytes: its memory.
        operations_per_second: peak of dense bfloat16 matrix products, by its maker's data sheet.
        price_per_hour: what clouds asked for one in 2026, in dollars, roughly.
    """

    memory_bytes: float
    operations_per_second: float
    price_per_hour: float


KINDS = {
    "L40S": Kind(48e9, 362e12, 1.0),
    "A100-80GB": Kind(80e9, 312e12, 1.8),
    "H100-80GB": Kind(80e9, 989e12, 2.8),
    "H200-141GB": Kind(141e9, 989e12, 3.5),
}


def on_kinds(
    weight_bytes: float,
    other_bytes: Callable[[int], float],
    operations: float,
    prompts: int,
    can_be_cut: Callable[[int], bool],
) -> dict[str, dict[str, Any]]:
    """Return what a survey takes on a node of each kind of GPU.

    Args:
        weight_bytes: the model's weights.
        other_bytes: what a replica needs on each of so many GPUs besides: activations, and what parity takes at first.
        operations: of all forward passes.
        prompts: of the survey.
        can_be_cut: whether the model can run in tensor parallel over so many GPUs.
    """
    return {
        name: _on_kind(kind, weight_bytes, other_bytes, operations, prompts, can_be_cut) for name, kind in KINDS.items()
    }


def _on_kind(
    kind: Kind,
    weight_bytes: float,
    other_bytes: Callable[[int], float],
    operations: float,
    prompts: int,
    can_be_cut: Callable[[int], bool],
) -> dict[str, Any]:
    needed = [gpus for gpus in (1, 2, 4, 8) if weight_bytes / gpus + other_bytes(gpus) <= _USABLE * kind.memory_bytes]
    if not needed:
        return {"gpus_per_replica": None, "why": f"one node of {GPUS_OF_NODE} does not hold the model"}
    is_cut = needed[0] == 1 or can_be_cut(needed[0])
    gpus, replicas = needed[0], GPUS_OF_NODE // needed[0]
    # Where blocks lie one after the other on several GPUs, these work in turn: no faster than one.
    speed = _REACHED * kind.operations_per_second * (gpus if is_cut else 1)
    gpu_hours = operations / speed * gpus / 3600
    per_million = gpu_hours / max(prompts, 1) * 1e6
    return {
        "gpus_per_replica": gpus,
        "parallelism": "one GPU" if gpus == 1 else "tensor" if is_cut else "pipeline",
        "memory_per_gpu_bytes": round(weight_bytes / gpus + other_bytes(gpus)),
        "replicas_per_node": replicas,
        "hours_on_one_node": round(gpu_hours / (gpus * replicas), 3),
        "gpu_hours_per_million_prompts": round(per_million, 2),
        "dollars_per_million_prompts": round(per_million * kind.price_per_hour, 2),
        "price_per_gpu_hour": kind.price_per_hour,
    }
