"""The weights of one layer, in one layout for all families.

Row convention, `y = x W`: projections are (head, d_model, d_head) and (head, d_head, d_model).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

from torch import Tensor

from theodolite_jobs.models.anatomy import Dimensions, MergedExperts


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of one layer; a bias or norm that the layer does not have is None."""

    q: Tensor  # (head, d_model, d_head)
    k: Tensor  # (kv_head, d_model, d_head)
    v: Tensor  # (kv_head, d_model, d_head)
    o: Tensor  # (head, d_head, d_model)
    q_bias: Tensor | None  # (head, d_head)
    k_bias: Tensor | None  # (kv_head, d_head)
    v_bias: Tensor | None  # (kv_head, d_head)
    o_bias: Tensor | None  # (d_model,)
    q_norm: Tensor | None  # (head, d_head), the scale of the norm on queries, which is of the model's kind of norm
    k_norm: Tensor | None  # (kv_head, d_head)
    q_norm_bias: Tensor | None  # (head, d_head)
    k_norm_bias: Tensor | None  # (kv_head, d_head)
    q_rotary: Tensor | None  # (head, d_model, width): in latent attention, the part of queries that rotates
    k_rotary: Tensor | None  # (1, d_model, width), the same of keys; the circuits leave both out
    gate: Tensor | None  # (head, d_model, d_head): the sigmoid of its output multiplies a head's output before W_O
    gate_bias: Tensor | None  # (head, d_head)
    norm_spans_heads: bool  # the norm of queries runs over all heads at once instead of over each head
    scale: float  # the factor of a score before the softmax
    clip: float | None  # the largest magnitude of queries, keys and values after their biases (OLMo)
    sinks: Tensor | None  # (head,), scores that the softmax adds to those of the tokens, without a value
    soft_cap: float | None  # c of c·tanh(score/c), which is applied to scaled scores before the softmax (Gemma-2)


@dataclass(frozen=True)
class MlpWeights:
    """The weights of one layer's MLP, or of one expert: gate and up are (d_model, d_mlp), down is (d_mlp, d_model)."""

    gate: Tensor | None
    up: Tensor
    down: Tensor
    gate_bias: Tensor | None
    up_bias: Tensor | None
    down_bias: Tensor | None

    def multiplied(self, gate: float, down: float) -> "MlpWeights":
        """Return the MLP in float64 with a factor of the gate's output, and one of its own output."""

        def times(tensor: Tensor | None, factor: float) -> Tensor | None:
            return None if tensor is None else tensor.double() * factor

        return replace(
            self,
            gate=times(self.gate, gate),
            gate_bias=times(self.gate_bias, gate),
            down=self.down.double() * down,
            down_bias=times(self.down_bias, down),
        )


def split_heads(layout: str, sizes: Dimensions, stored: list[Tensor]) -> tuple[Tensor, ...]:
    """Return Q, K and V from stored weights as (head, d_head, d_model), or from biases as (head, d_head).

    `layout` is the `qkv_layout` of the family's record.
    """
    heads = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
    if layout == "grouped":
        group = sizes.n_heads // sizes.n_kv_heads
        split = stored[0].reshape(sizes.n_kv_heads, group + 2, sizes.d_head, *stored[0].shape[1:])
        return split[:, :group].flatten(0, 1), split[:, group], split[:, group + 1]
    if layout == "concatenated":
        stored = list(stored[0].split([count * sizes.d_head for count in heads]))
    return tuple(part.reshape(count, sizes.d_head, *part.shape[1:]) for part, count in zip(stored, heads, strict=True))


def merged_expert(names: MergedExperts, stored: Callable[[str], Tensor]) -> MlpWeights:
    """Return one expert from the tensors of all experts; `stored` returns the expert's part of a tensor by its name."""

    def part(name: str) -> Tensor:
        one = stored(name)
        return one.T if one.ndim == 2 and names.layout == "expert, out, in" else one

    def split(tensor: Tensor) -> tuple[Tensor | None, Tensor]:
        if not names.gated:
            return None, tensor.contiguous()
        gate, up = (tensor[..., ::2], tensor[..., 1::2]) if names.interleaved else tensor.chunk(2, dim=-1)
        return gate.contiguous(), up.contiguous()

    (gate, up), down = split(part(names.gate_up)), part(names.down).contiguous()
    if names.bias is None:
        return MlpWeights(gate, up, down, None, None, None)
    gate_bias, up_bias = split(part(names.gate_up + names.bias))
    return MlpWeights(gate, up, down, gate_bias, up_bias, part(names.down + names.bias))


def per_head(values: Tensor, shape: tuple[int, int]) -> Tensor:
    """Return (head, d_head) from one row for all heads, or from one row per head."""
    return values.reshape(-1, shape[1]).expand(shape).contiguous()
