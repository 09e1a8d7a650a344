"""Tiny random models, one for each family, and tokens for them: breadth without downloads."""

from typing import Any

import torch
from transformers import AutoModel, GPT2Config, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

_SIZES = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
}

CONFIGS: dict[str, Any] = {
    "gpt2": GPT2Config(vocab_size=64, n_embd=48, n_layer=5, n_head=4, n_positions=128, bos_token_id=1, eos_token_id=2),
    "llama": LlamaConfig(**_SIZES, head_dim=16, attention_bias=True, mlp_bias=True),  # heads wider than d_model / n
    "mistral": MistralConfig(**_SIZES, head_dim=8, sliding_window=6),
    "qwen2": Qwen2Config(**_SIZES),
    "qwen3": Qwen3Config(**_SIZES, head_dim=16),
}


def tiny_model(family: str, seed: int = 0) -> Any:
    """Return a base model whose biases and norm scales are random too, so that mistakes show."""
    torch.manual_seed(seed)
    model = AutoModel.from_config(CONFIGS[family]).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def random_tokens(lengths: list[int], prefix: int = 0, seed: int = 0) -> list[tuple[int, ...]]:
    """Return prompts of these lengths that begin with the same `prefix` tokens, and differ right after."""
    generator = torch.Generator().manual_seed(seed)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 64, (count,), generator=generator).tolist()

    shared = draw(prefix)
    return [tuple([*shared, 3 + index % 61, *draw(length - prefix - 1)]) for index, length in enumerate(lengths)]
