"""Rules for the plan from a model's positions and windows: which prompts may share a batch or a prefix."""

from collections.abc import Callable
from typing import Any

from theodolite_jobs.models.anatomy import Anatomy, rotary_settings


def length_class_of(config: Any) -> Callable[[int], int]:
    """Return the function from a prompt's length to its class; prompts of two classes never share a batch.

    Two rotary kinds choose their frequencies by the longest prompt of a batch. `longrope` has one set up to a boundary
    and another beyond it. `dynamic` has one set up to a boundary, and beyond it a different set for every length.
    """
    for settings in rotary_settings(config):
        if settings.get("rope_type") == "longrope":
            boundary = int(settings["original_max_position_embeddings"])
            return lambda length: int(length > boundary)
        if settings.get("rope_type") == "dynamic":
            last = int(config.get_text_config().max_position_embeddings)
            return lambda length: length if length > last else 0
    return lambda _length: 0


def can_share_prefix(config: Any, anatomy: Anatomy | None) -> bool:
    """Return whether the first tokens that all prompts share may be computed once.

    They may not with a sliding window, which drops them; in an encoder, whose tokens attend to later tokens; or in an
    unknown family, whose attention pattern is not known.
    """
    if anatomy is None or anatomy.known_by == "probe" or not anatomy.causal:
        return False
    text = config.get_text_config()
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None:
        return set(layer_types) == {"full_attention"}
    return getattr(text, "sliding_window", None) is None
