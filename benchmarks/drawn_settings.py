"""Draw settings for a family, from those that its configuration in transformers has.

Sizes, rotary positions, kinds of layers and experts are drawn together, because they must fit. Every other setting is
drawn alone: a flag is on or off, and a number has a value from a short list. A combination that transformers cannot
build or run is drawn again by the caller.
"""

import random
from typing import Any

from families import OPTIONS, UNGROUPED
from transformers import CONFIG_MAPPING

Settings = dict[str, Any]

NOT_DRAWN = (
    *("use_cache", "is_decoder", "is_encoder_decoder", "add_cross_attention", "return_dict"),
    *("output_hidden_states", "output_attentions", "output_router_logits", "tie_encoder_decoder"),
    *("use_mamba_kernels", "use_mambapy", "use_associative_scan", "deterministic_flash_attn", "sparse_prediction"),
)
"""Flags that change no stream, choose a kernel, or make another kind of model."""

RARE = ("use_bidirectional_attention", "apply_residual_connection_post_layernorm")
"""Flags with which models are refused; they are on in one draw of ten."""

ALIASES = {
    "hidden_size": ("hidden_size", "n_embd", "d_model", "dim", "embed_dim", "lru_width"),
    "num_attention_heads": ("num_attention_heads", "n_head", "n_heads", "attention_heads"),
    "num_hidden_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers", "layers"),
    "num_key_value_heads": ("num_key_value_heads", "num_kv_heads"),
    "max_position_embeddings": ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"),
    "num_experts": ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"),
    "num_experts_per_tok": ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts"),
}
"""The names of the same setting in different families."""

WIDTHS = (37, 40, 64, 91)
SCALES = (0.25, 0.7, 1.6, 3.0)
EPSILONS = (1e-12, 1e-6, 1e-5, 1e-3, 1e-2)
ACTIVATIONS = ("silu", "gelu", "gelu_pytorch_tanh", "gelu_new", "relu", "relu2", "quick_gelu")
KERNELS = (2, 3, 4)

VALUES: dict[str, tuple[Any, ...]] = {
    **dict.fromkeys(("intermediate_size", "intermediate_size_mlp", "moe_intermediate_size", "ffn_dim"), WIDTHS),
    **dict.fromkeys(("shared_expert_intermediate_size", "shared_intermediate_size", "ffn_hidden_size"), WIDTHS),
    **dict.fromkeys(("n_inner", "hidden_dim", "dff", "dense_intermediate_size"), WIDTHS),
    **dict.fromkeys(("residual_multiplier", "embedding_multiplier", "attention_multiplier", "logits_scaling"), SCALES),
    **dict.fromkeys(("routed_scaling_factor", "moe_routed_scaling_factor", "router_scaling_factor"), SCALES),
    **dict.fromkeys(("route_scale", "attention_value_scale", "attn_scale", "logit_scale", "lambda_std_dev"), SCALES),
    **dict.fromkeys(("hidden_act", "hidden_activation", "activation_function", "activation"), ACTIVATIONS),
    **dict.fromkeys(("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_eps", "norm_epsilon"), EPSILONS),
    **dict.fromkeys(("attn_logit_softcapping", "final_logit_softcapping", "logits_soft_cap"), (3.0, 20.0, None)),
    **dict.fromkeys(("linear_num_key_heads", "linear_key_head_dim", "linear_value_head_dim"), (4, 8)),
    **dict.fromkeys(("conv1d_width", "conv_kernel_size", "linear_conv_kernel_dim", "short_conv_kernel_size"), KERNELS),
    **dict.fromkeys(("conv_L_cache", "mamba_d_conv", "conv_kernel"), KERNELS),
    **dict.fromkeys(("n_shared_experts", "num_shared_experts", "moe_num_shared_experts"), (0, 1, 2, 3)),
    **dict.fromkeys(("decoder_sparse_step", "moe_layer_interval", "interleave_moe_layer_step"), (1, 2, 3)),
    **dict.fromkeys(("attn_layer_period", "expert_layer_period", "layer_group_size"), (2, 3)),
    **dict.fromkeys(("attn_layer_offset", "expert_layer_offset"), (0, 1)),
    **dict.fromkeys(("attention_in_multiplier", "attention_out_multiplier", "ssm_out_multiplier"), SCALES),
    **dict.fromkeys(("ssm_in_multiplier", "key_multiplier", "lm_head_multiplier"), SCALES),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), (4, 16)),
    **dict.fromkeys(("moe_shared_expert_intermediate_size", "moe_latent_size"), WIDTHS),
    **dict.fromkeys(("kv_lora_rank", "gated_norm_rank"), (7, 12, 20)),
    **dict.fromkeys(("qk_rope_head_dim", "mamba_d_state", "ssm_state_size"), (4, 8)),
    **dict.fromkeys(("qk_nope_head_dim", "v_head_dim", "index_head_dim", "kv_channels"), (8, 12, 16)),
    **dict.fromkeys(("index_topk", "index_topk_blocks"), (3, 64)),
    "index_n_heads": (1, 2),
    "swiglu_alpha": (1.0, 1.702),
    "attention_chunk_size": (4, 7, 16),
    "attention_window_size": (3, 8),
    "clip_qkv": (None, 0.6, 2.0),
    "floor_scale": (4, 8192),
    "index_block_size": (4, 16),
    "linear_num_value_heads": (8,),
    "local_attention": (4, 8, 16),
    "logits_mup_width_multiplier": SCALES,
    "log_scaling_n_floor": (None, 8),
    "mamba_d_ssm": (32, 48, 64),
    "mamba_dt_rank": (3, 8),
    "mamba_head_dim": (8, 12),
    "mamba_n_heads": (2, 4),
    "mamba_num_heads": (2, 4),
    "mlp_hidden_act": ACTIVATIONS,
    "n_groups": (1, 2),
    "num_ln_in_parallel_attn": (None, 1, 2),
    "position_embedding_type": (None, "rope"),
    "pretraining_tp": (1, 2),
    "q_lora_rank": (12, 20, None),
    "query_pre_attn_scalar": (5, 20, 77),
    "relative_attention_num_buckets": (8, 32),
    "rotary_dim": (4, 8),
    "sliding_window": (2, 5, 9, None),
    "sliding_window_size": (2, 5, 9),
    "swiglu_limit": (0.5, 7.0),
    "topk_method": ("greedy", "group_limited_greedy"),
    "type_vocab_size": (1, 2, 3),
    "vocab_size": (67, 73, 97, 101, 131),
}
"""Numbers that are drawn alone."""


