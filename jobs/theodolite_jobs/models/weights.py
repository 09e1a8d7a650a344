"""Read weights from safetensors files, one tensor at a time, in one layout for all families. No model is built."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.alike_blocks import check_alike, tensors_by_block, trained_of
from theodolite_jobs.models.anatomy import Dimensions, MergedExperts, dimensions_of
from theodolite_jobs.models.config_numbers import expert_count, multipliers, norm_epsilon, score_scale
from theodolite_jobs.models.latent import latent_heads, latent_sizes, rotary_part
from theodolite_jobs.models.layer_weights import AttentionWeights, MlpWeights, merged_expert, per_head, split_heads
from theodolite_jobs.models.quantised import check_plain
from theodolite_jobs.models.readable import check_readable
from theodolite_jobs.models.stored_names import compare_names
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.statistics.norms import Norm

_ROWS = 8192  # of a table in memory at a time

SHARED = "shared"
"""The name of the expert that all tokens use."""


class Weights:
    """A model's weights on disk, by their role."""

    def __init__(self, folder: Path, config: Any, dtype: torch.dtype = torch.float32) -> None:
        """Find the files and the tensors' names; every tensor is returned in `dtype`, and norms in float64.

        Raises:
            ModelError: files or tensors are missing or unreadable.
            UnsupportedModelError: the family's tensor names are not known, or the weights are not dequantised yet.
        """
        check_plain(folder)
        self.folder = folder
        self.config = config.get_text_config()
        # The setting of the whole model; its text part may say otherwise.
        self._may_be_tied = bool(getattr(config, "tie_word_embeddings", False))
        self.anatomy, self._names = check_readable(config)
        self.dimensions: Dimensions = dimensions_of(config, self.anatomy.reserved_positions)
        self.dtype = dtype
        self._files = TensorFiles(folder)
        stored = compare_names(config, self._files.headers)
        self.left_out = len(stored.next_token)  # the number of tensors of blocks for multi-token prediction
        self._files.leave_out(stored.next_token)
        for own in self._names.own_embeddings:
            if self._shortest(f"{own}.weight") is not None:
                self._names = replace(self._names, embedding=own, unembedding=own)
                break
        merged, start = self._names.merged, f"{self._prefix}{self._names.block}".split("{}")[0]
        if merged is not None and any(n.startswith(start) and n.endswith(merged.gate_up) for n in self._files.headers):
            self._names = replace(self._names, experts=merged)
        self._check_blocks(set(stored.surplus))
        stored.check_files(self._files)
        stored.check_role(folder, "embedding", f"{self._prefix}{self._names.embedding}.weight")
        if (head := self._shortest(f"{self._names.unembedding}.weight")) is not None:
            stored.check_role(folder, "unembedding", head)

    def _check_blocks(self, surplus: set[str]) -> None:
        """Raise ModelError if a block lacks a tensor that another of its kind has, or has other experts than stated.

        Surplus tensors are refused later, by their own names.
        """
        prefix = f"{self._prefix}{self._names.block}".split("{}")[0]
        n_blocks = len(set(self.anatomy.block_of.values())) or self.dimensions.n_layers
        blocks = tensors_by_block(self._files.headers.keys() - surplus, prefix, n_blocks)
        for layer in self.anatomy.unnormed_layers:
            blocks[layer] |= trained_of(self._stored_name(self.anatomy.norms["attention"]), blocks)
        if (shared := self._names.in_first_block) is not None:
            for layer in blocks:
                blocks[layer] |= trained_of(shared, blocks)
        check_alike(self.folder, prefix, blocks, self.anatomy.kind_of)
        if self._names.experts is not None:
            self._check_experts(blocks)

    def _check_experts(self, blocks: Mapping[int, set[str]]) -> None:
        """Raise ModelError if a block has other experts than the configuration states."""
        for layer, names in blocks.items():
            stated = {str(one) for one in self.experts(layer) if isinstance(one, int)}
            if isinstance(self._names.experts, MergedExperts):
                full = self._prefix + self._block(layer) + self._names.experts.gate_up
                found = set(map(str, range(self._files.shape(full)[0]))) if stated else set()
            else:
                start = str(self._names.experts).split("{}")[0]
                found = {name.removeprefix(start).partition(".")[0] for name in names if name.startswith(start)}
            if found != stated:
                raise ModelError(
                    f"block {layer} has {len(found)} experts in the weights in {self.folder}, and {len(stated)} by the "
                    "configuration; use the config.json that belongs to these weights"
                )

    @cached_property
    def _prefix(self) -> str:
        """The prefix of all names: the base model's name if the model was saved with its head."""
        name = self._shortest(f"{self._names.embedding}.weight")
        if name is None:
            raise ModelError(f"the weights in {self.folder} lack the tensor {self._names.embedding}.weight")
        return name.removesuffix(f"{self._names.embedding}.weight")

    def _shortest(self, ending: str) -> str | None:
        """Return the shortest stored name that ends with these parts, because other heads may be saved too."""
        return min((name for name in self._files.headers if f".{name}".endswith(f".{ending}")), key=len, default=None)

    @property
    def vocabulary_size(self) -> int:
        """The number of rows of the token embedding; a tokenizer may have fewer tokens."""
        return self._files.shape(f"{self._prefix}{self._names.embedding}.weight")[0]

    @property
    def embeds_into_stream(self) -> bool:
        """Whether token embeddings are vectors of the stream; some models project them into it."""
        width = self._files.shape(f"{self._prefix}{self._names.embedding}.weight")[1]
        return not self.anatomy.projects_embeddings and width == self.dimensions.d_model

    def embedding(self, rows: slice = slice(None)) -> Tensor:
        """Return rows of the token embedding as stored, (token, d_model)."""
        return self._read(f"{self._prefix}{self._names.embedding}.weight", rows)

    def unembedding(self, rows: slice = slice(None)) -> Tensor:
        """Return rows of the language-model head, (token, d_model); the embedding if the two are tied.

        Raises:
            ModelError: the head is not tied, and the files do not contain it.
        """
        name = self._shortest(f"{self._names.unembedding}.weight")
        if name is not None:
            return self._read(name, rows)
        if not self._may_be_tied:
            raise ModelError(
                f"the weights in {self.folder} have no language-model head ({self._names.unembedding}.weight)"
            )
        return self.embedding(rows)

    @property
    def has_unembedding(self) -> bool:
        """Whether the model has a language-model head, including one that is tied to the embedding."""
        return self._may_be_tied or self._shortest(f"{self._names.unembedding}.weight") is not None

    @property
    def tied(self) -> bool:
        """Whether the language-model head is the embedding; a head of its own in the files decides."""
        stored = self._shortest(f"{self._names.unembedding}.weight") is not None
        parts = (slice(start, start + _ROWS) for start in range(0, self.vocabulary_size, _ROWS))
        return self._may_be_tied and (
            not stored or all(torch.equal(self.unembedding(rows), self.embedding(rows)) for rows in parts)
        )

    def unembedding_bias(self) -> Tensor | None:
        """Return the language-model head's bias, (token,), or None; GPT-J and Phi have one."""
        name = self._shortest(f"{self._names.unembedding}.bias")
        return None if name is None else self._read(name)

    def norm(self, layer: int, which: str) -> Norm | None:
        """Return a block's norm by its name in `Anatomy.norms`, or None if this block does not have it."""
        if not self.anatomy.has_norm(layer, which):
            return None
        return self._norm(self._block(layer) + self._stored_name(self.anatomy.norms[which]))

    def _block(self, layer: int) -> str:
        """Return the prefix of the names of a layer's tensors; layers may share one block."""
        return self._names.block.format(self.anatomy.block_of.get(layer, layer))

    def _stored_name(self, module: str) -> str:
        """Return a module's name on disk."""
        return self._names.stored.get(module, module)

    def final_norm(self) -> Norm | None:
        """Return the norm after the last block, or None."""
        path = self.anatomy.final_norm
        return None if path is None else self._norm(self._names.stored.get(path, path.rpartition(".")[2]))

    def embedding_norm(self) -> Norm | None:
        """Return the norm between the token embedding and the first block, or None."""
        name = self.anatomy.embedding_norm
        return None if name is None else self._norm(self._stored_name(name), self.embedding(slice(0, 1)).shape[1])

    def attention(self, layer: int) -> AttentionWeights:
        """Return one layer's projections, biases and norms of queries and keys.

        Raises:
            ModelError: a projection is missing or has another shape.
            ValueError: the layer has no attention.
        """
        if layer in self.anatomy.layers_without_attention:
            raise ValueError(f"layer {layer} has no attention: {self.anatomy.hybrid}")
        sizes, names = self._sizes_of(layer), self._names
        heads = self._latent_heads(layer) if names.latent else self._heads(layer)
        wide = sizes.n_heads * sizes.d_head
        o = self._projection(layer, names.output, (sizes.d_model, wide)).reshape(
            sizes.d_model, sizes.n_heads, sizes.d_head
        )
        q_norm, q_norm_bias, spans = self._head_norm(layer, 0, sizes.n_heads)
        k_norm, k_norm_bias, _ = self._head_norm(self.anatomy.keys_of.get(layer, layer), 1, sizes.n_kv_heads)
        return AttentionWeights(
            **heads,
            o=o.permute(1, 2, 0),
            o_bias=self._bias(layer, names.output),
            q_norm=q_norm,
            k_norm=k_norm,
            q_norm_bias=q_norm_bias,
            k_norm_bias=k_norm_bias,
            norm_spans_heads=spans,
            scale=score_scale(self.config, sizes, layer),
            clip=getattr(self.config, "clip_qkv", None),
            sinks=None if names.sinks is None else self._stored(self._block(layer) + names.sinks),
            soft_cap=getattr(self.config, "attn_logit_softcapping", None),
        )

    @cached_property
    def head_widths(self) -> dict[int, list[int]]:
        """The layers with attention by the width of their heads; most models have one width."""
        widths: dict[int, list[int]] = {}
        for layer in self.anatomy.attention_layers(self.dimensions.n_layers):
            widths.setdefault(self._sizes_of(layer).d_head, []).append(layer)
        return widths

    def _sizes_of(self, layer: int) -> Dimensions:
        """Return the sizes of a layer, whose heads may differ from those of the first layer."""
        return dimensions_of(self.config, self.anatomy.reserved_positions, layer)

    def _heads(self, layer: int) -> dict[str, Any]:
        """Return the matrices and biases of queries, keys and values, by the names of `AttentionWeights`."""
        sizes, names = self._sizes_of(layer), self._names
        wide, narrow = sizes.n_heads * sizes.d_head, sizes.n_kv_heads * sizes.d_head
        rows = (wide * (1 + names.gated), narrow, narrow) if len(names.qkv) == 3 else (wide + 2 * narrow,)
        source = self.anatomy.keys_of.get(layer, layer)
        tensors = [(layer, names.qkv[0]), *((source, name) for name in names.qkv[1:])]
        if layer in self.anatomy.keys_as_values:
            tensors[2] = tensors[1]
        stored = [
            self._projection(at, name, (count, sizes.d_model)) for (at, name), count in zip(tensors, rows, strict=True)
        ]
        biases = [bias for at, name in tensors if (bias := self._bias(at, name)) is not None]
        gate, gate_bias = None, None
        if names.gated:
            stored[0], gate = self._split_gate(stored[0])
            gate = gate.transpose(1, 2)
            if biases:
                biases[0], gate_bias = self._split_gate(biases[0])
        factors = multipliers(self.config)
        if factors.attention != 1:
            stored = [matrix.double() * factors.attention for matrix in stored]
        q, k, v = (matrix.transpose(1, 2) for matrix in split_heads(names.qkv_layout, sizes, stored))
        whole = len(biases) == len(names.qkv)
        q_bias, k_bias, v_bias = split_heads(names.qkv_layout, sizes, biases) if whole else (None, None, None)
        if names.query_and_value_bias is not None:
            q_bias, v_bias = (self._stored_bias(layer, name) for name in names.query_and_value_bias)
        if factors.key != 1:
            k, k_bias = k.double() * factors.key, None if k_bias is None else k_bias.double() * factors.key
        heads = {"q": q, "k": k, "v": v, "q_bias": q_bias, "k_bias": k_bias, "v_bias": v_bias}
        return {**heads, "q_rotary": None, "k_rotary": None, "gate": gate, "gate_bias": gate_bias}

    def _stored_bias(self, layer: int, name: str) -> Tensor:
        """Return a bias of heads that is a tensor of its own, (head, d_head)."""
        sizes, full = self._sizes_of(layer), f"{self._prefix}{self._block(layer)}{name}"
        stored, wide = self._read(full), sizes.n_heads * sizes.d_head
        if stored.shape != (wide,):
            raise self._misfit(full, stored, f"({wide},)")
        return stored.reshape(sizes.n_heads, sizes.d_head)

    def _split_gate(self, stored: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of queries, and those of gates by head; the two alternate by head."""
        queries, gates = stored.unflatten(0, (self.dimensions.n_heads, 2, self.dimensions.d_head)).unbind(1)
        return queries.flatten(0, 1), gates

    def _latent_heads(self, layer: int) -> dict[str, Any]:
        """Return the same for multi-head latent attention."""
        block = self._block(layer)
        heads = latent_heads(
            latent_sizes(self.config),
            self.dimensions.d_model,
            lambda name, shape: self._projection(layer, name, shape),
            lambda name: self._bias(layer, name),
            lambda name: self._scale_and_bias(block + name)[0],
        )
        return {**vars(heads), "gate": None, "gate_bias": None}

    def rotary_part(self, layer: int) -> tuple[Tensor, Tensor]:
        """Return the rotary part of queries, (head, d_model, width), and of keys, (1, d_model, width), in float64.

        Only multi-head latent attention has these matrices apart. `attention` returns them too, and takes longer.

        Raises:
            ModelError: a projection is missing or has another shape.
        """
        block = self._block(layer)
        return rotary_part(
            latent_sizes(self.config),
            self.dimensions.d_model,
            lambda name, shape: self._projection(layer, name, shape),
            lambda name: self._scale_and_bias(block + name)[0],
        )

    def experts(self, layer: int) -> Sequence[int | str | None]:
        """Return the values of `expert` that `mlp` accepts: None for a single MLP, else the indices of the experts.

        `shared` is the expert that all tokens use, in a family that has one. It is empty for a layer without an MLP.
        """
        if layer in self.anatomy.layers_without_mlp:
            return []
        if self._names.experts is None or layer in self.anatomy.dense_layers:
            return [None]
        return [*range(expert_count(self.config)), *([SHARED] if self._names.shared_expert else [])]

    def mlp(self, layer: int, expert: int | str | None = None) -> MlpWeights:
        """Return one layer's MLP, or the requested expert of it.

        Raises:
            ModelError: a projection is missing or has another shape.
            UnsupportedModelError: experts read a latent of the stream.
            ValueError: `expert` is given for a layer without experts, or missing for a layer with experts.
        """
        if expert not in self.experts(layer):
            rule = "no experts; leave expert out" if expert is not None else "experts; choose one"
            raise ValueError(f"got {expert=}, but the MLP of layer {layer} has {rule}")
        if isinstance(expert, int) and getattr(self.config, "moe_latent_size", None):
            raise UnsupportedModelError("the experts of this model read a latent, and not the stream (moe_latent_size)")
        names, width = self._names, self.dimensions.d_model
        if isinstance(names.experts, MergedExperts) and isinstance(expert, int):
            return self._merged_expert(layer, names.experts, expert)
        gate_name = None if names.gate is None else self._inside(names.gate, expert)
        up_name, down_name = names.up_and_gate or self._inside(names.up, expert), self._inside(names.down, expert)
        up, gate, gate_bias = self._projection(layer, up_name, (None, width)), None, None
        up_bias = self._bias(layer, up_name)
        if names.gate_up_fused:
            gate, up = up.chunk(2)
            gate_bias, up_bias = (None, None) if up_bias is None else up_bias.chunk(2)
        elif names.up_and_gate is not None:
            up, gate = up.chunk(2)
        elif gate_name is not None:
            gate, gate_bias = self._projection(layer, gate_name, (len(up), width)), self._bias(layer, gate_name)
        mlp = MlpWeights(
            gate=None if gate is None else gate.T.contiguous(),
            up=up.T.contiguous(),
            down=self._projection(layer, down_name, (width, len(up))).T.contiguous(),
            gate_bias=gate_bias,
            up_bias=up_bias,
            down_bias=self._bias(layer, down_name),
        )
        factors = multipliers(self.config)
        return mlp if factors.gate == factors.down == 1 else mlp.multiplied(factors.gate, factors.down)

    def _merged_expert(self, layer: int, names: MergedExperts, expert: int) -> MlpWeights:
        """Return one expert from the tensors of all experts."""
        block, width = self._prefix + self._block(layer), self.dimensions.d_model
        mlp = merged_expert(names, lambda name: self._read(block + name, slice(expert, expert + 1))[0])
        if mlp.up.shape[0] != width or mlp.down.shape != (mlp.up.shape[1], width):
            both = mlp.up if mlp.gate is None else torch.cat([mlp.gate, mlp.up], dim=1)
            wide = "d_mlp" if mlp.gate is None else "2·d_mlp"
            raise self._misfit(block + names.gate_up, both, f"({width}, {wide}) for each expert")
        return mlp

    def _inside(self, name: str, expert: int | str | None) -> str:
        """Return the name of a projection of an expert, or of a single MLP."""
        if expert is None:
            return name
        prefix = self._names.shared_expert if expert == SHARED else self._names.experts
        return f"{prefix}".format(expert) + name.rpartition(".")[2]

    def _head_norm(self, layer: int, which: int, heads: int) -> tuple[Tensor | None, Tensor | None, bool]:
        """Return scale and bias of the norm on queries (0) or keys (1), for each head, and whether it spans heads."""
        if layer in self.anatomy.unscaled_qk_norm:
            return torch.ones(heads, self.dimensions.d_head, dtype=self.dtype), None, False
        if self._names.qk_norm is None:
            return None, None, False
        name = self._block(layer) + self._names.qk_norm[which]
        each = [self._scale_and_bias(name.format(head)) for head in range(heads if "{}" in name else 1)]
        scales, biases = ([part for part in parts if part is not None] for parts in zip(*each, strict=True))
        if not scales:
            return None, None, False
        scale, shape = torch.cat(scales), (heads, self._sizes_of(layer).d_head)
        if scale.numel() not in (shape[1], math.prod(shape)):
            raise self._misfit(f"{self._prefix}{name}.weight", scale, f"({shape[1]},) or {shape}")
        spans = scale.ndim == 1 and scale.numel() == math.prod(shape) and len(each) == 1 and heads > 1
        return per_head(scale, shape), per_head(torch.cat(biases), shape) if biases else None, spans

    def _norm(self, name: str, size: int | None = None) -> Norm:
        scale, bias = self._scale_and_bias(name)
        size = size or self.dimensions.d_model
        for stored in (scale, bias):
            if stored is not None and stored.shape != (size,):
                raise self._misfit(f"{self._prefix}{name}", stored, f"({size},)")
        return Norm(
            self.anatomy.norm_kind,
            norm_epsilon(self.config),
            scale=np.ones(size) if scale is None else scale.double().numpy(),
            bias=np.zeros(size) if bias is None else bias.double().numpy(),
        )

    def _scale_and_bias(self, name: str) -> tuple[Tensor | None, Tensor | None]:
        """Return a norm's scale, with the family's offset added, and its bias; None for one that is not stored."""
        weight, gamma, bias, beta = (self._stored(f"{name}.{kind}") for kind in ("weight", "gamma", "bias", "beta"))
        scale, bias = weight if gamma is None else gamma, bias if beta is None else beta  # older files say gamma, beta
        if not all(tensor.isfinite().all() for tensor in (scale, bias) if tensor is not None):
            raise UnsupportedModelError(f"the norm {self._prefix}{name} has a weight that is not finite")
        offset = self.anatomy.norm_offset
        return scale.double() + offset if scale is not None and offset else scale, bias

    def _projection(self, layer: int, name: str, shape: tuple[int | None, int]) -> Tensor:
        """Return a projection as (out, in); raise ModelError if its shape is not that of the configuration."""
        full = f"{self._prefix}{self._block(layer)}{self._stored_name(name)}.weight"
        stored = self._read(full)
        stored = stored.T if self._names.transposed else stored
        out, into = shape
        if stored.ndim != 2 or stored.shape[1] != into or out not in (None, len(stored)):
            raise self._misfit(full, stored, f"({'any' if out is None else out}, {into})")
        return stored

    def _misfit(self, name: str, stored: Tensor, expected: str) -> ModelError:
        return ModelError(
            f"the weights in {self.folder} do not fit the configuration: {name} has the shape {tuple(stored.shape)}, "
            f"expected {expected}; use the config.json that belongs to these weights"
        )

    def _bias(self, layer: int, name: str) -> Tensor | None:
        return self._stored(f"{self._block(layer)}{self._stored_name(name)}.bias")

    def _read(self, name: str, rows: slice = slice(None)) -> Tensor:
        return self._files.read(name, rows).to(self.dtype)

    def _stored(self, name: str) -> Tensor | None:
        """Return a tensor by its name without the prefix, or None if the files do not contain it."""
        full = f"{self._prefix}{name}"
        return self._read(full) if full in self._files.headers else None
