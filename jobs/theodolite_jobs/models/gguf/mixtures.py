"""The configurations of mixtures of experts. Each function raises like `configuration`."""

from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.rotary import rope_parameters
from theodolite_jobs.models.gguf.settings import (
    Values,
    block_count,
    family,
    layer_types,
    rms_epsilon,
    silu_and_rms,
    sizes,
)


def mixtral(metadata: Metadata) -> Values:
    """Return the entries of config.json for mixtral."""
    return {
        **family(metadata, "mixtral", "MixtralForCausalLM", sizes(metadata)),
        **silu_and_rms(metadata),
        "intermediate_size": metadata.need("feed_forward_length", int),
        "num_local_experts": metadata.need("expert_count", int),
        "num_experts_per_tok": metadata.need("expert_used_count", int),
        "sliding_window": None,
    }


def qwen2moe(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen2moe."""
    return {
        **family(metadata, "qwen2_moe", "Qwen2MoeForCausalLM", sizes(metadata), d_head=False),
        **silu_and_rms(metadata),
        **_experts(metadata),
        "norm_topk_prob": bool(metadata.get("expert_weights_norm", bool)),  # llama.cpp: never normalised
        "shared_expert_intermediate_size": metadata.size("ffn_up_shexp.weight", 0),
        "qkv_bias": metadata.has("attn_q.bias"),
        "use_sliding_window": False,
    }


def _experts(metadata: Metadata) -> Values:
    """Return the settings of experts in all blocks; their widths are those of the tensors."""
    width = metadata.size("ffn_up_exps.weight", 1)
    metadata.require("expert_feed_forward_length", width)
    shared = metadata.size("ffn_up_shexp.weight", 0) if metadata.has("ffn_up_shexp.weight") else 0
    metadata.require("expert_shared_feed_forward_length", shared)
    return {
        # No block uses this width.
        "intermediate_size": metadata.get("feed_forward_length", int) or width,
        "moe_intermediate_size": width,
        "num_experts": metadata.need("expert_count", int),
        "num_experts_per_tok": metadata.need("expert_used_count", int),
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    }


def qwen3moe(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen3moe."""
    normalised = metadata.get("expert_weights_norm", bool)
    return {
        **family(metadata, "qwen3_moe", "Qwen3MoeForCausalLM", sizes(metadata)),
        **silu_and_rms(metadata),
        **_experts(metadata),
        "norm_topk_prob": True if normalised is None else normalised,  # llama.cpp: always normalised
        "attention_bias": metadata.has("attn_q.bias"),
        "use_sliding_window": False,
    }


def gpt_oss(metadata: Metadata) -> Values:
    """Return the entries of config.json for gpt-oss."""
    entries = family(metadata, "gpt_oss", "GptOssForCausalLM", sizes(metadata))
    rope, width = entries["rope_parameters"], metadata.size("ffn_up_exps.weight", 1)
    metadata.require("expert_feed_forward_length", width)
    metadata.any("feed_forward_length")  # no block uses it
    return {
        **entries,
        "intermediate_size": width,
        "num_local_experts": metadata.need("expert_count", int),
        "num_experts_per_tok": metadata.need("expert_used_count", int),
        "rms_norm_eps": rms_epsilon(metadata),
        "sliding_window": metadata.need("attention.sliding_window", int),
        "layer_types": layer_types(metadata, entries["num_hidden_layers"], period=2),
        "attention_bias": metadata.has("attn_q.bias"),
        # The family does not round the bounds of YaRN's ramp.
        "rope_parameters": {**rope, "truncate": False} if rope["rope_type"] == "yarn" else rope,
    }


def deepseek2(metadata: Metadata) -> Values:
    """Return the entries of config.json for deepseek2."""
    # Newer files state the sizes of a head that reads latents; the head itself then has keys of its own.
    rotary, latent = metadata.need("rope.dimension_count", int), metadata.need("attention.kv_lora_rank", int)
    stated_key, stated_value = (metadata.need(f"attention.{one}_length", int) for one in ("key", "value"))
    key = metadata.get("attention.key_length_mla", int) or stated_key
    value = metadata.get("attention.value_length_mla", int) or stated_value
    heads, experts = metadata.need("attention.head_count", int), metadata.need("expert_count", int)
    metadata.require("attention.head_count_kv", 1, heads)
    metadata.require("nextn_predict_layers", 0)
    vocabulary = metadata.size("token_embd.weight", 0)
    metadata.require("vocab_size", vocabulary)
    layers, leading = block_count(metadata), metadata.need("leading_dense_block_count", int, zero=True)
    gating = metadata.get("expert_gating_func", int)
    sigmoid = gating == 2
    if gating not in (None, 1, 2):
        raise metadata.refused("expert_gating_func", gating, "1 (softmax) or 2 (sigmoid)")
    if not sigmoid:
        metadata.require("expert_weights_norm", False)  # transformers never normalises these weights
    width = metadata.size("ffn_up_exps.weight", 1)
    metadata.require("expert_feed_forward_length", width)
    shared = metadata.need("expert_shared_count", int, zero=True)
    groups = metadata.get("expert_group_count", int), metadata.get("expert_group_used_count", int)
    # DeepSeek-V2-Lite, with 64 experts, has no groups. Older files of the larger models leave theirs out.
    if groups[0] is None and (sigmoid or experts > 64):
        raise metadata.lacks("expert_group_count")
    if groups[1] is None and groups[0] is not None:
        raise metadata.lacks("expert_group_used_count")
    rope = rope_parameters(metadata, rotary)
    if rope["rope_type"] == "yarn" and (
        multiplier := metadata.need("rope.scaling.yarn_log_multiplier", float, zero=True)
    ):
        mscale = float(f"{multiplier / 0.1:.6g}")  # llama.cpp writes a tenth, and reads one number for both
        rope |= {"mscale": mscale, "mscale_all_dim": mscale}
    own = (
        {"n_group": groups[0], "topk_group": groups[1], "rope_interleave": True}
        if sigmoid
        else {
            "topk_method": "greedy" if (groups[0] or 1) == 1 else "group_limited_greedy",
            "n_group": groups[0],
            "topk_group": groups[1],
        }
    )
    return {
        **own,
        "model_type": "deepseek_v3" if sigmoid else "deepseek_v2",
        "architectures": ["DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"],
        "hidden_act": "silu",
        "vocab_size": vocabulary,
        "hidden_size": metadata.need("embedding_length", int),
        "intermediate_size": metadata.need("feed_forward_length", int),
        "moe_intermediate_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "max_position_embeddings": metadata.need("context_length", int),
        "rms_norm_eps": rms_epsilon(metadata),
        "q_lora_rank": metadata.get("attention.q_lora_rank", int),
        "kv_lora_rank": latent,
        "qk_rope_head_dim": rotary,
        "qk_nope_head_dim": key - rotary,
        "v_head_dim": value,
        "n_routed_experts": experts,
        "n_shared_experts": shared,
        "num_experts_per_tok": metadata.need("expert_used_count", int),
        "first_k_dense_replace": leading,
        "norm_topk_prob": metadata.need("expert_weights_norm", bool) if sigmoid else False,
        "routed_scaling_factor": metadata.need("expert_weights_scale", float),
        "attention_bias": False,
        "tie_word_embeddings": not metadata.has("output.weight"),
        "rope_parameters": rope,
    }