def draw(name: str, rng: random.Random) -> Settings:
    """Return drawn settings of the model type `name`, which has the configuration of a text model."""
    config_class = CONFIG_MAPPING[name]
    default = config_class()
    fields = {key: str(field.type) for key, field in config_class.__dataclass_fields__.items()}
    known = {*fields, *(key for key, name in config_class.attribute_map.items() if name in fields)}
    sizes = _sizes(known, rng, is_ungrouped=OPTIONS.get(name) is UNGROUPED)
    settings: Settings = {}
    for key in sorted(fields):
        if key in VALUES:
            settings[key] = rng.choice([one for one in VALUES[key] if one is not None or "None" in fields[key]])
        elif "bool" in fields[key] and key not in NOT_DRAWN:
            settings[key] = rng.random() < (0.1 if key in RARE else 0.5)
    for key, value in sizes.items():
        settings |= dict.fromkeys((alias for alias in ALIASES.get(key, (key,)) if alias in known), value)
    settings |= {key: value for key, value in _layers(default, fields, sizes, rng).items() if key in known}
    settings |= {key: value for key, value in _experts(sizes, rng).items() if key in known}
    if "rope_parameters" in fields and default.rope_parameters:
        width = settings["qk_rope_head_dim"] if settings.get("kv_lora_rank") else sizes["head_dim"]
        usual = default.rope_parameters | OPTIONS.get(name, {}).get("rope_parameters", {})
        settings["rope_parameters"] = _rotary(usual, width, settings, rng)
    if "embedding_size" in fields:
        settings["embedding_size"] = rng.choice((sizes["hidden_size"], 20))
    if "word_embed_proj_dim" in fields:
        settings["word_embed_proj_dim"] = rng.choice((sizes["hidden_size"], 20))
    return settings


def _sizes(known: set[str], rng: random.Random, *, is_ungrouped: bool) -> Settings:
    heads = rng.randint(2, 6)
    width = rng.choice((8, 12, 16, 20, 24))
    hidden = heads * width
    if "head_dim" in known and rng.random() < 0.7:
        hidden = rng.choice((36, 42, 50, 51, 56, 60, 68))
    groups = [one for one in range(1, heads + 1) if heads % one == 0]
    experts = rng.choice((3, 4, 5, 8))
    return {
        "num_attention_heads": heads,
        "num_key_value_heads": heads if is_ungrouped else rng.choice(groups),
        "head_dim": width,
        "hidden_size": hidden,
        "num_hidden_layers": rng.randint(3, 6),
        "max_position_embeddings": rng.choice((64, 128)),
        "num_experts": experts,
        "num_experts_per_tok": rng.randint(1, experts),
    }


