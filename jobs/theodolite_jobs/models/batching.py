"""Rules for the plan from a model's positions and windows: which prompts may share a batch or a prefix."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from theodolite_jobs.models.anatomy import Anatomy, rotary_settings


def length_class_of(config: Any) -> Callable[[int], int]:
    """Return the function from a prompt's length to its class; prompts of two classes never share a batch.

    Two rotary kinds choose their frequencies by the longest prompt of a batch. `longrope` has one set up to a boundary
    and another beyond it. `dynamic` has one set up to a boundary, and beyond it a different set for every length.
    """
    for settings in rotary_settings(config):
        if settings.get("rope_type") == "longrope":
            return _Boundary(int(settings["original_max_position_embeddings"]), each_length=False)
        if settings.get("rope_type") == "dynamic":
            return _Boundary(int(config.get_text_config().max_position_embeddings), each_length=True)
    return _one_class


@dataclass(frozen=True)
class _Boundary:
    """Class 0 for lengths up to `last`; longer lengths are class 1, or with `each_length` a class each."""

    last: int
    each_length: bool

    def __call__(self, length: int) -> int:
        if length <= self.last:
            return 0
        return length if self.each_length else 1


def _one_class(length: int) -> int:
    return 0


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
