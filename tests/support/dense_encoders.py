"""Encoders of models with a decoder, computed in float64 from the tensors of a file, without transformers' modules."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from transformers.activations import ACT2FN

from theodolite.sites import Site

Tensor = torch.Tensor
Read = Callable[[str], Tensor]


def dense_sites(tensors: Mapping[str, Tensor], config: Any, ids: tuple[int, ...]) -> dict[Site, Tensor]:
    """Return each site of the encoder for one prompt, (token, layer, feature); `resid_final` is (token, d_model)."""

    def read(name: str) -> Tensor:
        full = min((one for one in tensors if f".{one}".endswith(f".{name}")), key=len)
        return tensors[full].double()

    layers: list[dict[Site, Tensor]] = []
    x = read("shared.weight")[list(ids)]
    for layer in range(config.num_hidden_layers):
        first = layer if config.model_type == "umt5" else 0  # T5 has one table of biases for all blocks
        table = read(f"encoder.block.{first}.layer.0.SelfAttention.relative_attention_bias.weight")
        layers.append(_t5_block(x, table, config, partial(_read_in, read, f"encoder.block.{layer}.layer.")))
        x = layers[-1][Site.RESID_POST]
    stacked = {site: torch.stack([one[site] for one in layers], dim=1) for site in layers[0]}
    return {**stacked, Site.RESID_FINAL: x}


def _read_in(read: Read, prefix: str, name: str) -> Tensor:
    return read(prefix + name)


def _rms(x: Tensor, scale: Tensor) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt() * scale


def _t5_block(x: Tensor, table: Tensor, config: Any, read: Read) -> dict[Site, Tensor]:
    normed = _rms(x, read("0.layer_norm.weight"))
    q, k, v = (_heads(normed @ read(f"0.SelfAttention.{name}.weight").T, config.d_kv) for name in "qkv")
    heads = (q @ k.transpose(1, 2) + _t5_bias(table, len(x), config)).softmax(-1) @ v
    heads = heads.transpose(0, 1).flatten(1)
    attention = heads @ read("0.SelfAttention.o.weight").T
    middle = x + attention
    normed = _rms(middle, read("1.layer_norm.weight"))
    kind = config.feed_forward_proj
    act = ACT2FN["gelu_new" if kind == "gated-gelu" else kind.removeprefix("gated-")]
    wi = "wi_0" if kind.startswith("gated") else "wi"
    hidden = act(normed @ read(f"1.DenseReluDense.{wi}.weight").T)
    if wi == "wi_0":
        hidden = hidden * (normed @ read("1.DenseReluDense.wi_1.weight").T)
    mlp = hidden @ read("1.DenseReluDense.wo.weight").T
    branches = {Site.HEAD_OUT: heads, Site.ATTN_OUT: attention, Site.MLP_OUT: mlp}
    return {Site.RESID_PRE: x, Site.RESID_MID: middle, Site.RESID_POST: middle + mlp, **branches}


def _heads(projected: Tensor, width: int) -> Tensor:
    """Return (head, token, feature) from (token, head · feature)."""
    return projected.reshape(len(projected), -1, width).transpose(0, 1)


def _sites(
    x: Tensor, heads: Tensor, attention: Tensor, middle: Tensor, mlp: Tensor, after: Tensor
) -> dict[Site, Tensor]:
    branches = {Site.HEAD_OUT: heads, Site.ATTN_OUT: attention, Site.MLP_OUT: mlp}
    return {Site.RESID_PRE: x, Site.RESID_MID: middle, Site.RESID_POST: after, **branches}


def _t5_bias(table: Tensor, count: int, config: Any) -> Tensor:
    """Return one number for each head and bucket of offsets, (head, query, key) (Raffel et al. 2020, section 2.1)."""
    half, longest = config.relative_attention_num_buckets // 2, config.relative_attention_max_distance
    buckets = torch.zeros(count, count, dtype=torch.long)
    for at in range(count):
        for to in range(count):
            distance = abs(at - to)
            if distance >= half // 2:
                steps = math.log(distance / (half // 2)) / math.log(longest / (half // 2)) * (half - half // 2)
                distance = min(half // 2 + int(steps), half - 1)
            buckets[at, to] = distance + half * (to > at)
    bias: Tensor = table[buckets].permute(2, 0, 1)
    return bias
