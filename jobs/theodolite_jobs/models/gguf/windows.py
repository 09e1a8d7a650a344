"""Warn of prompts that are longer than a sliding window which the published model has, and no GGUF file states."""

from typing import Any

WINDOW = 4096
"""Tokens of the windows of StarCoder2 and of the first Mistral (7B v0.1), by their config.json."""


def window_warning(config: Any, longest: int) -> list[str]:
    """Return a warning if a prompt of `longest` tokens is longer than the window of the published model, else [].

    The files call the first Mistral `llama`. No other published Llama has 32,768 tokens without scaling at base 10,000.
    """
    rope = getattr(config, "rope_parameters", None) or {}
    plain = rope.get("rope_type", "default") == "default"
    kind = config.model_type, rope.get("rope_theta"), config.max_position_embeddings
    is_mistral = plain and kind == ("llama", 10_000, 32_768)
    if longest <= WINDOW or not (is_mistral or config.model_type == "starcoder2"):
        return []
    name = "the first Mistral" if is_mistral else "StarCoder2"
    return [
        f"a prompt has {longest} tokens: {name} attends to the last {WINDOW} tokens, but a GGUF file does not say so, "
        "and the survey attends to all, like llama.cpp; use the safetensors checkpoint for prompts of this length"
    ]
