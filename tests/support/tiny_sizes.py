"""Sizes of tiny models, from which `tiny_configs` makes configurations."""

from typing import Any

PLAIN: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
GROUPED = {**PLAIN, "num_key_value_heads": 2}
PARTIAL = {**GROUPED, "partial_rotary_factor": 0.5}  # half of the entries of a head are rotated
WIDE = {**GROUPED, "head_dim": 16}  # heads wider than d_model / n_heads
GPT: dict[str, Any] = {"vocab_size": 64, "n_embd": 48, "n_layer": 5, "n_head": 4, "n_positions": 128}
GPT |= {"bos_token_id": 1, "eos_token_id": 2}
FALCON = {**PLAIN, "bias": True, "ffn_hidden_size": 80}
ENCODER = {**PLAIN, "pad_token_id": 1, "bos_token_id": 0}
RELATIVE: dict[str, Any] = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "max_relative_positions": 24}
BUCKETS: dict[str, Any] = {"position_buckets": 6, "share_att_key": True, "norm_rel_ebd": "layer_norm"}
BART: dict[str, Any] = {"vocab_size": 64, "d_model": 48, "encoder_layers": 5, "decoder_layers": 3}
BART |= {"encoder_attention_heads": 4, "decoder_attention_heads": 2, "encoder_ffn_dim": 80, "decoder_ffn_dim": 64}
BART |= {"max_position_embeddings": 128, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
BART |= {"decoder_start_token_id": 2, "forced_eos_token_id": None}
T5: dict[str, Any] = {"vocab_size": 64, "d_model": 48, "d_kv": 12, "d_ff": 80, "num_layers": 5, "num_heads": 4}
T5 |= {"num_decoder_layers": 3, "relative_attention_num_buckets": 12, "relative_attention_max_distance": 20}
WIDE_HEADS = {"d_kv": 16}
FEW_BUCKETS = {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
SLIDING = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
GEMMA3 = {**WIDE, "sliding_window": 6, "query_pre_attn_scalar": 20, "layer_types": SLIDING}
GEMMA4: dict[str, Any] = {**WIDE, "global_head_dim": 24, "sliding_window": 6, "layer_types": SLIDING}
GLOBAL_KEYS: dict[str, Any] = {"num_global_key_value_heads": 1}  # the class has no field of this name
PER_LAYER: dict[str, Any] = {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 8}
VISION: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2}
ROUTED |= {"moe_intermediate_size": 24, "routed_scaling_factor": 1.5}
GROUPS: dict[str, Any] = {"n_group": 2, "topk_group": 1}
LATENT: dict[str, Any] = {"q_lora_rank": 20, "kv_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8}
LATENT |= {"v_head_dim": 12}
ROTARY: dict[str, Any] = {"rope_type": "default", "rope_theta": 5000.0}
HALF_ROTARY = {**ROTARY, "partial_rotary_factor": 0.5}
YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA4: dict[str, Any] = {"intermediate_size_mlp": 72, "num_local_experts": 4, "num_experts_per_tok": 2}
LLAMA4 |= {"moe_layers": [1, 3, 4], "no_rope_layers": [1, 1, 0, 1, 1], "attention_chunk_size": 16}
HYBRID = ["full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention"]
CONVOLVED = ["full_attention", "conv", "conv", "conv", "full_attention"]
LINEAR: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
LINEAR |= {"linear_value_head_dim": 10, "layer_types": HYBRID, "attention_bias": True}
QWEN3_EXPERTS = {**EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
NEMOTRON_H: dict[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 24, "ssm_state_size": 8, "chunk_size": 8}
NEMOTRON_H |= {"n_groups": 1, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40}
NEMOTRON_H |= {"n_routed_experts": 4, "mlp_bias": True}
GRANITE: dict[str, Any] = {"residual_multiplier": 0.4, "attention_multiplier": 0.2, "embedding_multiplier": 3.0}
GRANITE_EXPERTS = {**GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 40}
MROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 5000.0,
    "mrope_section": [2, 2, 2],
}  # time, height, width
IMAGE_TOKENS: dict[str, Any] = {
    "image_token_id": 60,
    "video_token_id": 61,
    "vision_start_token_id": 62,
    "vision_end_token_id": 63,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 3.0, 5.0, 7.0, 9.0, 11.0],
    "factor": 4.0,
    "original_max_position_embeddings": 20,
}
