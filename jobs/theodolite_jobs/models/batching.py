"""Rules for the plan from a model's positions and windows: which prompts may share a batch or a prefix."""

from collections.abc import Callable
from typing import Any

from theodolite_jobs.models.anatomy import Anatomy, rotary_settings


def length_class_of(config: Any) -> Callable[[int], int]:
    """Return the function from a prompt's length to its class; prompts of two classes never share a batch.

    Two rotary kinds choose their frequencies by the longest prompt of a batch. `longrope` has one set up to a boundary
    and another beyond it. `dynamic` has one set up to a boundary, and beyond it a different set for every length. A
    model whose layers have two kinds of positions has the boundaries of both.

    A sparse attention with an indexer selects the tokens with the highest scores. Many scores are zero, and which of
    equal scores it selects depends on the number of tokens. So a prompt that has more tokens than it selects is only in
    a batch with prompts of its length.
    """
    text = config.get_text_config()
    boundaries = [int(one["original_max_position_embeddings"]) for one in _rotary(config, "longrope")]
    last = [int(text.max_position_embeddings) for _ in _rotary(config, "dynamic")]
    last += [] if (selected := _selected_tokens(text)) is None else [selected]

    def class_of(length: int) -> int:
        if any(length > one for one in last):
            return length
        return sum(length > boundary for boundary in boundaries)

    return class_of


def _rotary(config: Any, kind: str) -> list[dict[str, Any]]:
    return [settings for settings in rotary_settings(config) if settings.get("rope_type") == kind]


def _selected_tokens(text: Any) -> int | None:
    """Return how many tokens the indexer of a sparse attention selects; None if the model has none.

    MiniMax-M3 selects blocks of tokens by scores that padding does not change.
    """
    tokens = getattr(text, "index_topk", None)
    return None if tokens is None else int(tokens)


def can_share_prefix(config: Any, anatomy: Anatomy | None) -> bool:
    """Return whether the first tokens that all prompts share may be computed once.

    They may not with a sliding window, which drops them; in an encoder, whose tokens attend to later tokens; with
    layers that use the keys of another layer, which the cache lacks; or in an unknown family, whose attention pattern
    is not known.
    """
    if anatomy is None or anatomy.known_by == "probe" or not anatomy.causal or anatomy.keys_of:
        return False
    text = config.get_text_config()
    layer_types = getattr(text, "layer_types", None)
    if layer_types is not None:
        return set(layer_types) == {"full_attention"}
    return getattr(text, "sliding_window", None) is None
