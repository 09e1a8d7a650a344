"""Compute a model in a higher precision with the same weights, in the memory of one more block.

In float64, what a family rounds to float32 whatever the dtype of the model is computed in float64 too.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from theodolite.errors import ModelError
from theodolite_jobs.models.loaded import LoadedModel


@contextmanager
def computed_in(model: LoadedModel, dtype: torch.dtype) -> Iterator[None]:
    """Inside the context, the model computes in `dtype`, which is wider than its own; its weights do not change.

    Only one block at a time has its weights in `dtype`. A copy of a large model would not fit into the memory of its
    GPU.
    """
    in_blocks = Counter(module for block in model.blocks for module in block.modules())
    outside = _Widened((module for module in model.module.modules() if module not in in_blocks), dtype)
    current: list[tuple[int, _Widened]] = []

    def restore() -> None:
        if current:
            current.pop()[1].restore()

    def use(index: int, block: Any) -> None:
        if not current or current[0][0] != index:
            restore()
            current.append((index, _Widened(block.modules(), dtype)))

    with ExitStack() as hooks:  # undoes everything at its end
        if dtype == torch.float64:
            hooks.enter_context(throughout_float64())
        hooks.callback(outside.restore)
        hooks.callback(restore)
        for index, block in enumerate(model.blocks):
            # The identities between sites call modules inside of a block. Some families share modules between blocks.
            for module in (block, *(one for one in block.modules() if in_blocks[one] == 1)):
                hook = module.register_forward_pre_hook(lambda *_, index=index, block=block: use(index, block))
                hooks.enter_context(hook)
        yield


def throughout_float64() -> TorchFunctionMode:
    """Return a context in which each request for float32 gives float64.

    Families round to float32 in norms, rotary angles, the softmax and gated delta rules, so a run of a model in float64
    is not exact without it.
    """
    return _Float32IsFloat64()


class _Float32IsFloat64(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            return args[0].double()
        wide = [torch.float64 if one is torch.float32 else one for one in args]
        named = {name: torch.float64 if one is torch.float32 else one for name, one in (kwargs or {}).items()}
        return func(*wide, **named)


def check_finite(module: Any) -> None:
    """Raise ModelError, with its name, for a weight that has NaN or infinity."""
    for name, weight in (*module.named_parameters(), *module.named_buffers()):
        # Buffers such as masks may have an infinity.
        wrong = weight.isnan() if not isinstance(weight, torch.nn.Parameter) else ~weight.isfinite()
        if bool(wrong.any()):
            remedy = "set model.dtype to bfloat16 or float32" if weight.dtype == torch.float16 else "use another one"
            raise ModelError(
                f"the weight {name} has NaN or infinity in {str(weight.dtype).removeprefix('torch.')} in "
                f"{int(wrong.sum())} of {weight.numel()} values; a checkpoint must be finite, so {remedy}"
            )


class _Widened:
    """The weights and buffers of modules in a wider dtype, until `restore` puts the original tensors back."""

    def __init__(self, modules: Iterable[Any], dtype: torch.dtype) -> None:
        self._own: list[tuple[dict[str, Any], str, torch.Tensor]] = []
        with torch.inference_mode(False):
            for module in modules:
                for tensors in (module._parameters, module._buffers):
                    for name, tensor in tensors.items():
                        if tensor is None or not tensor.is_floating_point():
                            continue
                        if 2 <= tensor.itemsize < dtype.itemsize:  # one byte is a quantised weight
                            self._own.append((tensors, name, tensor))
                            tensors[name] = _same_kind(tensor, tensor.detach().to(dtype))

    def restore(self) -> None:
        for tensors, name, tensor in self._own:
            tensors[name] = tensor


def _same_kind(original: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    is_weight = isinstance(original, torch.nn.Parameter)
    return torch.nn.Parameter(values, requires_grad=False) if is_weight else values
