"""Configurations of tiny models, one for each family and each kind of block in it."""

from typing import Any

from transformers import (
    ApertusConfig,
    ArceeConfig,
    BambaConfig,
    BertConfig,
    BloomConfig,
    CamembertConfig,
    CLIPVisionConfig,
    Cohere2Config,
    CohereConfig,
    CwmConfig,
    DeepseekV2Config,
    DeepseekV3Config,
    DistilBertConfig,
    Dots1Config,
    ElectraConfig,
    Ernie4_5_MoeConfig,
    Ernie4_5Config,
    EuroBertConfig,
    Exaone4Config,
    FalconConfig,
    FalconH1Config,
    FlexOlmoConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    Glm4Config,
    Glm4MoeConfig,
    Glm4MoeLiteConfig,
    GlmConfig,
    GPT2Config,
    GPTBigCodeConfig,
    GPTJConfig,
    GPTNeoXConfig,
    GptOssConfig,
    GraniteConfig,
    GraniteMoeConfig,
    GraniteMoeHybridConfig,
    GraniteMoeSharedConfig,
    HeliumConfig,
    HunYuanDenseV1Config,
    HunYuanMoEV1Config,
    Jais2Config,
    JambaConfig,
    Lfm2Config,
    Lfm2MoeConfig,
    Llama4Config,
    Llama4TextConfig,
    LlamaConfig,
    LlavaConfig,
    MiniMaxM2Config,
    Ministral3Config,
    MinistralConfig,
    Mistral3Config,
    MistralConfig,
    MixtralConfig,
    ModernBertConfig,
    MPNetConfig,
    NemotronConfig,
    NemotronHConfig,
    NomicBertConfig,
    Olmo2Config,
    Olmo3Config,
    OlmoConfig,
    OlmoeConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    PhimoeConfig,
    PixtralVisionConfig,
    Qwen2_5_VLConfig,
    Qwen2Config,
    Qwen2MoeConfig,
    Qwen2VLConfig,
    Qwen3_5Config,
    Qwen3_5MoeTextConfig,
    Qwen3_5TextConfig,
    Qwen3Config,
    Qwen3MoeConfig,
    Qwen3NextConfig,
    Qwen3VLConfig,
    RobertaConfig,
    SeedOssConfig,
    SmolLM3Config,
    SmolVLMConfig,
    StableLmConfig,
    Starcoder2Config,
    VaultGemmaConfig,
    XLMRobertaConfig,
)

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
_PARTIAL = {**GROUPED, "partial_rotary_factor": 0.5}  # half of the entries of a head are rotated
_WIDE = {**GROUPED, "head_dim": 16}  # heads wider than d_model / n_heads
_GPT: dict[str, Any] = {"vocab_size": 64, "n_embd": 48, "n_layer": 5, "n_head": 4, "n_positions": 128}
_GPT |= {"bos_token_id": 1, "eos_token_id": 2}
_FALCON = {**PLAIN, "bias": True, "ffn_hidden_size": 80}
_ENCODER = {**PLAIN, "pad_token_id": 1, "bos_token_id": 0}
SLIDING = ["sliding_attention", "sliding_attention", "full_attention", "sliding_attention", "full_attention"]
_GEMMA3 = {**_WIDE, "sliding_window": 6, "query_pre_attn_scalar": 20, "layer_types": SLIDING}
_VISION: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
_EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2}
_ROUTED: dict[str, Any] = {"n_routed_experts": 4, "n_shared_experts": 2, "num_experts_per_tok": 2}
_ROUTED |= {"moe_intermediate_size": 24, "routed_scaling_factor": 1.5}
_GROUPS: dict[str, Any] = {"n_group": 2, "topk_group": 1}
_LATENT: dict[str, Any] = {"q_lora_rank": 20, "kv_lora_rank": 14, "qk_nope_head_dim": 10, "qk_rope_head_dim": 8}
_LATENT |= {"v_head_dim": 12}
_ROTARY: dict[str, Any] = {"rope_type": "default", "rope_theta": 5000.0}
_HALF_ROTARY = {**_ROTARY, "partial_rotary_factor": 0.5}
_YARN = {"rope_type": "yarn", "rope_theta": 5000.0, "factor": 4.0, "original_max_position_embeddings": 16}
_LLAMA4: dict[str, Any] = {"intermediate_size_mlp": 72, "num_local_experts": 4, "num_experts_per_tok": 2}
_LLAMA4 |= {"moe_layers": [1, 3, 4], "no_rope_layers": [1, 1, 0, 1, 1], "attention_chunk_size": 16}
_HYBRID = ["full_attention", "linear_attention", "linear_attention", "linear_attention", "full_attention"]
_CONVOLVED = ["full_attention", "conv", "conv", "conv", "full_attention"]
_LINEAR: dict[str, Any] = {"linear_num_value_heads": 4, "linear_num_key_heads": 2, "linear_key_head_dim": 8}
_LINEAR |= {"linear_value_head_dim": 10, "layer_types": _HYBRID, "attention_bias": True}
_QWEN3_EXPERTS = {**_EXPERTS, "moe_intermediate_size": 24, "shared_expert_intermediate_size": 40}
_MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
_NEMOTRON_H: dict[str, Any] = {"mamba_num_heads": 4, "mamba_head_dim": 24, "ssm_state_size": 8, "chunk_size": 8}
_NEMOTRON_H |= {"n_groups": 1, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 40}
_NEMOTRON_H |= {"n_routed_experts": 4, "mlp_bias": True}
_GRANITE: dict[str, Any] = {"residual_multiplier": 0.4, "attention_multiplier": 0.2, "embedding_multiplier": 3.0}
_GRANITE_EXPERTS = {**_GRANITE, "num_local_experts": 4, "num_experts_per_tok": 2, "shared_intermediate_size": 40}
_MROPE: dict[str, Any] = {
    "rope_type": "default",
    "rope_theta": 5000.0,
    "mrope_section": [2, 2, 2],
}  # time, height, width
_IMAGE_TOKENS: dict[str, Any] = {
    "image_token_id": 60,
    "video_token_id": 61,
    "vision_start_token_id": 62,
    "vision_end_token_id": 63,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 3.0, 5.0, 7.0, 9.0, 11.0],
    "factor": 4.0,
    "original_max_position_embeddings": 20,
}

