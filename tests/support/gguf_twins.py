"""Tiny models with unusual settings of each architecture of GGUF files."""

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

CONTEXT = 32
"""Tokens of the original context of models with scaled positions; the prompt is several times longer."""

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 3000.0}
LINEAR = {**ROPE, "rope_type": "linear", "factor": 3.0}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
ODD_YARN = {**YARN, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3}
LLAMA3 = {
    **ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": CONTEXT,
}
HALF = {**ROPE, "partial_rotary_factor": 0.5}
WIDE = {"head_dim": 32}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
GEMMA = {**WIDE, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
DEEPSEEK_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32.0, "beta_slow": 1.0}
LONGROPE = {
    **ROPE,
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [1.0 + 1.5 * index for index in range(8)],
    "attention_factor": 1.19,
    "factor": 16.0,
    "original_max_position_embeddings": CONTEXT,
}
FALCON = {"ffn_hidden_size": 256, "layer_norm_epsilon": 1e-4, "alibi": False, "parallel_attn": True}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 256, "vocab_size": 160}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": ROPE, "rms_norm_eps": 3e-4}),
    "llama-wide-tied-biased": (
        "llama",
        {**WIDE, "rope_parameters": ROPE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": ODD_YARN}),
    "mixtral": ("mixtral", {"rope_parameters": ROPE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {"rope_parameters": ROPE}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen2_moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 64, "rope_parameters": ROPE, "norm_topk_prob": False},
    ),
    "qwen3": ("qwen3", {**WIDE, "rope_parameters": YARN}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, **WIDE, "rope_parameters": ROPE, "norm_topk_prob": True}),
    "gemma": (
        "gemma",
        {**WIDE, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rope_parameters": ROPE},
    ),
    "gemma2": (
        "gemma2",
        {
            **GEMMA,
            "rope_parameters": ROPE,
            "sliding_window": 9,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 7.0,
            "query_pre_attn_scalar": 32,
        },
    ),
    "gemma2-27b": (
        "gemma2",
        {
            **GEMMA,
            "num_hidden_layers": 46,
            "rope_parameters": ROPE,
            "sliding_window": 9,
            "query_pre_attn_scalar": 16,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            **GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {**ROPE, "rope_theta": 700.0}},
            "sliding_window": 9,
            "query_pre_attn_scalar": 32,
        },
    ),
    "phi": ("phi", {"rope_parameters": HALF, "layer_norm_eps": 3e-4, "hidden_act": "gelu_new"}),
    "phi3": ("phi3", {"rope_parameters": ROPE, "original_max_position_embeddings": 512, "sliding_window": 11}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT}),
    "phi3-partial": (
        "phi3",
        {"rope_parameters": HALF, "original_max_position_embeddings": 512, "tie_word_embeddings": True},
    ),
    "starcoder2": (
        "starcoder2",
        {"rope_parameters": ROPE, "norm_epsilon": 3e-4, "use_bias": True, "sliding_window": None},
    ),
    "stablelm": (
        "stablelm",
        {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}, "use_qkv_bias": True, "qk_layernorm": True},
    ),
    "stablelm-parallel": ("stablelm", {"rope_parameters": HALF, "use_parallel_residual": True}),
    "falcon": (
        "falcon",
        {**FALCON, "multi_query": True, "bias": False, "rope_parameters": {**ROPE, "rope_theta": 10000.0}},
    ),
    "falcon-groups": (
        "falcon",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "bias": False,
            "rope_parameters": {**ROPE, "rope_theta": 10000.0},
        },
    ),
    "gpt2": ("gpt2", {**GPT2, "layer_norm_epsilon": 3e-4, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {"rope_parameters": ROPE, "rms_norm_eps": 3e-4}),
    "granite": (
        "granite",
        {
            "rope_parameters": ROPE,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "cohere": (
        "cohere",
        {"rope_parameters": ROPE, "logit_scale": 0.3, "use_qk_norm": True, "tie_word_embeddings": True},
    ),
    "glm4": ("glm4", {**WIDE, "rope_parameters": HALF, "attention_bias": True}),
    "deepseek_v2": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": None, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": ROPE,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 32, "n_group": 2, "topk_group": 1, "rope_parameters": DEEPSEEK_YARN},
    ),
    "smollm3": (
        "smollm3",
        {
            "num_hidden_layers": 5,
            "rope_parameters": ROPE,
            "no_rope_layers": [1, 1, 1, 0, 1],
            "use_sliding_window": False,
        },
    ),
    "lfm2": (
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "rope_parameters": ROPE,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": True,
            "conv_bias": False,
            "norm_eps": 3e-4,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **WIDE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "rope_parameters": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
    ),
}


def twin(case: str) -> Any:
    """Return a model of a case, with random weights; norms and biases differ from those of a new model."""
    kind, settings = CASES[case]
    sizes = {} if kind == "gpt2" else SIZES
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **settings}), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name or "ln_" in name else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, 0.0, 0.3)
    return model.eval()
