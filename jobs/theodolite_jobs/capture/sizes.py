"""Choose the sizes of batches and shards for a kind of device, where the spec leaves them open: a pure function."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, log2
from typing import Literal

from theodolite.spec_parts import CaptureSpec
from theodolite_jobs.costs import GPU

Device = Literal["cpu", "gpu"]

CPU_TOKENS, CPU_PROMPTS = 2048, 64
"""Sizes for a CPU: larger batches leave its caches, and gain nothing (benchmarks/capture.py)."""

_LEAST_GPU_TOKENS, _MOST_TOKENS = 16_384, 65_536
"""The least budget with which 7B and 32B models were measured near their peak (benchmarks/capture_gpu.py), and one
whose activations fit beside any model that needs it."""

_LAUNCHES = 8
"""How many times as long as to launch a block's kernels its computation takes, so that the launches are hidden."""

_LEAST_BATCHES = 16
"""Batches that a small survey has at least on a GPU, so that writing overlaps with computation."""

_BATCHES_OF_A_SHARD = 4
"""Full batches of a shard: the more prompts it has, the more of them have the same length, and the less is padding."""

_MOST_PROMPTS, _MOST_SHARD_BYTES = 1024, 3 * 2**29
"""A replica holds a few shards that are not written yet."""


@dataclass(frozen=True)
class SetSizes:
    """What the choice needs to know about a prompt set."""

    n_prompts: int
    tokens: int  # of all prompts
    prompt_bytes: int  # of the activations of a prompt, in float32


def with_sizes(capture: CaptureSpec, device: Device, block_weights: float, sets: Iterable[SetSizes]) -> CaptureSpec:
    """Return the options with numbers in place of `auto`.

    They depend neither on the number of replicas nor on the machine, except on the kind of its device. So any number of
    replicas of one kind gives the same batches and the same bits.

    Args:
        capture: the options.
        device: the kind of device that computes the forward passes.
        block_weights: mean number of weights of a block that a token is multiplied with.
        sets: the prompt sets.
    """
    sets = list(sets)
    tokens, prompts = capture.batch_tokens, capture.shard_prompts
    if tokens == "auto":
        tokens = CPU_TOKENS if device == "cpu" else _gpu_tokens(block_weights, sum(one.tokens for one in sets))
    if prompts == "auto":
        prompts = CPU_PROMPTS if device == "cpu" else _gpu_prompts(tokens, sets)
    return capture.model_copy(update={"batch_tokens": tokens, "shard_prompts": prompts})


def _gpu_tokens(block_weights: float, tokens: int) -> int:
    """Return a budget of which a block's computation hides its launches, and which leaves enough batches."""
    per_launch = GPU.launch_seconds * GPU.share * GPU.peak / (2 * max(block_weights, 1.0))
    hidden = min(max(_LEAST_GPU_TOKENS, _power_of_two(_LAUNCHES * per_launch)), _MOST_TOKENS)
    return max(CPU_TOKENS, min(hidden, _power_of_two(tokens / _LEAST_BATCHES)))


def _gpu_prompts(batch_tokens: int, sets: list[SetSizes]) -> int:
    """Return how many prompts fill several batches, within the memory for shards that are not written yet."""
    n_prompts = sum(one.n_prompts for one in sets)
    mean = max(1.0, sum(one.tokens for one in sets) / max(1, n_prompts))
    prompts = min(max(CPU_PROMPTS, _power_of_two(_BATCHES_OF_A_SHARD * batch_tokens / mean)), _MOST_PROMPTS)
    while prompts > CPU_PROMPTS and any(
        min(prompts, one.n_prompts) * one.prompt_bytes > _MOST_SHARD_BYTES for one in sets
    ):
        prompts //= 2
    return prompts


def _power_of_two(number: float) -> int:
    """Return the smallest power of two that is not smaller than a number."""
    return 1 << ceil(log2(max(number, 1.0)))
