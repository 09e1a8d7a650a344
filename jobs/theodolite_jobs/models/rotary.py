"""Rotary positions as a matrix between a query and a key that are `offset` tokens apart."""

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from theodolite_jobs.models.anatomy import Anatomy, dimensions_of, rotary_settings


def rotations(config: Any, anatomy: Anatomy, layer: int, offsets: Sequence[int]) -> NDArray[np.float64]:
    """Return R(δ) of each offset, (offset, d_head, d_head).

    q R(δ) kᵀ is the score of a query and a key before their rotation. δ is the query's position minus the key's, in
    tokens. A pair of dimensions (i, j) rotates by the angle φ = δ·frequency: R[i, i] = R[j, j] = cos φ, R[i, j] = sin φ
    and R[j, i] = -sin φ, times the square of the family's attention scaling (YaRN, longrope). Other dimensions do not
    rotate (Su et al. 2021, arXiv 2104.09864). Some families rotate each kind of layer differently, or not at all: then
    R is the identity.
    """
    d_head = dimensions_of(config, layer=layer).d_head
    if anatomy.has_latents:  # the circuits are those of the part without positions
        return np.tile(np.eye(d_head), (len(offsets), 1, 1))
    return rotations_of_entries(config, anatomy, layer, offsets, d_head)


def rotations_of_entries(
    config: Any, anatomy: Anatomy, layer: int, offsets: Sequence[int], width: int
) -> NDArray[np.float64]:
    """Return R(δ) of a whole head, or of the entries that rotate in latent attention, (offset, width, width)."""
    matrices = np.tile(np.eye(width), (len(offsets), 1, 1))
    if not anatomy.positions.startswith("rotary") or layer in anatomy.layers_without_rotary:
        return matrices
    frequencies, scaling = rotary_frequencies(config, layer)
    count = len(frequencies)
    if anatomy.positions == "rotary, interleaved":
        first, second = 2 * np.arange(count), 2 * np.arange(count) + 1
    else:
        first, second = np.arange(count), np.arange(count) + count
    angles = np.multiply.outer(np.asarray(offsets), frequencies)
    cosine, sine = np.cos(angles), np.sin(angles)
    matrices[:, first, first] = matrices[:, second, second] = scaling**2 * cosine
    matrices[:, first, second] = scaling**2 * sine
    matrices[:, second, first] = -(scaling**2) * sine
    return matrices


def rotary_frequencies(config: Any, layer: int) -> tuple[NDArray[np.float64], float]:
    """Return the angle per token of each pair of dimensions, and the factor of cosine and sine.

    Both come from the family's own rotary module. For a kind that depends on the prompt's length, they are the values
    for short prompts.
    """
    if config.model_type == "gptj":
        return _gptj_frequencies(config)
    module = _rotary_module(config)
    prefix = f"{_kind(config, layer)}_" if hasattr(module, f"{_kind(config, layer)}_inv_freq") else ""
    frequencies = getattr(module, f"{prefix}inv_freq").double().numpy()
    scaling = getattr(module, f"{prefix}attention_scaling", 1.0)
    if config.get_text_config().model_type == "phimoe":  # with scaled positions, it states the factor itself
        scaling = rotary_settings(config)[0].get("short_mscale") or scaling
    return frequencies, float(scaling)


def _rotary_module(config: Any) -> Any:
    """Return the family's own rotary module; each family's code has one such class for text."""
    from transformers import MODEL_MAPPING

    text = config.get_text_config()
    code = sys.modules[MODEL_MAPPING[type(text)].__module__]
    names = [name for name in vars(code) if name.endswith("RotaryEmbedding") and "Vision" not in name]
    (rotary_class,) = (getattr(code, name) for name in names)
    return rotary_class(text)


def _gptj_frequencies(config: Any) -> tuple[NDArray[np.float64], float]:
    """Return GPT-J's frequencies: the angles of position 1 in its table of sines, then cosines, by position."""
    from transformers.models.gptj.modeling_gptj import create_sinusoidal_positions

    table = create_sinusoidal_positions(2, config.rotary_dim or config.hidden_size).double()
    sine, cosine = table[1].chunk(2)
    return torch.atan2(sine, cosine).numpy(), 1.0


def _kind(config: Any, layer: int) -> str:
    kinds = getattr(config.get_text_config(), "layer_types", None)
    return kinds[layer] if kinds else "full_attention"
