"""Attention and MLP written out with weights that were read from files: no module of the model takes part."""

import math

import torch
from transformers.activations import ACT2FN

from theodolite.sites import Site
from theodolite_jobs.models.reference import read_sites
from theodolite_jobs.models.rotary import rotation


def inputs_of(model, which, tokens):
    """Return, for each layer, what attention or the MLP reads, (token, d_model)."""
    norm = model.anatomy.norms.get(which)
    if norm is None or model.anatomy.post_norm:
        site = Site.RESID_PRE if which == "attention" else Site.RESID_MID
        return torch.from_numpy(read_sites(model, tokens, range(-len(tokens), 0))[site]).unbind(1)
    return recorded(model, norm, tokens)


def recorded(model, path, tokens):
    """Return what a module of each block puts out when the prompt runs alone."""
    outputs = []
    handles = [
        block.get_submodule(path).register_forward_hook(lambda _, __, output: outputs.append(output))
        for block in model.blocks
    ]
    read_sites(model, tokens, [-1])
    for handle in handles:
        handle.remove()
    return [out.reshape(-1, out.shape[-1]) if isinstance(out, torch.Tensor) else out for out in outputs]


def normalised(x, kind, scale, bias, epsilon):
    """Apply a norm along the last axis."""
    if kind == "layer":
        x = x - x.mean(-1, keepdim=True)
    x = x / (x.square().mean(-1, keepdim=True) + epsilon).sqrt()
    x = x if scale is None else x * scale
    return x if bias is None else x + bias


def epsilon_of(config):
    if config.model_type == "olmo":  # its code has the number, its configuration none
        return 1e-5
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon")
    return next(getattr(config, name) for name in names if getattr(config, name, None) is not None)


def with_head_norm(x, scale, bias, weights, model):
    """Apply the norm on queries or keys, (head, token, d_head), over each head or over all at once."""
    if scale is None:
        return x
    config, kind = model.config.get_text_config(), model.anatomy.norm_kind
    if not weights.norm_spans_heads:
        return normalised(x, kind, scale[:, None], None if bias is None else bias[:, None], epsilon_of(config))
    wide = normalised(x.transpose(0, 1).flatten(1), kind, scale.flatten(), None, epsilon_of(config))
    return wide.reshape(x.shape[1], x.shape[0], -1).transpose(0, 1)


def attention_by_hand(x, weights, layer, model):
    """Return what attention puts out for (token, d_model), and leave no module in it."""
    config, sizes, anatomy = model.config, model.dimensions, model.anatomy
    group = sizes.n_heads // sizes.n_kv_heads

    def project(matrix, bias):
        projected = x @ matrix + (0 if bias is None else bias[:, None])
        return projected if weights.clip is None else projected.clamp(-weights.clip, weights.clip)

    q = with_head_norm(project(weights.q, weights.q_bias), weights.q_norm, weights.q_norm_bias, weights, model)
    k = with_head_norm(project(weights.k, weights.k_bias), weights.k_norm, weights.k_norm_bias, weights, model)
    k, v = k.repeat_interleave(group, 0), project(weights.v, weights.v_bias).repeat_interleave(group, 0)
    scores = torch.empty(sizes.n_heads, len(x), len(x), dtype=torch.float64)
    for offset in range(1 - len(x), len(x)):
        turned = torch.from_numpy(rotation(config, anatomy, layer, offset))
        keys = torch.arange(len(x))[max(0, -offset) : len(x) - max(0, offset)]
        scores[:, keys + offset, keys] = (q[:, keys + offset] @ turned * k[:, keys]).sum(-1) * weights.scale
    if anatomy.positions == "ALiBi":  # four heads: slopes 1/4, 1/16, …; Falcon scales them as it does scores
        slopes = 0.25 ** torch.arange(1, sizes.n_heads + 1) * (weights.scale if config.model_type == "falcon" else 1)
        scores += slopes[:, None, None] * torch.arange(len(x))
    if anatomy.positions == "learned and relative":
        scores += model.module.encoder.compute_position_bias(x[None])[0]
    if weights.soft_cap is not None:
        scores = weights.soft_cap * (scores / weights.soft_cap).tanh()
    if anatomy.causal:
        scores = scores.masked_fill(torch.ones(len(x), len(x)).triu(1).bool(), -math.inf)
    out = (scores.softmax(-1) @ v @ weights.o).sum(0)
    return out if weights.o_bias is None else out + weights.o_bias


def after_branch(out, layer, which, weights, model):
    """Apply what a family does to a branch's output before it is added."""
    scale = model.anatomy.taps[Site.ATTN_OUT].scale
    if which not in model.anatomy.norms or model.anatomy.post_norm:
        return out * scale
    norm = weights.norm(layer, which)
    return normalised(out, model.anatomy.norm_kind, norm.scale, norm.bias, epsilon_of(model.config.get_text_config()))


def mlp_by_hand(x, mlp, activation):
    up = x @ mlp.up + (0 if mlp.up_bias is None else mlp.up_bias)
    if mlp.gate is None:
        hidden = activation(up)
    else:
        hidden = activation(x @ mlp.gate + (0 if mlp.gate_bias is None else mlp.gate_bias)) * up
    return hidden @ mlp.down + (0 if mlp.down_bias is None else mlp.down_bias)


def activation_of(config):
    if config.model_type == "bloom":
        return ACT2FN["gelu_pytorch_tanh"]
    names = ("hidden_activation", "hidden_act", "activation_function", "activation")
    return ACT2FN[next(getattr(config, name) for name in names if getattr(config, name, None) is not None)]
