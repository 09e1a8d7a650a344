"""Rules that turn tensors of a GGUF file into tensors of the model in transformers.

llama.cpp stores some tensors in another layout: it reorders the rows of queries and keys for its rotary kernel, adds 1
to the scales of Gemma's norms, and stacks, fuses or splits others. A rule undoes this. It also runs on tensors without
data, which tells the names and shapes of a model before a weight is read.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # torch takes seconds to load, and a file may be refused by its header
    from torch import Tensor


@dataclass(frozen=True)
class Rule:
    """How tensors of a file become tensors of the model. The names of tensors in a block lack the block's prefix."""

    sources: tuple[str, ...]
    compute: Callable[..., dict[str, "Tensor"]]  # takes the configuration and the sources, and returns tensors by name
    is_optional: bool = False


@dataclass(frozen=True)
class Rules:
    """The rules of an architecture."""

    outside: tuple[Rule, ...]
    block: tuple[Rule, ...]
    prefix: str = "model.layers.{}."  # of the tensors of a block in the model


def same(source: str, target: str, *, optional: bool = False) -> Rule:
    """Return the rule of a tensor that only has another name."""
    return Rule((source,), lambda _, one: {target: one}, optional)


def linear(source: str, target: str, *, optional: bool = False, bias: bool = False) -> tuple[Rule, Rule]:
    """Return the rules of a weight and of its bias, which is optional unless `bias`."""
    return (
        same(f"{source}.weight", f"{target}.weight", optional=optional),
        same(f"{source}.bias", f"{target}.bias", optional=not bias),
    )


def rotated(source: str, target: str, heads: str) -> tuple[Rule, ...]:
    """Return the rules of queries or keys whose rows llama.cpp reorders; `heads` names their number of heads."""

    def rule(kind: str, optional: bool) -> Rule:
        def compute(config: Any, rows: "Tensor") -> dict[str, "Tensor"]:
            pairs = rows.reshape(getattr(config, heads), -1, 2, *rows.shape[1:])  # (head, pair, half, …)
            return {f"{target}.{kind}": pairs.swapaxes(1, 2).reshape(rows.shape)}

        return Rule((f"{source}.{kind}",), compute, optional)

    return rule("weight", False), rule("bias", True)


def less_one(source: str, target: str) -> Rule:
    """Return the rule of the scale of a norm, to which llama.cpp adds 1."""
    return Rule((source,), lambda _, scale: {target: scale - 1})


def transposed(source: str, target: str) -> Rule:
    """Return the rule of a matrix (in, out) of GPT-2."""
    return Rule((source,), lambda _, matrix: {target: matrix.T})


def fused_experts(target: str, *, optional: bool = False) -> tuple[Rule, ...]:
    """Return the rules of stacked experts, whose gate and up projections the model fuses: (expert, gate and up, in)."""

    def gate_up(_: Any, gate: "Tensor", up: "Tensor") -> dict[str, "Tensor"]:
        import torch

        return {f"{target}.gate_up_proj": torch.cat([gate, up], dim=1)}

    return (
        Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), gate_up, optional),
        same("ffn_down_exps.weight", f"{target}.down_proj", optional=optional),
    )
