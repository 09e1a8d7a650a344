"""Describe a model that is not loaded, from its configuration and a skeleton without weights."""

import copy
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Dimensions, Files, dimensions_of, head_widths_of, text_config_of
from theodolite_jobs.models.config_numbers import score_scale
from theodolite_jobs.models.families import known_anatomy, text_model_of
from theodolite_jobs.models.load import resolved_dtype
from theodolite_jobs.models.quantised import dequantised_from
from theodolite_jobs.models.quiet import plain_errors

# Constants in a family's code that neither its configuration nor an attribute of its modules states.
_EPSILON_OF_OLMO = 1e-5
_ROTARY_OF_GPTJ = {"rope_type": "default", "rope_theta": 10000.0}


def describe_model(config: Any) -> dict[str, Any]:
    """Return a model's facts in plain types, without those that need a probe of an unknown family.

    Raises:
        ModelError: no model can be built from the configuration, its input is not tokens, or it has no residual stream.
    """
    text, anatomy = text_config_of(config), known_anatomy(config)
    dimensions = dimensions_of(config, anatomy.reserved_positions if anatomy else 0)
    if getattr(text, "vocab_size", None) is None:
        raise UnsupportedModelError(
            f"{config.model_type!r} has no vocabulary; a survey needs a model whose input is tokens"
        )
    module = skeleton(config)
    facts = {
        "family": config.model_type,
        **({"text_model": part} if (part := text_model_of(config)) else {}),
        "class": type(module).__name__,
        **asdict(dimensions),
        **({"head_widths": list(widths)} if (widths := head_widths_of(config)) else {}),
        "vocabulary_size": int(text.vocab_size),
        "tied_embeddings": bool(getattr(config, "tie_word_embeddings", False)),
        "sliding_window": _sliding_window(text, dimensions.n_layers),
        **_sizes(module, config),
    }
    if anatomy is not None:
        facts |= _anatomy_facts(module, config, anatomy, dimensions)
        facts["sites"] = [site.value for site in (*anatomy.sites, Site.RESID_FINAL)]
        if anatomy.partial:
            facts["partial_sites"] = {site.value: list(some.layers) for site, some in anatomy.partial.items()}
        absent = {site: reason for site, reason in anatomy.absent.items() if site not in anatomy.partial}
        facts["absent_sites"] = {site.value: reason for site, reason in absent.items()}
    return {**facts, "notes": _notes(config, anatomy)}


def skeleton(config: Any) -> Any:
    """Return the base model, or the part of it that is surveyed, without memory for weights; raises ModelError."""
    import torch
    from transformers import AutoModel

    from theodolite_jobs.models.shared_blocks import unroll
    from theodolite_jobs.models.text_part import text_part

    anatomy = known_anatomy(config)
    options = dict(anatomy.load_options) if anatomy else {}
    # A configuration of the checkpoint's own class exists only if its code was allowed to run.
    options["trust_remote_code"] = not type(config).__module__.startswith("transformers.")
    with plain_errors(f"build a {config.model_type!r} model from its configuration"), torch.device("meta"):
        part = text_part(AutoModel.from_config(copy.deepcopy(config), **options))  # from_config changes its argument
        if anatomy is not None:
            unroll(part, anatomy)
        return part


