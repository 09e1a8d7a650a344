"""Tiny random models, one for each family and each kind of block in it, and tokens for them: no downloads."""

import copy
from typing import Any

import torch
from transformers import (
    AutoModel,
    BertConfig,
    BloomConfig,
    Cohere2Config,
    CohereConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTJConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    MixtralConfig,
    MPNetConfig,
    Olmo2Config,
    OlmoConfig,
    OPTConfig,
    Phi3Config,
    PhiConfig,
    Qwen2Config,
    Qwen3Config,
    RobertaConfig,
    StableLmConfig,
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
_VISION = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 3.0, 5.0, 7.0, 9.0, 11.0],
    "factor": 4.0,
    "original_max_position_embeddings": 20,
}

CONFIGS: dict[str, Any] = {
    "bert": BertConfig(**PLAIN),
    "bloom": BloomConfig(vocab_size=64, hidden_size=48, n_layer=5, n_head=4),
    "cohere": CohereConfig(**GROUPED, use_qk_norm=True),
    "cohere2": Cohere2Config(**GROUPED, sliding_window=6, layer_types=SLIDING),
    "falcon-groups": FalconConfig(**_FALCON, new_decoder_architecture=True, num_kv_heads=2),
    "falcon-heads": FalconConfig(**_FALCON, parallel_attn=False, multi_query=False, alibi=True),
    "falcon-multi-query": FalconConfig(**_FALCON, parallel_attn=True, multi_query=True),
    "gemma": GemmaConfig(**_WIDE),
    "gemma2": Gemma2Config(**_WIDE, sliding_window=6, query_pre_attn_scalar=20, layer_types=SLIDING),
    "gemma3": Gemma3Config(
        text_config=Gemma3TextConfig(**_GEMMA3),
        vision_config={**_VISION, "image_size": 28, "patch_size": 14},
        mm_tokens_per_image=1,
    ),
    "gemma3_text": Gemma3TextConfig(**_GEMMA3),
    "gpt2": GPT2Config(**_GPT),
    "gpt2-scaled-by-layer": GPT2Config(**_GPT, scale_attn_by_inverse_layer_idx=True),
    "gpt_neox": GPTNeoXConfig(**PLAIN),
    "gpt_neox-sequential": GPTNeoXConfig(**PLAIN, use_parallel_residual=False),
    "gptj": GPTJConfig(**_GPT, rotary_dim=8),
    "granite": GraniteConfig(**GROUPED, residual_multiplier=0.4, attention_multiplier=0.2, embedding_multiplier=3.0),
    "llama": LlamaConfig(**_WIDE, attention_bias=True, mlp_bias=True),
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
    "mistral": MistralConfig(**GROUPED, head_dim=8, sliding_window=6),
    "mistral-nemo": MistralConfig(**GROUPED, head_dim=20, sliding_window=None),
    "mixtral": MixtralConfig(**GROUPED, num_local_experts=3, num_experts_per_tok=2),
    "mpnet": MPNetConfig(**_ENCODER),
    "olmo": OlmoConfig(**GROUPED),
    "olmo-clipped": OlmoConfig(**GROUPED, clip_qkv=0.8),
    "olmo2": Olmo2Config(**GROUPED),
    "opt": OPTConfig(**PLAIN, ffn_dim=80, word_embed_proj_dim=48),
    "opt-post-norm": OPTConfig(**PLAIN, ffn_dim=80, word_embed_proj_dim=32, do_layer_norm_before=False),
    "phi": PhiConfig(**_PARTIAL),
    "phi-qk-norm": PhiConfig(**GROUPED, qk_layernorm=True),
    "phi3": Phi3Config(**GROUPED),
    "phi3-longrope": Phi3Config(**GROUPED, rope_parameters=_LONGROPE, original_max_position_embeddings=20),
    "qwen2": Qwen2Config(**GROUPED),
    "qwen3": Qwen3Config(**_WIDE),
    "roberta": RobertaConfig(**_ENCODER),
    "stablelm": StableLmConfig(**_PARTIAL, use_qkv_bias=True, qk_layernorm=True),
    "stablelm-parallel": StableLmConfig(**_PARTIAL, use_parallel_residual=True),
    "xlm-roberta": XLMRobertaConfig(**_ENCODER),
}
"""By family, a hyphen, and what is special; `transformers` names the family in `config.model_type`."""


def tiny_model(family: str, seed: int = 0, auto_class: Any = AutoModel) -> Any:
    """Return the tiny model of a family (by default the base model)."""
    return random_model(copy.deepcopy(CONFIGS[family]), auto_class, seed)  # models write into their configuration


def random_model(config: Any, auto_class: Any, seed: int = 0) -> Any:
    """Return a model whose biases and norm scales are random too, so that mistakes show."""
    torch.manual_seed(seed)
    model = auto_class.from_config(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1 or "norm" in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
            else:
                parameter.mul_(4)  # as large as trained weights, so that every branch counts
    return model


def random_tokens(lengths: list[int], prefix: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of these lengths that begin with the same `prefix` tokens, and differ right after."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 64, (count,), generator=generator).tolist()

    shared = draw(prefix)
    return [tuple([*shared, 3 + index % 61, *draw(length - prefix - 1)]) for index, length in enumerate(lengths)]
