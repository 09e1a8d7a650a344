"""Read weights from safetensors files, one tensor at a time, in one layout for all families.

Row convention, `y = x W`: projections are (head, d_model, d_head) and (head, d_head, d_model). No model is built.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import torch

from theodolite.errors import ModelError
from theodolite_jobs.models.anatomy import Anatomy, Dimensions, Files, dimensions_of
from theodolite_jobs.models.load import check_readable
from theodolite_jobs.models.tensors import TensorFiles

# The suffixes of trained tensors; constants that older libraries stored have other suffixes.
_LEARNED = (".weight", ".bias", ".gamma", ".beta")


@dataclass(frozen=True)
class AttentionWeights:
    """The attention weights of one layer.

    Attributes:
        q: (head, d_model, d_head).
        k: (kv_head, d_model, d_head).
        v: (kv_head, d_model, d_head).
        o: (head, d_head, d_model).
        q_bias: (head, d_head), or None.
        k_bias: (kv_head, d_head), or None.
        v_bias: (kv_head, d_head), or None.
        o_bias: (d_model,), or None.
        q_norm: (head, d_head) scale of the norm on queries, or None; of the model's kind of norm.
        k_norm: (kv_head, d_head) scale of the norm on keys, or None.
        q_norm_bias: (head, d_head), or None.
        k_norm_bias: (kv_head, d_head), or None.
        norm_spans_heads: whether the norm of queries runs over all heads at once instead of over each head.
        scale: the factor of a score before the softmax.
        clip: the largest magnitude of queries, keys and values after their biases (OLMo), or None.
        soft_cap: c of c·tanh(score/c), which is applied to scaled scores before the softmax (Gemma-2), or None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    q_bias: torch.Tensor | None
    k_bias: torch.Tensor | None
    v_bias: torch.Tensor | None
    o_bias: torch.Tensor | None
    q_norm: torch.Tensor | None
    k_norm: torch.Tensor | None
    q_norm_bias: torch.Tensor | None
    k_norm_bias: torch.Tensor | None
    norm_spans_heads: bool
    scale: float
    clip: float | None
    soft_cap: float | None


@dataclass(frozen=True)
class MlpWeights:
    """The weights of one layer's MLP, or of one expert: gate and up are (d_model, d_mlp), down is (d_mlp, d_model)."""

    gate: torch.Tensor | None
    up: torch.Tensor
    down: torch.Tensor
    gate_bias: torch.Tensor | None
    up_bias: torch.Tensor | None
    down_bias: torch.Tensor | None


@dataclass(frozen=True)
class NormWeights:
    """The kind and the weights of a norm.

    Attributes:
        kind: `layer` subtracts the mean and divides by the standard deviation, `rms` divides by the root mean square.
        epsilon: the number that is added under the root.
        scale: (d_model,), with the family's offset added, or None.
        bias: (d_model,), or None.
    """

    kind: Literal["rms", "layer"]
    epsilon: float
    scale: torch.Tensor | None
    bias: torch.Tensor | None


