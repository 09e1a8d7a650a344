"""A base model in memory, with the record of its family."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from theodolite_jobs.models.anatomy import Anatomy, Dimensions


@dataclass(frozen=True)
class LoadedModel:
    """A base model in memory, with the record of its family and its sizes.

    Several processes, the ranks, may share it: each has a shard of every matrix and the full residual stream.
    """

    module: Any
    anatomy: Anatomy
    dimensions: Dimensions
    ranks: int = 1
    reload: Callable[..., "LoadedModel"] | None = None  # `load_model` of its folder: a sharded model cannot be copied

    @property
    def config(self) -> Any:
        """The configuration of transformers."""
        return self.module.config

    @property
    def blocks(self) -> Any:
        """The blocks, in order."""
        return self.module.get_submodule(self.anatomy.blocks)

    @property
    def device(self) -> Any:
        """The device of the embedding, which token ids must be on."""
        return self.module.get_input_embeddings().weight.device

    @property
    def dtype(self) -> Any:
        """The dtype of the arithmetic."""
        return self.module.dtype

    def run(self, **inputs: Any) -> Any:
        """Run the base model, after a reset of rotary modules that adapt to the longest prompt so far.

        On a CPU, the output does not depend on the number of threads.
        """
        for module, prefix in self._dynamic_rotary:
            setattr(module, f"{prefix}max_seq_len_cached", module.original_max_seq_len)
            device = getattr(module, f"{prefix}inv_freq").device
            setattr(module, f"{prefix}inv_freq", getattr(module, f"{prefix}original_inv_freq").to(device))
        import torch  # it takes seconds to load

        from theodolite_jobs.models.threads import ThreadsForRows, threads_for

        if self.device.type != "cpu" or torch.get_num_threads() == 1:
            return self.module(**inputs)
        with threads_for(inputs["input_ids"].numel()), ThreadsForRows():
            return self.module(**inputs)

    @cached_property
    def _dynamic_rotary(self) -> list[tuple[Any, str]]:
        """The rotary modules of the `dynamic` kind, each with the prefix of its attributes."""
        dynamic = []
        for module in self.module.modules():
            kinds = getattr(module, "rope_type", None)
            for layer_type, kind in (kinds if isinstance(kinds, dict) else {"": str(kinds)}).items():
                if "dynamic" in kind:
                    dynamic.append((module, f"{layer_type}_" if layer_type else ""))
        return dynamic
