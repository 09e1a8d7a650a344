"""Encoders of models with a decoder, computed in float64 from the tensors of a file, without transformers' modules."""

import math
from collections.abc import Callable, Mapping, Sequence
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

    if not config.model_type.endswith("t5"):
        has_table = any(name.endswith("encoder.embed_positions.weight") for name in tensors)
        return _stacked(_bart_blocks(ids, config, read, has_table))
    layers: list[dict[Site, Tensor]] = []
    x = read("shared.weight")[list(ids)]
    for layer in range(config.num_hidden_layers):
        first = layer if config.model_type == "umt5" else 0  # T5 has one table of biases for all blocks
        table = read(f"encoder.block.{first}.layer.0.SelfAttention.relative_attention_bias.weight")
        layers.append(_t5_block(x, table, config, partial(_read_in, read, f"encoder.block.{layer}.layer.")))
        x = layers[-1][Site.RESID_POST]
    return _stacked(layers)


def _stacked(layers: Sequence[dict[Site, Tensor]]) -> dict[Site, Tensor]:
    stacked = {site: torch.stack([one[site] for one in layers], dim=1) for site in layers[0]}
    return {**stacked, Site.RESID_FINAL: layers[-1][Site.RESID_POST]}


def _bart_blocks(ids: tuple[int, ...], config: Any, read: Read, has_table: bool) -> list[dict[Site, Tensor]]:
    """Return the sites of each block: BART, Marian and PLBart are post-norm, mBART, M2M-100 and Pegasus pre-norm."""
    family, width = config.model_type, config.d_model

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        centred = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        return centred * read(f"{name}.weight") + read(f"{name}.bias")

    def linear(x: Tensor, name: str) -> Tensor:
        return x @ read(f"{name}.weight").T + read(f"{name}.bias")

    own = family == "marian" and not config.share_encoder_decoder_embeddings
    table = read("encoder.embed_tokens.weight" if own else "shared.weight")
    x = table[list(ids)] * (width**0.5 if config.scale_embedding else 1.0)
    if family in ("bart", "mbart", "plbart"):
        x = norm(x + read("encoder.embed_positions.weight")[2 : 2 + len(ids)], "encoder.layernorm_embedding")
    elif has_table:  # of sines
        x = x + read("encoder.embed_positions.weight")[: len(ids)]
    else:
        x = x + sinusoids(len(ids), width, family)
    act, d_head, pre_norm = (
        ACT2FN[config.activation_function],
        width // config.encoder_attention_heads,
        family in ("m2m_100", "mbart", "pegasus"),
    )
    layers = []
    for layer in range(config.encoder_layers):
        block = f"encoder.layers.{layer}."
        first, last = f"{block}self_attn_layer_norm", f"{block}final_layer_norm"
        y = norm(x, first) if pre_norm else x
        q, k, v = (_heads(linear(y, f"{block}self_attn.{name}_proj"), d_head) for name in "qkv")
        heads = ((q @ k.transpose(1, 2) / d_head**0.5).softmax(-1) @ v).transpose(0, 1).flatten(1)
        attention = linear(heads, f"{block}self_attn.out_proj")
        total = x + attention
        middle = total if pre_norm else norm(total, first)
        mlp = linear(act(linear(norm(middle, last) if pre_norm else middle, f"{block}fc1")), f"{block}fc2")
        after = middle + mlp if pre_norm else norm(middle + mlp, last)
        branches = {Site.HEAD_OUT: heads, Site.ATTN_OUT: attention, Site.MLP_OUT: mlp, Site.RESID_MID_SUM: total}
        layers.append({Site.RESID_PRE: x, Site.RESID_MID: middle, Site.RESID_POST: after, **branches})
        x = after
    return layers


def sinusoids(count: int, width: int, family: str = "pegasus") -> Tensor:
    """Return sines, then cosines, (position, feature); M2M-100 starts at 2, with tensor2tensor's frequencies."""
    half = width // 2
    if family == "m2m_100":
        angles = (torch.arange(count) + 2)[:, None] * 10000 ** (-torch.arange(half, dtype=torch.float64) / (half - 1))
    else:
        angles = torch.arange(count)[:, None] * 10000 ** (-torch.arange(half, dtype=torch.float64) / half)
    return torch.cat([angles.sin(), angles.cos()], dim=1)


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
