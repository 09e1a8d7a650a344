"""Reference attention and MLP, computed from weights that were read from files, without the modules of the model."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from support.relative_positions import relative_scores
from transformers.activations import ACT2FN

from theodolite.sites import Site
from theodolite.spec import TokenIds
from theodolite_jobs.models.layer_weights import AttentionWeights, MlpWeights
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import read_sites
from theodolite_jobs.models.rotary import rotations
from theodolite_jobs.models.weights import Weights

Tensor = torch.Tensor


def inputs_of(model: LoadedModel, which: str, tokens: TokenIds) -> list[Tensor]:
    """Return the input of attention or of the MLP at each layer, (token, d_model)."""
    norm = model.anatomy.norms.get(which)
    if norm is None or model.anatomy.post_norm:
        site = Site.RESID_PRE if which == "attention" else Site.RESID_MID
        return list(torch.from_numpy(read_sites(model, tokens, range(-len(tokens), 0))[site]).unbind(1))
    return recorded(model, norm, tokens)


def recorded(model: LoadedModel, path: str, tokens: TokenIds) -> list[Any]:
    """Return the output of one module of each block when the prompt runs alone; a tensor is (token, feature)."""
    outputs: list[Any] = []
    handles = [
        block.get_submodule(path).register_forward_hook(lambda _, __, output: outputs.append(output))
        for block in model.blocks
    ]
    read_sites(model, tokens, [-1])
    for handle in handles:
        handle.remove()
    return [out.reshape(-1, out.shape[-1]) if isinstance(out, torch.Tensor) else out for out in outputs]


def read_attention(model: LoadedModel, tokens: TokenIds) -> dict[int, dict[Site, NDArray[np.float64]]]:
    """Return `attn_out` and `head_out`, (token, feature), of each layer that has attention.

    In a model without one of the sites they are the output and the input of the output projection; a norm may follow.
    """
    sites, layers = (Site.ATTN_OUT, Site.HEAD_OUT), model.anatomy.attention_layers(model.dimensions.n_layers)
    if set(sites) <= set(model.anatomy.taps):
        read = read_sites(model, tokens, range(-len(tokens), 0))
        return {layer: {site: read[site][:, layer] for site in sites} for layer in layers}
    found: dict[int, dict[Site, NDArray[np.float64]]] = {}
    assert model.anatomy.files is not None
    handles = []
    for layer in layers:

        def keep(_: Any, args: Any, output: Tensor, layer: int = layer) -> None:
            added = output * model.anatomy.scale_of_attention
            if "attention_output" in model.anatomy.norms:
                added = model.blocks[layer].get_submodule(model.anatomy.norms["attention_output"])(added)
            found[layer] = {Site.ATTN_OUT: added[0].numpy(), Site.HEAD_OUT: args[0][0].numpy()}

        output = model.blocks[layer].get_submodule(model.anatomy.files.output)
        handles.append(output.register_forward_hook(keep))
    read_sites(model, tokens, [-1])
    for handle in handles:
        handle.remove()
    return found


def normalised(x: Tensor, kind: str, scale: Any, bias: Any, epsilon: float) -> Tensor:
    """Apply a norm along the last axis."""
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    x = x if scale is None else x * torch.as_tensor(scale)
    return x if bias is None else x + torch.as_tensor(bias)


def epsilon_of(config: Any) -> float:
    """Return the epsilon of the norms of a family."""
    # The code of these has the number, their configuration none.
    if config.model_type in ("bart", "m2m_100", "marian", "mbart", "olmo", "pegasus", "plbart"):
        return 1e-5
    if config.model_type == "distilbert":
        return 1e-12
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    return float(next(getattr(config, name) for name in names if getattr(config, name, None) is not None))


def with_head_norm(
    x: Tensor, scale: Tensor | None, bias: Tensor | None, weights: AttentionWeights, model: LoadedModel
) -> Tensor:
    """Apply the norm on queries or keys, (head, token, d_head), over each head or over all at once."""
    if scale is None:
        return x
    config, kind = model.config.get_text_config(), model.anatomy.norm_kind
    if not weights.norm_spans_heads:
        return normalised(x, kind, scale[:, None], None if bias is None else bias[:, None], epsilon_of(config))
    wide = normalised(x.transpose(0, 1).flatten(1), kind, scale.flatten(), None, epsilon_of(config))
    return wide.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)


def reference_heads(
    x: Tensor, weights: AttentionWeights, layer: int, model: LoadedModel, source: Tensor | None = None
) -> Tensor:
    """Return the output of each head before W_O, (head, token, d_head), for inputs (token, d_model).

    `source` is the input of the layer whose keys and values these are, if it is another.
    """
    config, sizes, anatomy = model.config, model.dimensions, model.anatomy
    group, source = sizes.n_heads // len(weights.k), x if source is None else source

    def project(
        x: Tensor, matrix: Tensor, bias: Tensor | None, scale: Tensor | None = None, shift: Tensor | None = None
    ) -> Tensor:
        projected = with_head_norm(x @ matrix + (0 if bias is None else bias[:, None]), scale, shift, weights, model)
        return projected if weights.clip is None else projected.clamp(-weights.clip, weights.clip)

    q = project(x, weights.q, weights.q_bias, weights.q_norm, weights.q_norm_bias)
    k = project(source, weights.k, weights.k_bias, weights.k_norm, weights.k_norm_bias)
    v = project(source, weights.v, weights.v_bias)
    if anatomy.normed_values:
        v = normalised(v, "rms", None, None, epsilon_of(config))
    k, v = k.repeat_interleave(group, 0), v.repeat_interleave(group, 0)
    scores = torch.empty(sizes.n_heads, len(x), len(x), dtype=torch.float64)
    offsets = range(1 - len(x), len(x))
    for offset, turned in zip(offsets, torch.from_numpy(rotations(config, anatomy, layer, offsets)), strict=True):
        keys = torch.arange(len(x))[max(0, -offset) : len(x) - max(0, offset)]
        scores[:, keys + offset, keys] = (q[:, keys + offset] @ turned * k[:, keys]).sum(-1) * weights.scale
    if anatomy.positions == "ALiBi":  # four heads: slopes 1/4, 1/16, …; Falcon scales them as it does scores
        slopes = 0.25 ** torch.arange(1, sizes.n_heads + 1) * (weights.scale if config.model_type == "falcon" else 1)
        scores += slopes[:, None, None] * torch.arange(len(x))
    if anatomy.positions.endswith("relative"):
        scores += relative_scores(x, weights, layer, model)
    if weights.soft_cap is not None:
        scores = weights.soft_cap * (scores / weights.soft_cap).tanh()
    if anatomy.causal:
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
    if weights.sinks is not None:
        scores = torch.cat([scores, weights.sinks[:, None, None].expand(-1, len(x), 1)], dim=-1)
    out = scores.softmax(-1)[..., : len(x)] @ v
    if weights.gate is None:
        return out
    return out * (x @ weights.gate + (0 if weights.gate_bias is None else weights.gate_bias[:, None])).sigmoid()


def reference_attention(
    x: Tensor, weights: AttentionWeights, layer: int, model: LoadedModel, source: Tensor | None = None
) -> Tensor:
    """Return the output of attention, (token, d_model), for inputs (token, d_model); see `reference_heads`."""
    return joined_heads(reference_heads(x, weights, layer, model, source), weights)


def joined_heads(heads: Tensor, weights: AttentionWeights) -> Tensor:
    """Return the output of attention, (token, d_model), from those of its heads."""
    out = (heads @ weights.o).sum(0)
    return out if weights.o_bias is None else out + weights.o_bias


def after_branch(out: Tensor, layer: int, which: str, weights: Weights, model: LoadedModel) -> Tensor:
    """Apply the scale or the norm that a family applies to the output of a branch before the addition."""
    scale = model.anatomy.scale_of_attention
    if which == "mlp_output" and Site.MLP_OUT in model.anatomy.taps:
        scale = model.anatomy.taps[Site.MLP_OUT].scale
    if which not in model.anatomy.norms or model.anatomy.post_norm:
        return out * scale
    norm = weights.norm(layer, which)
    assert norm is not None
    return normalised(out, model.anatomy.norm_kind, norm.scale, norm.bias, epsilon_of(model.config.get_text_config()))


def reference_mlp(x: Tensor, mlp: MlpWeights, activation: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the output of an MLP, (token, d_model), for inputs (token, d_model)."""
    up = x @ mlp.up + (0 if mlp.up_bias is None else mlp.up_bias)
    if mlp.gate is None:
        hidden = activation(up)
    else:
        hidden = activation(x @ mlp.gate + (0 if mlp.gate_bias is None else mlp.gate_bias)) * up
    return hidden @ mlp.down + (0 if mlp.down_bias is None else mlp.down_bias)


