"""Translate the keys and tensors of rotary positions into `rope_parameters` of transformers."""

import math
from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.tensors import read_vector

_DEFAULT_BASE = 10000.0
"""The base of a file without `rope.freq_base`, as in llama.cpp."""


def rope_parameters(metadata: Metadata, d_head: int, *, partial: bool = False) -> dict[str, Any]:
    """Return the settings of rotary positions of heads with `d_head` entries.

    Args:
        metadata: of the file.
        d_head: the width of a head, or of its part that rotates.
        partial: whether the family can rotate only the first entries of a head.

    Raises:
        UnsupportedModelError: transformers cannot compute these positions for the family.
    """
    width = metadata.get("rope.dimension_count", int) or d_head
    if not 0 < width <= d_head or width % 2 or (width != d_head and not partial):
        raise metadata.refused("rope.dimension_count", width, str(d_head))
    settings = {"rope_theta": metadata.get("rope.freq_base", float) or _DEFAULT_BASE}
    if partial:
        settings["partial_rotary_factor"] = _fraction(width, d_head)
    metadata.any("rope.scaling.finetuned")  # says how the model was trained
    factors = read_vector(metadata.header.tensors, "rope_freqs.weight")
    if factors is None:
        return settings | _scaling(metadata)
    kind = metadata.get("rope.scaling.type", str) or "none"
    if kind != "none" or len(factors) != width // 2:
        raise UnsupportedModelError(
            f"{metadata.file} has the tensor rope_freqs.weight with {len(factors)} factors and the rotary scaling "
            f"{kind}; allowed: {width // 2} factors and no other scaling; use the model's safetensors files"
        )
    return settings | longrope(metadata.need("context_length", int), factors, factors, 1.0)


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
    names = ("rope.scaling.factor", "rope.scale_linear")
    factor = next((one for name in names if (one := metadata.get(name, float, zero=True))), 1.0)
    kind = metadata.get("rope.scaling.type", str) or ("none" if factor == 1 else "linear")
    context = metadata.get("rope.scaling.original_context_length", int)
    if kind == "none" or (kind == "linear" and factor == 1):
        return {"rope_type": "default"}
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind != "yarn":
        raise metadata.refused("rope.scaling.type", kind, "none, linear or yarn")
    if context is None:
        raise metadata.lacks("rope.scaling.original_context_length")
    if not metadata.any("rope.scaling.factor"):
        raise metadata.lacks("rope.scaling.factor")
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