class Weights:
    """A model's weights on disk, by their role."""

    def __init__(self, folder: Path, config: Any, dtype: torch.dtype = torch.float32) -> None:
        """Find the files and the tensors' names; every tensor is returned in `dtype`.

        Raises:
            ModelError: files or tensors are missing or unreadable.
            UnsupportedModelError: the family's tensor names are not known, or the weights are quantised.
        """
        anatomy = check_readable(config)
        assert anatomy.files is not None
        self.config = config.get_text_config()
        self.anatomy: Anatomy = anatomy
        self.dimensions: Dimensions = dimensions_of(config, anatomy.reserved_positions)
        self.dtype = dtype
        self._names: Files = anatomy.files
        self._files = TensorFiles(folder)
        self._check_blocks()

    def _check_blocks(self) -> None:
        """Raise ModelError if a block lacks a tensor that another has; a norm or bias would seem to be absent."""
        prefix = f"{self._prefix}{self._names.block}".split("{}")[0]
        blocks: dict[int, set[str]] = {layer: set() for layer in range(self.dimensions.n_layers)}
        for name in self._files.names():
            number, _, rest = name.removeprefix(prefix).partition(".")
            if name.startswith(prefix) and number.isdecimal() and int(number) in blocks and rest.endswith(_LEARNED):
                blocks[int(number)].add(rest)
        all_names = set().union(*blocks.values())
        for layer, names in blocks.items():
            if missing := sorted(all_names - names):
                raise ModelError(
                    f"the weights in {self._files.folder} lack the tensor {prefix}{layer}.{missing[0]}, "
                    "which other blocks have"
                )

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self._files.folder

    @cached_property
    def _prefix(self) -> str:
        """The prefix of all names: the base model's name if the model was saved with its head."""
        wanted = f"{self._names.embedding}.weight"
        matches = [name for name in self._files.names() if f".{name}".endswith(f".{wanted}")]
        if not matches:
            raise ModelError(f"the weights in {self._files.folder} lack the tensor {wanted}")
        return min(matches, key=len).removesuffix(wanted)

    @property
    def vocabulary_size(self) -> int:
        """The number of rows of the token embedding; a tokenizer may have fewer tokens."""
        return self._files.shape(f"{self._prefix}{self._names.embedding}.weight")[0]

    def embedding(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return rows of the token embedding as stored, (token, d_model)."""
        return self._files.read(f"{self._prefix}{self._names.embedding}.weight", rows).to(self.dtype)

    def unembedding(self, rows: slice = slice(None)) -> torch.Tensor:
        """Return rows of the language-model head, (token, d_model); the embedding if the two are tied.

        Raises:
            ModelError: the head is not tied, and the files do not contain it.
        """
        name = self._head("weight")
        if name is not None:
            return self._files.read(name, rows).to(self.dtype)
        if not self.config.tie_word_embeddings:
            raise ModelError(
                f"the weights in {self._files.folder} have no language-model head ({self._names.unembedding}.weight)"
            )
        return self.embedding(rows)

    def _head(self, kind: str) -> str | None:
        """Return the name of the head's weight or bias, which has a prefix if other heads were saved too."""
        wanted = f".{self._names.unembedding}.{kind}"
        return min((name for name in self._files.names() if f".{name}".endswith(wanted)), key=len, default=None)

    @property
    def has_unembedding(self) -> bool:
        """Whether the model has a language-model head, including one that is tied to the embedding."""
        return bool(self.config.tie_word_embeddings) or self._head("weight") is not None

    def unembedding_bias(self) -> torch.Tensor | None:
        """Return the language-model head's bias, (token,), or None; GPT-J and Phi have one."""
        name = self._head("bias")
        return None if name is None else self._files.read(name).to(self.dtype)

    def norm(self, layer: int, which: str) -> NormWeights:
        """Return a block's norm by its name in `Anatomy.norms`."""
        return self._norm(self._names.block.format(layer) + self.anatomy.norms[which])

    def final_norm(self) -> NormWeights | None:
        """Return the norm after the last block, or None."""
        path = self.anatomy.final_norm
        return None if path is None else self._norm(path.rpartition(".")[2])

    def embedding_norm(self) -> NormWeights | None:
        """Return the norm between the token embedding and the first block, or None."""
        name = self.anatomy.embedding_norm
        return None if name is None else self._norm(name)

    def attention(self, layer: int) -> AttentionWeights:
        """Return one layer's projections, biases and norms of queries and keys."""
        sizes, names = self.dimensions, self._names
        q, k, v = self._queries_keys_values(layer, "weight")
        q_bias, k_bias, v_bias = self._queries_keys_values(layer, "bias")
        assert q is not None
        assert k is not None
        assert v is not None
        o = self._projection(layer, names.output).reshape(sizes.d_model, sizes.n_heads, sizes.d_head)
        q_norm, q_norm_bias, spans = self._head_norm(layer, 0, sizes.n_heads)
        k_norm, k_norm_bias, _ = self._head_norm(layer, 1, sizes.n_kv_heads)
        return AttentionWeights(
            q=q.transpose(1, 2),
            k=k.transpose(1, 2),
            v=v.transpose(1, 2),
            o=o.permute(1, 2, 0),
            q_bias=q_bias,
            k_bias=k_bias,
            v_bias=v_bias,
            o_bias=self._bias(layer, names.output),
            q_norm=q_norm,
            k_norm=k_norm,
            q_norm_bias=q_norm_bias,
            k_norm_bias=k_norm_bias,
            norm_spans_heads=spans,
            scale=score_scale(self.config, sizes, layer),
            clip=getattr(self.config, "clip_qkv", None),
            soft_cap=getattr(self.config, "attn_logit_softcapping", None),
        )

    @property
    def experts(self) -> Sequence[int | None]:
        """The values of `expert` that `mlp` accepts: the experts' indices, or only None for a single MLP."""
        return [None] if self._names.experts is None else range(self.config.num_local_experts)

    def mlp(self, layer: int, expert: int | None = None) -> MlpWeights:
        """Return one layer's MLP, or the requested expert of it.

        Raises:
            ValueError: `expert` is given for a model without experts, or missing for a model with experts.
        """
        names = self._names
        if (expert is None) != (names.experts is None):
            rule = "no experts; leave expert out" if names.experts is None else "experts; choose one"
            raise ValueError(f"got {expert=}, but this model's MLP has {rule}")
        inside = "" if names.experts is None else names.experts.format(expert)
        up, up_bias = self._projection(layer, inside + names.up), self._bias(layer, inside + names.up)
        gate = gate_bias = None
        if names.gate_up_fused:
            gate, up = up.chunk(2)
        elif names.gate is not None:
            gate, gate_bias = self._projection(layer, inside + names.gate), self._bias(layer, inside + names.gate)
        return MlpWeights(
            gate=None if gate is None else gate.T.contiguous(),
            up=up.T.contiguous(),
            down=self._projection(layer, inside + names.down).T.contiguous(),
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=self._bias(layer, inside + names.down),
        )

    def _queries_keys_values(self, layer: int, kind: str) -> tuple[torch.Tensor | None, ...]:
        """Return Q, K and V: weights as (head, d_head, d_model), biases as (head, d_head); None for missing biases."""
        sizes, names = self.dimensions, self._names
        if kind == "bias":
            parts = [self._bias(layer, name) for name in names.qkv]
        else:
            parts = [self._projection(layer, name) for name in names.qkv]
        if any(part is None for part in parts):
            return None, None, None
        stored = [part for part in parts if part is not None]
        heads = (sizes.n_heads, sizes.n_kv_heads, sizes.n_kv_heads)
        if names.qkv_layout == "grouped":
            group = sizes.n_heads // sizes.n_kv_heads
            split = stored[0].reshape(sizes.n_kv_heads, group + 2, sizes.d_head, *stored[0].shape[1:])
            return split[:, :group].flatten(0, 1), split[:, group], split[:, group + 1]
        if names.qkv_layout == "concatenated":
            stored = list(stored[0].split([count * sizes.d_head for count in heads]))
        return tuple(
            part.reshape(count, sizes.d_head, *part.shape[1:]) for part, count in zip(stored, heads, strict=True)
        )

    def _head_norm(self, layer: int, which: int, heads: int) -> tuple[torch.Tensor | None, torch.Tensor | None, bool]:
        """Return scale and bias of the norm on queries (0) or keys (1), for each head, and whether it spans heads."""
        if self._names.qk_norm is None:
            return None, None, False
        name = self._names.block.format(layer) + self._names.qk_norm[which]
        each = [self._norm(name.format(head)) for head in range(heads if "{}" in name else 1)]
        if each[0].scale is None:
            return None, None, False
        scale = torch.cat([one.scale for one in each if one.scale is not None])
        biases = [one.bias for one in each if one.bias is not None]
        shape = (heads, self.dimensions.d_head)
        spans = scale.ndim == 1 and scale.numel() == math.prod(shape) and len(each) == 1 and heads > 1
        bias = torch.cat(biases) if biases else None
        return _per_head(scale, shape), None if bias is None else _per_head(bias, shape), spans

    def _norm(self, name: str) -> NormWeights:
        """Return a norm; older files call scale and bias gamma and beta."""
        tensors: Mapping[str, torch.Tensor] = {
            role: self._files.read(f"{self._prefix}{name}.{stored}").to(self.dtype)
            for role, spellings in {"scale": ("weight", "gamma"), "bias": ("bias", "beta")}.items()
            for stored in spellings
            if f"{self._prefix}{name}.{stored}" in self._files
        }
        scale = tensors.get("scale")
        if not all(tensor.isfinite().all() for tensor in tensors.values()):
            raise ModelError(f"the norm {self._prefix}{name} has a weight that is not finite")
        scale = None if scale is None else scale + self.anatomy.norm_offset
        return NormWeights(self.anatomy.norm_kind, norm_epsilon(self.config), scale, tensors.get("bias"))

    def _projection(self, layer: int, name: str) -> torch.Tensor:
        """Return a projection as (out, in)."""
        stored = self._files.read(f"{self._prefix}{self._names.block.format(layer)}{name}.weight").to(self.dtype)
        return stored.T if self._names.transposed else stored

    def _bias(self, layer: int, name: str) -> torch.Tensor | None:
        full = f"{self._prefix}{self._names.block.format(layer)}{name}.bias"
        return self._files.read(full).to(self.dtype) if full in self._files else None


def _per_head(values: torch.Tensor, shape: tuple[int, int]) -> torch.Tensor:
    """Return (head, d_head) from one row for all heads, or from one row per head."""
    return values.reshape(-1, shape[1]).expand(shape).contiguous()


def score_scale(config: Any, dimensions: Dimensions, layer: int) -> float:
    """Return the factor of a layer's attention scores before the softmax.

    The factor is 1/√d_head, with exceptions. Gemma-2 and 3 state the number under the root, and Granite states the
    factor. GPT-2 may divide by the layer's number (from 1), or have no scale. Gemma-2's soft cap is not included.
    """
    if getattr(config, "attention_multiplier", None) is not None:
        return float(config.attention_multiplier)
    scale = (getattr(config, "query_pre_attn_scalar", None) or dimensions.d_head) ** -0.5
    if not getattr(config, "scale_attn_weights", True):
        scale = 1.0
    return float(scale / (layer + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale)


def norm_epsilon(config: Any) -> float:
    """Return the number that a family's norms add under the root; OLMo and OPT state it only in their code."""
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    stated = (getattr(config, name, None) for name in names)
    return float(next((epsilon for epsilon in stated if epsilon is not None), 1e-5))


def embedding_scale(config: Any) -> float:
    """Return the factor of token embeddings before the first block (Gemma: √d_model; Granite states it)."""
    text = config.get_text_config()
    if text.model_type.startswith("gemma"):
        return float(text.hidden_size**0.5)
    return float(getattr(text, "embedding_multiplier", None) or 1.0)
