"""Mend tokenizers that transformers only warns of: Mistral's Tekken with the pattern of another tokenizer."""

import json
from typing import Any

MISTRAL_REGEX = "mistral_regex"
"""The name of the fix in run.json."""

# The pattern in tekken.json of Mistral's models. Many converted tokenizer.json files have that of Llama 3, which joins
# up to three digits and splits words elsewhere, so the model reads tokens that it was not trained on.
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_IDS_OF_TEKKEN = {"<unk>": 0, "<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4}


def mend_tokenizer(tokenizer: Any) -> tuple[str, ...]:
    """Replace a wrong pattern of a tokenizer, and return the names of what was mended."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or any(backend.token_to_id(token) != index for token, index in _IDS_OF_TEKKEN.items()):
        return ()
    from tokenizers import Regex, pre_tokenizers

    steps = (json.loads(backend.to_str())["pre_tokenizer"] or {}).get("pretokenizers") or []
    # Older models of Mistral have the same first tokens, and a SentencePiece vocabulary without a pattern.
    if [step["type"] for step in steps] != ["Split", "ByteLevel"] or steps[0]["pattern"] == {"Regex": _TEKKEN}:
        return ()
    split = pre_tokenizers.Split(Regex(_TEKKEN), behavior="isolated")
    byte_level = pre_tokenizers.ByteLevel(**{name: steps[1][name] for name in ("add_prefix_space", "use_regex")})
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    return (MISTRAL_REGEX,)
