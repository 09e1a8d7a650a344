"""Settings that several architectures share, from the keys and tensors of a GGUF file."""

from typing import Any

from theodolite.errors import ModelError
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.rotary import rope_parameters

Values = dict[str, Any]
"""Entries of config.json."""


def sizes(metadata: Metadata, key_value_heads: int | None = None) -> Values:
    """Return the sizes that nearly all architectures state."""
    heads, d_model = metadata.need("attention.head_count", int), metadata.need("embedding_length", int)
    vocabulary = metadata.size("token_embd.weight", 0)
    metadata.require("vocab_size", vocabulary)
    d_head = metadata.get("attention.key_length", int) or d_model // heads
    metadata.require("attention.value_length", d_head)
    if key_value_heads is None:
        key_value_heads = metadata.get("attention.head_count_kv", int) or heads
    return {
        "vocab_size": vocabulary,
        "hidden_size": d_model,
        "num_hidden_layers": block_count(metadata),
        "num_attention_heads": heads,
        "num_key_value_heads": key_value_heads,
        "head_dim": d_head,
        "max_position_embeddings": metadata.need("context_length", int),
        "tie_word_embeddings": not metadata.has("output.weight"),
    }


def block_count(metadata: Metadata) -> int:
    """Return the number of blocks; raise ModelError if it is larger than that of tensors, as in a damaged file."""
    count, tensors = metadata.need("block_count", int), len(metadata.header.tensors)
    if count > tensors:
        raise ModelError(f"{metadata.file} states {count} blocks and has {tensors} tensors; download it again")
    return count


def dense(metadata: Metadata) -> Values:
    """Return the sizes of a model without experts."""
    for key in ("expert_count", "expert_used_count"):
        metadata.require(key, 0)
    return {**sizes(metadata), "intermediate_size": metadata.need("feed_forward_length", int)}


def family(
    metadata: Metadata, model_type: str, model_class: str, values: Values, *, d_head: bool = True, partial: bool = False
) -> Values:
    """Return sizes with the names of the family and its rotary positions.

    Args:
        metadata: of the file.
        model_type: of transformers.
        model_class: of transformers, with the language-model head.
        values: the sizes.
        d_head: whether the configuration states the width of a head; else it is d_model / n_heads.
        partial: whether the family can rotate only the first entries of a head.

    Raises:
        UnsupportedModelError: heads have another width than the family can have, or the positions cannot be computed.
    """
    width, named = values["head_dim"], {"model_type": model_type, "architectures": [model_class]}
    if not d_head:
        values = {name: value for name, value in values.items() if name != "head_dim"}
        if width * values["num_attention_heads"] != values["hidden_size"]:
            raise metadata.refused("attention.key_length", width, "embedding_length / attention.head_count")
    return {**values, **named, "rope_parameters": rope_parameters(metadata, width, partial=partial)}


def silu_and_rms(metadata: Metadata) -> Values:
    """Return the activation and the epsilon of a family that has those of Llama."""
    return {"hidden_act": "silu", "rms_norm_eps": rms_epsilon(metadata)}


def rms_epsilon(metadata: Metadata) -> float:
    """Return the epsilon of a norm without a mean."""
    return metadata.need("attention.layer_norm_rms_epsilon", float)


def epsilon(metadata: Metadata) -> float:
    """Return the epsilon of a norm with a mean."""
    return metadata.need("attention.layer_norm_epsilon", float)


def query_scalar(metadata: Metadata, values: Values, blocks_of_27b: int) -> int:
    """Return the number whose inverse root scales the scores of Gemma 2 and 3: d_head, except in the 27B models.

    Few files state the scale. As llama.cpp does, the models of 27B parameters are known by their number of blocks.
    """
    scale = metadata.get("attention.scale", float)
    if scale is not None:
        scalar = round(scale**-2) if scale > 0 else 0
        if not scalar or abs(scale * scalar**0.5 - 1) > 1e-6:
            raise metadata.refused("attention.scale", scale, "the inverse root of a whole number")
        return scalar
    if values["num_hidden_layers"] == blocks_of_27b:
        return int(values["hidden_size"] // values["num_attention_heads"])
    return int(values["head_dim"])


def layer_types(metadata: Metadata, n_layers: int, period: int) -> list[str]:
    """Return the kind of each layer's attention: in each period, the last layer has full attention."""
    stated = metadata.any("attention.sliding_window_pattern")
    if isinstance(stated, list) and len(stated) == n_layers and all(one in (0, 1) for one in stated):
        slides = [bool(one) for one in stated]
    elif stated is None or (type(stated) is int and stated > 0):
        period = period if stated is None else stated
        slides = [(layer + 1) % period != 0 for layer in range(n_layers)]
    else:
        allowed = f"{n_layers} times true or false, or a period"
        raise metadata.refused("attention.sliding_window_pattern", stated, allowed)
    return ["sliding_attention" if one else "full_attention" for one in slides]
