"""On a GPU, compute each norm with one kernel, where transformers uses several; the result is the same up to rounding.

On an H200, the capture of blocks of 7B shape is 10 % faster with it (fusions-gpu_h200_2026-11-29.json). The parity
check compares with a run that fuses nothing. On a CPU there is nothing to gain: torch computes `rms_norm` there with
the same operations, to the bit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from inspect import signature
from typing import Any

import torch
from torch.nn.functional import rms_norm

from theodolite_jobs.models.loaded import LoadedModel

Fused = tuple[torch.nn.Module, Callable[[torch.Tensor], torch.Tensor]]
"""A module, and the forward that computes the same with one kernel."""

CLOSE = 1e-5
"""The largest relative difference between a module and `rms_norm`, in float32."""


def fused_on_device(model: LoadedModel) -> Sequence[Fused]:
    """Return the norms to fuse on the model's device; none on a CPU, or if ranks share the model."""
    return list(fused_norms(model)) if model.device.type == "cuda" and model.ranks == 1 else []


@contextmanager
def applied(norms: Sequence[Fused]) -> Iterator[None]:
    """Run a model with fused norms inside the context."""
    for module, forward in norms:
        module.forward = forward
    try:
        yield
    finally:
        for module, _ in norms:
            del module.forward


def fused_norms(model: LoadedModel) -> Iterator[Fused]:
    """Yield each module that computes what `rms_norm` computes, as a comparison shows, with the fused forward."""
    weight: Any
    for module in model.module.modules():
        weight, eps = getattr(module, "weight", None), getattr(module, "variance_epsilon", getattr(module, "eps", None))
        if (
            isinstance(eps, float)
            and [name for name, _ in module.named_parameters()] == ["weight"]
            and weight.ndim == 1
            and weight.dtype == model.dtype  # the kernel takes one dtype
            and "forward" not in vars(module)  # else accelerate moves its input to its device
            and len(signature(module.forward).parameters) == 1  # some take a gate too
            and _is_rms_norm(module, eps)
        ):
            yield module, partial(_fused, weight, eps)


def _fused(weight: torch.Tensor, eps: float, hidden: torch.Tensor) -> torch.Tensor:
    return rms_norm(hidden, weight.shape, weight, eps)


@torch.inference_mode()
def _is_rms_norm(module: torch.nn.Module, eps: float) -> bool:
    """Return whether a module computes x / √(mean x² + eps) · weight; others add 1 to the weight."""
    copy: Any = deepcopy(module).float()
    drawn = torch.Generator().manual_seed(0)
    hidden = torch.randn(4, len(copy.weight), generator=drawn).to(copy.weight.device)
    try:
        ours, theirs = _fused(copy.weight, eps, hidden), copy(hidden)
    except torch.OutOfMemoryError:
        raise
    except (TypeError, RuntimeError):  # it takes another kind or shape of input
        return False
    return bool((ours - theirs).norm() <= CLOSE * theirs.norm())
