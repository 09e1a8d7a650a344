"""Numbers of a forward pass that a configuration states, or that the code of a family contains."""

import math
from typing import Any, NamedTuple

from theodolite_jobs.models.anatomy import Dimensions, rotary_settings


def score_scale(config: Any, dimensions: Dimensions, layer: int) -> float:
    """Return the factor of a layer's attention scores before the softmax.

    The factor is 1/√d_head, with exceptions. Gemma-2 and 3 state the number under the root, and Granite states the
    factor. GPT-2 may divide by the layer's number (from 1), or have no scale. Gemma 4 and T5 have no scale. DeBERTa
    counts the terms of a score under the root. Gemma-2's soft cap is not included.
    """
    if getattr(config, "attention_multiplier", None) is not None:
        return float(config.attention_multiplier)
    if getattr(config, "kv_lora_rank", None):
        return float((config.qk_nope_head_dim + config.qk_rope_head_dim) ** -0.5 * _stretched_scale(config))
    if config.model_type.startswith("gemma4") or config.model_type in ("mt5", "t5", "umt5"):
        return 1.0
    if config.model_type.startswith("deberta"):
        kinds = config.pos_att_type or ()
        terms = len(kinds) if config.model_type == "deberta" else len({"c2p", "p2c"} & set(kinds))
        return float((dimensions.d_head * (1 + terms)) ** -0.5)
    scale = (getattr(config, "query_pre_attn_scalar", None) or dimensions.d_head) ** -0.5
    if not getattr(config, "scale_attn_weights", True):
        scale = 1.0
    return float(scale / (layer + 1) if getattr(config, "scale_attn_by_inverse_layer_idx", False) else scale)


class Multipliers(NamedTuple):
    """The factors of the inputs of attention, of keys, of the outputs of gates, and of the MLP (Falcon-H1)."""

    attention: float
    key: float
    gate: float
    down: float


def multipliers(config: Any) -> Multipliers:
    """Return the factors inside a block that a configuration states, 1 in most families."""
    attention, key = (getattr(config, name, 1.0) for name in ("attention_in_multiplier", "key_multiplier"))
    return Multipliers(attention, key, *getattr(config, "mlp_multipliers", (1.0, 1.0)))


def _stretched_scale(config: Any) -> float:
    """Return the factor that DeepSeek adds to scores if its rotary positions are scaled (YaRN)."""
    (rotary, *_) = [*rotary_settings(config), {}]
    share, factor = rotary.get("mscale_all_dim"), float(rotary.get("factor") or 1)
    if not share or factor <= 1 or rotary.get("rope_type", "default") == "default":
        return 1.0
    return float((0.1 * share * math.log(factor) + 1) ** 2)


EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
"""The names of the number of experts of a layer, without shared ones."""


def expert_count(config: Any) -> int:
    """Return the number of experts of a layer, without shared ones."""
    return int(next(getattr(config, name) for name in EXPERT_COUNTS if getattr(config, name, None) is not None))


def norm_epsilon(config: Any) -> float:
    """Return the number that a family's norms add under the root; OLMo, OPT and DistilBERT have it in their code."""
    names = ("rms_norm_eps", "layer_norm_eps", "layer_norm_epsilon", "norm_epsilon", "norm_eps")
    stated = (getattr(config, name, None) for name in names)
    in_code = 1e-12 if config.model_type == "distilbert" else 1e-5
    return float(next((epsilon for epsilon in stated if epsilon is not None), in_code))


def embedding_scale(config: Any) -> float:
    """Return the factor of token embeddings before the first block: √d_model in Gemma, and in BART if it is stated.

    Granite states the factor itself.
    """
    text = config.get_text_config()
    if text.model_type.startswith(("gemma", "vaultgemma")) or getattr(text, "scale_embedding", False):
        return float(text.hidden_size**0.5)
    return float(getattr(text, "embedding_multiplier", None) or 1.0)


def logit_scale(config: Any) -> float:
    """Return the factor of the logits: Cohere and Falcon-H1 multiply them, Granite divides them."""
    factor = getattr(config, "logit_scale", 1.0) * getattr(config, "lm_head_multiplier", 1.0)
    return float(factor) / float(getattr(config, "logits_scaling", 1.0))
