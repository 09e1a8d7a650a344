"""What relative positions add to attention scores, computed by hand in float64."""

import math
from itertools import product
from typing import Any

import torch

from theodolite_jobs.models.layer_weights import AttentionWeights
from theodolite_jobs.models.loaded import LoadedModel

Tensor = torch.Tensor


def relative_scores(x: Tensor, weights: AttentionWeights, layer: int, model: LoadedModel) -> Tensor:
    """Return the terms of MPNet, DeBERTa or T5, (head, query, key), for what attention reads, (token, d_model)."""
    if model.config.model_type in ("mt5", "t5", "umt5"):
        return _t5_scores(len(x), layer, model)
    if model.config.model_type == "mpnet":
        terms: Tensor = model.module.encoder.compute_position_bias(x[None])[0]
        return terms
    return _disentangled_scores(x, weights, layer, model)


def _t5_scores(count: int, layer: int, model: LoadedModel) -> Tensor:
    """One number for each head and bucket of offsets (Raffel et al. 2020, arXiv 1910.10683, section 2.1)."""
    config, block = model.config, model.blocks[layer if model.config.model_type == "umt5" else 0]
    table = block.get_submodule("layer.0.SelfAttention.relative_attention_bias").weight.double()
    half, longest = config.relative_attention_num_buckets // 2, config.relative_attention_max_distance
    total = torch.empty(model.dimensions.n_heads, count, count, dtype=torch.float64)
    for at, to in product(range(count), repeat=2):
        distance, exact = abs(at - to), half // 2
        bucket = distance
        if distance >= exact:
            steps = math.log(distance / exact) / math.log(longest / exact) * (half - exact)
            bucket = min(exact + int(steps), half - 1)
        total[:, at, to] = table[bucket + half * (to > at)]
    return total


def _disentangled_scores(x: Tensor, weights: AttentionWeights, layer: int, model: LoadedModel) -> Tensor:
    """Content to position, and position to content (He et al. 2021, arXiv 2006.03654, equation 4)."""
    config, n_heads, encoder = model.config, model.dimensions.n_heads, model.module.encoder
    assert weights.q_bias is not None
    x = x.double()
    attention: Any = model.blocks[layer].attention.self
    queries = x @ weights.q.double() + weights.q_bias.double()[:, None]
    keys = x @ weights.k.double() + (0 if weights.k_bias is None else weights.k_bias.double()[:, None])
    table = encoder.rel_embeddings.weight
    if hasattr(encoder, "LayerNorm"):
        table = encoder.LayerNorm(table)
    half, shared = len(table) // 2, getattr(config, "share_att_key", False)
    if config.model_type == "deberta":
        own = ("pos_proj", "pos_q_proj")
    else:
        own = ("key_proj", "query_proj") if shared else ("pos_key_proj", "pos_query_proj")
    of_key, of_query = (getattr(attention, name) for name in own)
    count, total = len(x), torch.zeros(n_heads, len(x), len(x), dtype=torch.float64)
    for at in range(count):
        for to in range(count):
            row = table[min(max(_distance(at - to, config) + half, 0), 2 * half - 1)]
            if "c2p" in config.pos_att_type:
                total[:, at, to] += (queries[:, at] * of_key(row).view(n_heads, -1)).sum(-1)
            if "p2c" in config.pos_att_type:
                total[:, at, to] += (keys[:, to] * of_query(row).view(n_heads, -1)).sum(-1)
    return total * weights.scale


def _distance(offset: int, config: Any) -> int:
    """Return an offset, or its bucket: far offsets share buckets whose widths grow as a logarithm does."""
    buckets, middle = getattr(config, "position_buckets", -1), getattr(config, "position_buckets", -1) // 2
    longest = config.max_relative_positions if config.max_relative_positions > 0 else config.max_position_embeddings
    if buckets <= 0 or abs(offset) <= middle:
        return offset
    steps = math.log(abs(offset) / middle) / math.log((longest - 1) / middle) * (middle - 1)
    return int(math.copysign(math.ceil(steps) + middle, offset))