def gpt_oss_mlp(x: Tensor, mlp: MlpWeights, model: LoadedModel) -> Tensor:
    """Return the output of an expert of gpt-oss: both projections are clipped, and 1 is added to up."""
    limit, slope = model.config.swiglu_limit, model.config.swiglu_alpha
    assert mlp.gate is not None
    assert mlp.gate_bias is not None
    assert mlp.up_bias is not None
    assert mlp.down_bias is not None
    gate = (x @ mlp.gate + mlp.gate_bias).clamp(max=limit)
    up = (x @ mlp.up + mlp.up_bias).clamp(-limit, limit)
    hidden: Tensor = (up + 1) * gate * (slope * gate).sigmoid()
    return hidden @ mlp.down + mlp.down_bias


def activation_of(model: LoadedModel, layer: int) -> Any:
    """Return the activation function of a layer's MLP, an element-wise module; Apertus trains one for each layer."""
    config = model.config.get_text_config()
    if config.model_type == "apertus":
        return model.blocks[layer].mlp.act_fn
    if config.model_type.startswith("lfm2"):
        return ACT2FN["silu"]
    if config.model_type == "bloom":
        return ACT2FN["gelu_pytorch_tanh"]
    names = ("mlp_hidden_act", "hidden_activation", "hidden_act", "activation_function", "activation", "dense_act_fn")
    return ACT2FN[next(getattr(config, name) for name in names if getattr(config, name, None) is not None)]
