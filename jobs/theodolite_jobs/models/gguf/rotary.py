"""Translate the keys and tensors of rotary positions into `rope_parameters` of transformers."""

import math
from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.tensors import read_vector

_DEFAULT_BASE = 10000.0
"""The base of a file of `_WITHOUT_BASE` without `rope.freq_base`, as in llama.cpp."""

_WITHOUT_BASE = frozenset({"falcon", "gemma", "gemma2", "llama", "phi2", "stablelm"})
"""Architectures of which llama.cpp writes files without a base. The files of all others state theirs."""

_LLAMA_31 = {"rope.freq_base": 500000.0, "context_length": 131072}
"""What files of Llama 3.1 to 3.3 state; those of July 2024 and before have no tensor rope_freqs.weight."""


def rope_parameters(metadata: Metadata, d_head: int, *, partial: bool = False) -> dict[str, Any]:
    """Return the settings of rotary positions of heads with `d_head` entries.

    Args:
        metadata: of the file.
        d_head: the width of a head, or of its part that rotates.
        partial: whether the family can rotate only the first entries of a head.

    Raises:
        UnsupportedModelError: transformers cannot compute these positions for the family.
    """
    stated = metadata.need("rope.dimension_count", int) if partial else metadata.get("rope.dimension_count", int)
    width = stated or d_head
    if not 0 < width <= d_head or width % 2 or (width != d_head and not partial):
        raise metadata.refused("rope.dimension_count", width, str(d_head))
    optional = metadata.architecture in _WITHOUT_BASE
    base = metadata.get("rope.freq_base", float) if optional else metadata.need("rope.freq_base", float)
    settings = {"rope_theta": base or _DEFAULT_BASE}
    if partial:
        settings["partial_rotary_factor"] = _fraction(width, d_head)
    metadata.any("rope.scaling.finetuned")  # says how the model was trained
    factors = read_vector(metadata.header.tensors, "rope_freqs.weight")
    if factors is None:
        scaling = _scaling(metadata)
        if scaling["rope_type"] == "default" and _is_llama_31(metadata):
            raise UnsupportedModelError(
                f"{metadata.file} is a Llama 3.1 to 3.3 by its base and context, and lacks the tensor "
                "rope_freqs.weight, as files from before August 2024 do; use a newer file"
            )
        return settings | scaling
    kind = metadata.get("rope.scaling.type", str) or "none"
    if kind != "none" or len(factors) != width // 2:
        raise UnsupportedModelError(
            f"{metadata.file} has the tensor rope_freqs.weight with {len(factors)} factors and the rotary scaling "
            f"{kind}; allowed: {width // 2} factors and no other scaling; use the model's safetensors files"
        )
    return settings | longrope(metadata.need("context_length", int), factors, factors, 1.0)


def _is_llama_31(metadata: Metadata) -> bool:
    return metadata.architecture == "llama" and all(metadata.any(key) == value for key, value in _LLAMA_31.items())


def longrope(context: int, short: list[float], long: list[float], attention_factor: float) -> dict[str, Any]:
    """Return the settings in which each frequency is divided by a factor: `long` beyond `context`, else `short`."""
    return {
        "rope_type": "longrope",
        "factor": 1.0,  # is not read if the attention factor is given
        "short_factor": short,
        "long_factor": long,
        "original_max_position_embeddings": context,
        "attention_factor": attention_factor,
    }


def _scaling(metadata: Metadata) -> dict[str, Any]:
    factor, kind = metadata.get("rope.scaling.factor", float, zero=True), metadata.get("rope.scaling.type", str)
    if factor and factor != 1 and kind is None:
        raise metadata.lacks("rope.scaling.type")
    if factor is None and kind in ("linear", "yarn"):
        raise metadata.lacks("rope.scaling.factor")
    older = metadata.get("rope.scale_linear", float, zero=True)  # how files of 2023 state a linear scaling
    if kind is None and older:
        factor, kind = older, "linear"
    context = metadata.get("rope.scaling.original_context_length", int)
    if kind in (None, "none") or (kind == "linear" and factor in (0, 1)):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise metadata.refused("rope.scaling.type", kind, "none, linear or yarn")
    if context is None:
        raise metadata.lacks("rope.scaling.original_context_length")
    metadata.require("rope.scaling.yarn_ext_factor", 1.0, -1.0)
    optional = {
        "attention_factor": metadata.get("rope.scaling.yarn_attn_factor", float),
        "beta_fast": metadata.get("rope.scaling.yarn_beta_fast", float),
        "beta_slow": metadata.get("rope.scaling.yarn_beta_slow", float),
    }
    yarn = {"rope_type": "yarn", "factor": factor, "original_max_position_embeddings": context}
    return yarn | {name: value for name, value in optional.items() if value is not None}


def _fraction(width: int, d_head: int) -> float:
    """Return the fraction of a head that rotates, from which `int(d_head * fraction)` gives the width again."""
    fraction = width / d_head
    return fraction if int(d_head * fraction) == width else math.nextafter(fraction, 1)
