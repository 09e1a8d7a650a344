"""Check whether a model's weights can be read from its files, and what they allow."""

from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.anatomy import Anatomy, Files, check_circuits, check_words, text_config_of
from theodolite_jobs.models.families import known_anatomy

# The values of `config.layer_types` with attention over tokens; others are linear attention, state spaces and mixtures.
_ATTENTION_KINDS = ("attention", "full_attention", "sliding_attention", "chunked_attention")


def check_readable(config: Any, circuits: bool = False, words: bool = False) -> tuple[Anatomy, Files]:
    """Return the record of a model whose weights can be read from its files, and its tensors' names.

    Raises:
        UnsupportedModelError: the family's tensor names are not known; with `circuits`, also a family whose heads have
            no circuits; with `words`, also one whose words cannot be computed.
    """
    anatomy = known_anatomy(config)
    if anatomy is None or anatomy.files is None:
        family = text_config_of(config).model_type
        raise UnsupportedModelError(
            f"the tensor names of the family {family!r} are not known{_other_attention(config)}; "
            "leave out the analyses of weights (and effects), or use a model of a family in docs/families.md"
        )
    if circuits:
        check_circuits(anatomy, config.model_type)
    if words:
        check_words(anatomy, config.model_type)
    return anatomy, anatomy.files


def _other_attention(config: Any) -> str:
    """Return what else a family without a record needs for circuits of heads, or nothing."""
    text = config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return ", and multi-head latent attention has no matrices of queries, keys and values for each head"
    kinds = {str(kind) for kind in getattr(text, "layer_types", None) or ()} - set(_ATTENTION_KINDS)
    if kinds:
        return f", and its layers of the kind {', '.join(sorted(kinds))} have no circuits of heads"
    return ""