def _layers(default: Any, fields: dict[str, str], sizes: Settings, rng: random.Random) -> Settings:
    """Return the settings with a value for each layer, or that name layers."""
    layers = sizes["num_hidden_layers"]

    def subset() -> list[int]:
        return [layer for layer in range(layers) if rng.random() < 0.5]

    settings: Settings = {
        "first_k_dense_replace": rng.randint(0, layers - 1),
        "num_dense_layers": rng.randint(0, layers - 1),
        "moe_layer_start_index": rng.randint(0, 2),
        "moe_layer_end_index": rng.randint(2, layers - 1),
        "max_window_layers": rng.randint(0, layers),
        "mlp_only_layers": subset(),
        "moe_layers": subset(),
        "local_layer_ids": subset(),
        "attn_layer_indices": subset() or [0],
        "no_rope_layers": [rng.randint(0, 1) for _ in range(layers)],
        "layer_rope_theta": [rng.choice((500.0, 10000.0)) for _ in range(layers)],
        "num_attention_heads_per_layer": [sizes["num_attention_heads"]] * layers,
    }
    for key in ("layer_types", "mlp_layer_types", "block_types"):
        kinds = set(getattr(default, key, None) or ())
        if key == "layer_types" and {"sliding_window", key} <= fields.keys():
            kinds |= {"full_attention", "sliding_attention"}
        if kinds:
            settings[key] = [rng.choice(sorted(kinds)) for _ in range(layers)]
    return settings


def _experts(sizes: Settings, rng: random.Random) -> Settings:
    experts = sizes["num_experts"]
    groups = rng.choice([one for one in range(1, experts) if experts % one == 0])
    chosen = rng.randint(1, groups)
    most = chosen * (experts // groups)
    per_token = min(sizes["num_experts_per_tok"], most)
    return {"n_group": groups, "topk_group": chosen} | dict.fromkeys(ALIASES["num_experts_per_tok"], per_token)


def _rotary(default: Settings, width: int, settings: Settings, rng: random.Random) -> Settings:
    """Return rotary settings of the same form as the default ones; they may shorten the trained context."""
    if all(isinstance(one, dict) for one in default.values()):  # one for each kind of layer
        return {kind: _rotary(one, width, settings, rng) for kind, one in default.items()}
    kind = rng.choice(("default", "default", "linear", "dynamic", "yarn", "llama3", "longrope"))
    drawn: Settings = {"rope_type": kind, "rope_theta": rng.choice((100.0, 5000.0, 1000000.0))}
    rotated = width
    if "partial_rotary_factor" in default:
        drawn["partial_rotary_factor"] = rng.choice((0.25, 0.5, 0.75, 1.0))
        rotated = int(width * drawn["partial_rotary_factor"])
    if "mrope_section" in default:
        part = rng.randint(1, rotated // 6)
        drawn["mrope_section"] = [rotated // 2 - 2 * part, part, part]
    if kind != "default":
        drawn["factor"] = rng.choice((1.5, 4.0, 8.0))
    if kind in ("yarn", "llama3", "longrope"):
        drawn["original_max_position_embeddings"] = rng.choice((16, 20, 32))
    if kind == "yarn":
        scales: Settings = {"mscale": rng.choice((0.7, 1.3)), "mscale_all_dim": rng.choice((0.5, 1.0))}
        drawn |= rng.choice(({}, {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3}, scales))
    if kind == "llama3":
        drawn |= {"low_freq_factor": 1.0, "high_freq_factor": rng.choice((2.0, 4.0))}
    if kind == "longrope":
        drawn |= {key: [round(rng.uniform(1, 9), 2) for _ in range(rotated // 2)] for key in _FACTORS}
    if "llama_4_scaling_beta" in default:
        drawn |= {"llama_4_scaling_beta": rng.choice((0.1, 0.3)), "original_max_position_embeddings": 16}
    if kind in ("dynamic", "longrope") and "max_position_embeddings" in settings:
        settings["max_position_embeddings"] = 20  # shorter than some prompts
    return drawn


_FACTORS = ("short_factor", "long_factor")