def mlp_width(config: Any) -> int | None:
    """Return the number of hidden units of each layer's MLP, from a skeleton; None if the family's record names none.

    Configurations have many names for this number, and some contain one that their family does not read.

    Raises:
        ModelError: no model can be built from the configuration.
    """
    anatomy = known_anatomy(config)
    if anatomy is None or anatomy.mlp_units is None:
        return None
    projection = skeleton(config).get_submodule(anatomy.blocks)[0].get_submodule(anatomy.mlp_units)
    parts = 2 if anatomy.files is not None and anatomy.files.gate_up_fused else 1
    return int(projection.weight.numel() // dimensions_of(config).d_model // parts)


def _sizes(module: Any, config: Any) -> dict[str, Any]:
    """Return the sizes of the base model's weights, and the size that an untied language-model head adds."""
    import torch

    with plain_errors(f"find the token embedding of {config.model_type!r}"):
        embedding = module.get_input_embeddings().weight.numel()
    total = sum(parameter.numel() for parameter in module.parameters())
    dtype = resolved_dtype(config, "auto")
    return {
        "parameters": {
            "base_model": total,
            "embedding": embedding,
            "embedding_share": round(embedding / total, 4),
            "untied_head": 0 if getattr(config, "tie_word_embeddings", False) else embedding,
        },
        "weights": {
            "dtype": dtype,
            "bytes": total * getattr(torch, dtype).itemsize,
            "quantised": dequantised_from(config),
        },
    }


def _anatomy_facts(module: Any, config: Any, anatomy: Anatomy, dimensions: Dimensions) -> dict[str, Any]:
    """Return facts from a family's record and its last block, since the first blocks of some families lack a part."""
    blocks = module.get_submodule(anatomy.blocks)
    block, with_attention = blocks[-1], anatomy.attention_layers(dimensions.n_layers)
    facts = {
        "causal": anatomy.causal,
        "attention": _attention(config.get_text_config(), dimensions),
        "positions": {"kind": anatomy.positions, "rotary": _rotary(module, config, anatomy)},
        "norms": {
            "kind": anatomy.norm_kind,
            "scale_offset": anatomy.norm_offset,
            "post_norm": anatomy.post_norm,
            "block": {branch: _norm(block, path) for branch, path in anatomy.norms.items()},
            "final": _norm(module, anatomy.final_norm) if anatomy.final_norm else None,
        },
    }
    if len(with_attention) < dimensions.n_layers:
        facts["attention_layers"] = with_attention
    if anatomy.files is not None and with_attention:
        block, d_head = blocks[with_attention[-1]], dimensions_of(config, layer=with_attention[-1]).d_head
        facts |= {"qk_norm": _qk_norm(block, anatomy, d_head), "biases": _biases(block, anatomy.files)}
    return facts


def _attention(text: Any, dimensions: Dimensions) -> dict[str, Any]:
    """Return the scaling of scores and the multipliers in the stream, as the configuration states them."""
    return {
        "score_scale_of_layer_0": score_scale(text, dimensions, 0),
        "clip": getattr(text, "clip_qkv", None),
        "soft_cap": getattr(text, "attn_logit_softcapping", None),
        "residual_multiplier": getattr(text, "residual_multiplier", None),
        "embedding_multiplier": getattr(text, "embedding_multiplier", None),
    }


def _norm(owner: Any, path: str) -> dict[str, Any]:
    norm = owner.get_submodule(path)
    epsilon = getattr(norm, "eps", getattr(norm, "variance_epsilon", _EPSILON_OF_OLMO))
    learned = {"weight": "scale", "bias": "bias"}
    affine = " and ".join(learned[name] for name, _ in norm.named_parameters(recurse=False))
    return {"module": path, "epsilon": float(f"{float(epsilon):.6g}"), "affine": affine or "none"}


def _qk_norm(block: Any, anatomy: Anatomy, d_head: int) -> str:
    if anatomy.unscaled_qk_norm:
        return "per head, without a scale"
    path = anatomy.files.qk_norm[0].format(0) if anatomy.files and anatomy.files.qk_norm else None
    if path not in dict(block.named_modules()):
        return "none"
    return "per head" if block.get_submodule(path).weight.shape[-1] == d_head else "full width"


def _biases(block: Any, files: Files) -> dict[str, bool]:
    """Return which projections have a bias; unlike those of norms, their weights are matrices."""
    shapes = {path: parameter.ndim for path, parameter in block.named_parameters()}
    paths = {path.removesuffix(".bias") for path in shapes if path.endswith(".bias")}
    biased = {path for path in paths if shapes.get(f"{path}.weight") == 2}
    own = {path for path in files.qkv if f"{path}.weight" in shapes}
    if not own:  # they have other names in memory than on disk
        parent = files.output.rpartition(".")[0]
        own = {path for path in biased if path.startswith(f"{parent}.") and path != files.output}
    return {
        "query_key_value": bool(biased & own) or files.query_and_value_bias is not None,
        "output": files.output in biased,
        "mlp": bool(biased - own - {files.output}),
    }


def _rotary(module: Any, config: Any, anatomy: Anatomy) -> dict[str, Any] | None:
    """Return rotary settings by type of layer, or by `all` for a single type; None without rotary positions."""
    if not anatomy.positions.startswith("rotary"):
        return None
    text = config.get_text_config()
    stated = getattr(text, "rope_parameters", None) or _ROTARY_OF_GPTJ
    by_type: dict[str, Any] = {name: value for name, value in stated.items() if isinstance(value, dict)}
    if anatomy.layers_without_rotary:
        by_type = _with_and_without(text, stated, anatomy.layers_without_rotary)
    buffers = {path.split(".")[-1]: buffer for path, buffer in module.named_buffers()}
    names = {"kind": "rope_type", "base": "rope_theta", "factor": "factor"}
    facts: dict[str, Any] = {}
    types = getattr(text, "layer_types", None) or []
    for layer_type, value in (by_type or {"all": stated}).items():
        d_head = dimensions_of(config, layer=types.index(layer_type) if layer_type in types else 0).d_head
        fraction = {"rotated_fraction": _rotated(buffers, layer_type, value or {}) / d_head}
        facts[layer_type] = value and {name: value.get(setting) for name, setting in names.items()} | fraction
    return facts


def _with_and_without(text: Any, stated: Any, without: tuple[int, ...]) -> dict[str, Any]:
    """Return the settings by type of layer if each type has rotary positions or none; else by the layers' indices."""
    types = text.layer_types
    layers = {name: {layer for layer, one in enumerate(types) if one == name} for name in dict.fromkeys(types)}
    if all(some <= set(without) or some.isdisjoint(without) for some in layers.values()):
        return {name: None if some <= set(without) else stated for name, some in layers.items()}
    return {"all": stated, f"layers {', '.join(map(str, without))}": None}


def _rotated(buffers: Mapping[str, Any], layer_type: str, settings: Mapping[str, Any]) -> int:
    """Return the number of rotated entries of a head: two for each frequency; GPT-J stores sines and cosines.

    Proportional positions have a frequency of 0 for each pair that does not rotate.
    """
    frequencies = buffers.get(f"{layer_type}_inv_freq", buffers.get("inv_freq"))
    if frequencies is None:
        return int(buffers["embed_positions"].shape[-1])
    is_proportional = settings.get("rope_type") == "proportional"
    return 2 * int(len(frequencies) * (settings.get("partial_rotary_factor", 1.0) if is_proportional else 1))


def _sliding_window(text: Any, n_layers: int) -> dict[str, Any] | None:
    tokens = getattr(text, "sliding_window", None)
    types = getattr(text, "layer_types", None) or ["sliding_attention"] * n_layers
    layers = [layer for layer, layer_type in enumerate(types) if layer_type == "sliding_attention"]
    return {"tokens": int(tokens), "layers": layers} if tokens and layers else None


def _notes(config: Any, anatomy: Anatomy | None) -> list[str]:
    notes = []
    if anatomy is None:
        notes.append(
            f"the family {text_config_of(config).model_type!r} is not in the table; "
            "a survey probes the loaded model for its sites, and stops if the probe fails"
        )
    if name := dequantised_from(config):
        notes.append(
            f"the weights are quantised: {name}; the first load dequantises them into the cache, and bytes counts the "
            "dequantised weights"
        )
    return notes
