"""Groups of next tokens for log-odds: the tokens that a spec lists as texts, or the built-in groups."""

from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.errors import SpecError

REFUSAL = ("I", "Sorry", "Unfortunately", "As", "No", "Apologies")
ANSWER = ("Sure", "Here", "Certainly", "Of", "Yes", "The", "To", "There", "This", "A", "In", "You", "First", "1", "**")

BUILTIN = {"refusal": REFUSAL, "answer": ANSWER}
"""Words with which chat models begin a refusal ("I cannot", "Sorry", "As an AI"), and an answer. Arditi et al. (2024)
use such words, one or two for each family of models."""


def next_token_groups(tokenizer: Any, groups: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    """Return the token ids of two groups by name, the first one first; without groups, of the built-in groups.

    A built-in word counts with and without a space before it, and only if it is one token of this model.

    Raises:
        SpecError: a text of a group is not one token, both groups have the same token, or a built-in group has no
            token in this vocabulary.
    """
    found = _listed(tokenizer, groups) if groups else _builtin(tokenizer)
    both = set.intersection(*map(set, found.values()))
    if both:
        text = tokenizer.decode([min(both)])
        raise SpecError(f"effects.tokens: both groups have the token {text!r}; give each group its own tokens")
    return found


def _listed(tokenizer: Any, groups: Mapping[str, Sequence[str]]) -> dict[str, list[int]]:
    found = {}
    for name, texts in groups.items():
        tokens = [_encoded(tokenizer, text) for text in texts]
        for text, ids in zip(texts, tokens, strict=True):
            if len(ids) != 1:
                pieces = " ".join(repr(tokenizer.decode([one])) for one in ids)
                raise SpecError(
                    f"effects.tokens.{name}: {text!r} is {len(ids)} tokens of this model ({pieces}); list texts that "
                    "are one token each"
                )
        found[name] = sorted({ids[0] for ids in tokens})
    return found


def _builtin(tokenizer: Any) -> dict[str, list[int]]:
    found = {}
    for name, words in BUILTIN.items():
        tokens = [_encoded(tokenizer, text) for word in words for text in (word, f" {word}")]
        found[name] = sorted({ids[0] for ids in tokens if len(ids) == 1})
        if not found[name]:
            raise SpecError(
                f"effects.tokens: no word of the built-in group {name!r} is one token of this model; list two groups "
                "of your own"
            )
    return found


def _encoded(tokenizer: Any, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False))