CONFIGS: dict[str, Any] = {
    "apertus": ApertusConfig(**_WIDE, attention_bias=True),
    "arcee": ArceeConfig(**_WIDE, attention_bias=True, mlp_bias=True),
    "bamba": BambaConfig(**_WIDE, **_MAMBA, attn_layer_indices=[0, 4], attention_bias=True, mlp_bias=True),
    "bert": BertConfig(**PLAIN),
    "bloom": BloomConfig(vocab_size=64, hidden_size=48, n_layer=5, n_head=4),
    "camembert": CamembertConfig(**_ENCODER),
    "cohere": CohereConfig(**GROUPED, use_qk_norm=True),
    "cohere2": Cohere2Config(**GROUPED, sliding_window=6, layer_types=SLIDING),
    "cwm": CwmConfig(**_WIDE, sliding_window=6, layer_types=SLIDING),
    "deepseek_v2": DeepseekV2Config(**PLAIN, **_LATENT, **_ROUTED, first_k_dense_replace=2),
    "deepseek_v3": DeepseekV3Config(
        **PLAIN, num_key_value_heads=4, **_LATENT, **_ROUTED, **_GROUPS, first_k_dense_replace=2
    ),
    "distilbert": DistilBertConfig(
        vocab_size=64, dim=48, hidden_dim=80, n_layers=5, n_heads=4, max_position_embeddings=128, pad_token_id=0
    ),
    "dots1": Dots1Config(**_WIDE, **_ROUTED, **_GROUPS, first_k_dense_replace=1),
    "electra": ElectraConfig(**PLAIN, embedding_size=48),
    "electra-projected": ElectraConfig(**PLAIN, embedding_size=32),
    "ernie4_5": Ernie4_5Config(**_WIDE, use_bias=True),
    "ernie4_5_moe": Ernie4_5_MoeConfig(
        **GROUPED,
        use_bias=True,
        moe_num_experts=4,
        moe_k=2,
        moe_intermediate_size=24,
        moe_num_shared_experts=2,
        moe_layer_start_index=1,
        moe_layer_interval=2,
    ),
    "eurobert": EuroBertConfig(**_WIDE, attention_bias=True, mlp_bias=True, rope_parameters=_ROTARY),
    "exaone4": Exaone4Config(**_WIDE, sliding_window=6, layer_types=SLIDING),
    "exaone4-without-window": Exaone4Config(**_WIDE, sliding_window=None, layer_types=["full_attention"] * 5),
    "falcon-groups": FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-heads": FalconConfig(**_FALCON, parallel_attn=False, multi_query=False, alibi=True),
    "falcon-multi-query": FalconConfig(**_FALCON, parallel_attn=True, multi_query=True),
    "falcon_h1": FalconH1Config(
        **_WIDE,
        **_MAMBA,
        mamba_d_ssm=64,
        attention_bias=True,
        mlp_bias=True,
        attention_in_multiplier=0.7,
        attention_out_multiplier=0.6,
        key_multiplier=1.3,
        ssm_out_multiplier=0.3,
        embedding_multiplier=2.0,
        lm_head_multiplier=0.5,
        mlp_multipliers=[1.2, 0.8],
    ),
    "flex_olmo": FlexOlmoConfig(**GROUPED, **_EXPERTS),
    "gemma": GemmaConfig(**_WIDE),
    "gemma2": Gemma2Config(**_WIDE, sliding_window=6, query_pre_attn_scalar=20, layer_types=SLIDING),
    "gemma3": Gemma3Config(
        text_config=Gemma3TextConfig(**_GEMMA3),
        vision_config={**_VISION, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=1,
    ),
    "gemma3_text": Gemma3TextConfig(**_GEMMA3),
    "glm": GlmConfig(**_WIDE, attention_bias=True, rope_parameters=_HALF_ROTARY),
    "glm4": Glm4Config(**_WIDE, attention_bias=True, rope_parameters=_HALF_ROTARY),
    "glm4_moe": Glm4MoeConfig(
        **_WIDE,
        **_ROUTED,
        **_GROUPS,
        first_k_dense_replace=1,
        attention_bias=True,
        use_qk_norm=True,
        rope_parameters=_HALF_ROTARY,
    ),
    "glm4_moe_lite": Glm4MoeLiteConfig(
        **PLAIN, num_key_value_heads=4, **_LATENT, **_ROUTED, **_GROUPS, mlp_layer_types=["dense", *["sparse"] * 4]
    ),
    "gpt2": GPT2Config(**_GPT),
    "gpt2-scaled-by-layer": GPT2Config(**_GPT, scale_attn_by_inverse_layer_idx=True),
    "gpt_bigcode": GPTBigCodeConfig(**_GPT, n_inner=80),
    "gpt_bigcode-heads": GPTBigCodeConfig(**_GPT, n_inner=80, multi_query=False),
    "gpt_neox": GPTNeoXConfig(**PLAIN),
    "gpt_neox-sequential": GPTNeoXConfig(**PLAIN, use_parallel_residual=False),
    "gpt_oss": GptOssConfig(
        **_WIDE,
        num_local_experts=4,
        num_experts_per_tok=2,
        sliding_window=6,
        layer_types=SLIDING,
        rope_parameters=_YARN,
        attention_bias=True,
    ),
    "gptj": GPTJConfig(**_GPT, rotary_dim=8),
    "granite": GraniteConfig(**GROUPED, **_GRANITE),
    "granitemoe": GraniteMoeConfig(**GROUPED, **_GRANITE, num_local_experts=4, num_experts_per_tok=2),
    "granitemoehybrid": GraniteMoeHybridConfig(
        **GROUPED, **_GRANITE_EXPERTS, **_MAMBA, layer_types=_HYBRID, attention_bias=True
    ),
    "granitemoehybrid-attention": GraniteMoeHybridConfig(
        **GROUPED, **_GRANITE_EXPERTS, **_MAMBA, layer_types=["full_attention"] * 5, position_embedding_type="rope"
    ),
    "granitemoehybrid-dense": GraniteMoeHybridConfig(
        **GROUPED,
        **{**_GRANITE_EXPERTS, "num_local_experts": 0},
        **_MAMBA,
        layer_types=_HYBRID,
        position_embedding_type="rope",
    ),
    "granitemoeshared": GraniteMoeSharedConfig(**GROUPED, **_GRANITE_EXPERTS, attention_bias=True),
    "granitemoeshared-none": GraniteMoeSharedConfig(**GROUPED, **{**_GRANITE_EXPERTS, "shared_intermediate_size": 0}),
    "helium": HeliumConfig(**GROUPED, head_dim=12, attention_bias=True),
    "hunyuan_v1_dense": HunYuanDenseV1Config(**_WIDE, attention_bias=True),
    "hunyuan_v1_moe": HunYuanMoEV1Config(**_WIDE, num_experts=4, moe_topk=2),
    "jais2": Jais2Config(**_WIDE),
    "jamba": JambaConfig(
        **GROUPED, **_EXPERTS, attn_layer_period=4, attn_layer_offset=0, mamba_d_state=8, use_mamba_kernels=False
    ),
    "lfm2": Lfm2Config(**GROUPED, layer_types=_CONVOLVED, conv_bias=True),
    "lfm2_moe": Lfm2MoeConfig(
        **GROUPED, **_EXPERTS, moe_intermediate_size=24, num_dense_layers=2, layer_types=_CONVOLVED
    ),
    "llama": LlamaConfig(**_WIDE, attention_bias=True, mlp_bias=True),
    "llava": LlavaConfig(
        text_config=LlamaConfig(**_WIDE),
        vision_config=CLIPVisionConfig(**_VISION, image_size=28, patch_size=14, projection_dim=16),
        image_token_index=60,
    ),
    "llama-3": LlamaConfig(
        **GROUPED,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 500000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "llama4": Llama4Config(
        text_config=Llama4TextConfig(**_WIDE, **_LLAMA4),
        vision_config={
            **_VISION,
            "image_size": 28,
            "patch_size": 14,
            **dict.fromkeys(("vision_output_dim", "projector_input_dim", "projector_output_dim"), 16),
        },
        image_token_index=60,
    ),
    "llama4_text": Llama4TextConfig(**_WIDE, **_LLAMA4, use_qk_norm=False, attention_bias=True),
    "llama-dynamic": LlamaConfig(
        **{**GROUPED, "max_position_embeddings": 20},
        rope_parameters={"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    ),
    "llama-yarn": LlamaConfig(
        **GROUPED,
        rope_parameters={
            "rope_type": "yarn",
            "rope_theta": 10000.0,
            "factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ),
    "minimax_m2": MiniMaxM2Config(**_WIDE, num_local_experts=4, num_experts_per_tok=2, rope_parameters=_HALF_ROTARY),
    "ministral": MinistralConfig(**_WIDE, sliding_window=6, layer_types=SLIDING),
    "ministral3": Ministral3Config(**_WIDE, rope_parameters=_YARN | {"llama_4_scaling_beta": 0.3}),
    "mistral": MistralConfig(**GROUPED, head_dim=8, sliding_window=6),
    "mistral-nemo": MistralConfig(**GROUPED, head_dim=20, sliding_window=None),
    "mistral3": Mistral3Config(
        text_config=MistralConfig(**GROUPED, head_dim=20, sliding_window=None),
        vision_config=PixtralVisionConfig(**_VISION, image_size=28, patch_size=14),
    ),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=3, num_experts_per_tok=2),
    "modernbert": ModernBertConfig(
        **PLAIN, norm_bias=True, attention_bias=True, mlp_bias=True, layer_types=SLIDING, local_attention=16
    ),
    "mpnet": MPNetConfig(**_ENCODER),
    "nemotron": NemotronConfig(**_WIDE, attention_bias=True, mlp_bias=True, rope_parameters=_HALF_ROTARY),
    "nemotron_h": NemotronHConfig(
        **_WIDE, **_NEMOTRON_H, layers_block_type=["full_attention", "linear_attention", "moe", "moe", "full_attention"]
    ),
    "nemotron_h-dense": NemotronHConfig(
        **_WIDE, **_NEMOTRON_H, layers_block_type=["full_attention", "mlp", "linear_attention", "mlp", "full_attention"]
    ),
    "nomic_bert": NomicBertConfig(**PLAIN, rope_parameters=_ROTARY),
    "olmo": OlmoConfig(**GROUPED),
    "olmo-clipped": OlmoConfig(**GROUPED, clip_qkv=0.8),
    "olmo2": Olmo2Config(**GROUPED),
    "olmo3": Olmo3Config(**GROUPED, sliding_window=6, layer_types=SLIDING, attention_bias=True),
    "olmoe": OlmoeConfig(**GROUPED, **_EXPERTS, attention_bias=True),
    "olmoe-clipped": OlmoeConfig(**GROUPED, **_EXPERTS, clip_qkv=0.8),
    "opt": OPTConfig(**PLAIN, ffn_dim=80, word_embed_proj_dim=48),
    "opt-post-norm": OPTConfig(**PLAIN, ffn_dim=80, word_embed_proj_dim=32, do_layer_norm_before=False),
    "phi": PhiConfig(**_PARTIAL),
    "phi-qk-norm": PhiConfig(**GROUPED, qk_layernorm=True),
    "phi3": Phi3Config(**GROUPED),
    "phi3-longrope": Phi3Config(**GROUPED, rope_parameters=_LONGROPE, original_max_position_embeddings=20),
    "phi3-partial": Phi3Config(**_PARTIAL, tie_word_embeddings=True),
    "phimoe-longrope": PhimoeConfig(
        **GROUPED,
        num_local_experts=4,
        num_experts_per_tok=2,
        rope_parameters={**_LONGROPE, "short_mscale": 1.2, "long_mscale": 1.4},
    ),
    "phimoe": PhimoeConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2, attention_bias=True),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen2_5_vl": Qwen2_5_VLConfig(
        text_config={**GROUPED, "rope_parameters": _MROPE},
        vision_config={"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 48},
        **_IMAGE_TOKENS,
    ),
    "qwen2_moe": Qwen2MoeConfig(
        **GROUPED,
        **_EXPERTS,
        moe_intermediate_size=24,
        shared_expert_intermediate_size=40,
        mlp_only_layers=[1],
    ),
    "qwen2_vl": Qwen2VLConfig(
        text_config={**GROUPED, "rope_parameters": _MROPE},
        vision_config={"depth": 1, "embed_dim": 16, "hidden_size": 48, "num_heads": 1},
        **_IMAGE_TOKENS,
    ),
    "qwen3": Qwen3Config(**_WIDE),
    "qwen3_5": Qwen3_5Config(
        text_config={**_WIDE, **_LINEAR, "rope_parameters": {**_MROPE, "partial_rotary_factor": 0.75}},
        vision_config={
            **{"depth": 1, "hidden_size": 16, "intermediate_size": 16, "num_heads": 1, "out_hidden_size": 48},
            "num_position_embeddings": 16,
        },
        **_IMAGE_TOKENS,
    ),
    "qwen3_5_text": Qwen3_5TextConfig(**_WIDE, **_LINEAR),
    "qwen3_5_text-attention": Qwen3_5TextConfig(**_WIDE, layer_types=["full_attention"] * 5),
    "qwen3_5_moe_text": Qwen3_5MoeTextConfig(**_WIDE, **_LINEAR, **_QWEN3_EXPERTS),
    "qwen3_moe": Qwen3MoeConfig(
        **_WIDE, **_EXPERTS, moe_intermediate_size=24, decoder_sparse_step=2, attention_bias=True
    ),
    "qwen3_next": Qwen3NextConfig(
        **_WIDE, **_LINEAR, **_QWEN3_EXPERTS, mlp_only_layers=[1], rope_parameters=_HALF_ROTARY
    ),
    "qwen3_vl": Qwen3VLConfig(
        text_config={**_WIDE, "attention_bias": True, "rope_parameters": {**_MROPE, "mrope_section": [4, 2, 2]}},
        vision_config={
            "depth": 1,
            "hidden_size": 16,
            "intermediate_size": 16,
            "num_heads": 1,
            "out_hidden_size": 48,
            "num_position_embeddings": 16,
            "deepstack_visual_indexes": [0],
        },
        **_IMAGE_TOKENS,
    ),
    "roberta": RobertaConfig(**_ENCODER),
    "seed_oss": SeedOssConfig(**_WIDE, attention_bias=True, attention_out_bias=True, mlp_bias=True),
    "smollm3": SmolLM3Config(**_WIDE, attention_bias=True, no_rope_layers=[1, 0, 1, 1, 0]),
    "smolvlm": SmolVLMConfig(
        text_config=LlamaConfig(**GROUPED),
        vision_config={**_VISION, "image_size": 28, "patch_size": 14},
        image_token_id=60,
    ),
    "stablelm": StableLmConfig(**_PARTIAL, use_qkv_bias=True, qk_layernorm=True),
    "stablelm-parallel": StableLmConfig(**_PARTIAL, use_parallel_residual=True),
    "starcoder2": Starcoder2Config(**_WIDE, sliding_window=6),
    "vaultgemma": VaultGemmaConfig(**_WIDE, sliding_window=6, query_pre_attn_scalar=20, layer_types=SLIDING),
    "xlm-roberta": XLMRobertaConfig(**_ENCODER),
}
"""By family, a hyphen, and what is special; `transformers` names the family in `config.model_type`."""
