"""A prompt of a survey as the model reads it, with the measured tokens marked."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from theodolite_jobs.prepared import Prepared

HARMFUL = "builtin:harmful"

_MOST_TOKENS = 200  # of a long prompt, unless an earlier position is measured


def example_of(prepared: Prepared, tokenizer: Any) -> dict[str, Any] | None:
    """Return the first prompt of the first set that is not the built-in harmful one, unless there is no other.

    Returns:
        The `set`; `is_harmful`, whether it is the built-in harmful set; `is_cut`, whether earlier tokens are left out;
        and `parts`, the `text` of consecutive tokens and whether it `is_measured`. None without a set whose positions
        are measured.
    """
    spec = prepared.spec
    names = [name for name, prompt_set in spec.prompts.items() if prompt_set.positions != "all"]
    if not names:
        return None
    name = min(names, key=lambda one: spec.prompts[one].source == HARMFUL)
    ids, positions = prepared.tokens[name][0], prepared.positions[name]
    shown = list(ids[-max(_MOST_TOKENS, -positions[0]) :])
    parts, end, before = [], 0, ""
    for is_measured, run in groupby(range(-len(shown), 0), key=lambda position: position in positions):
        end += len(list(run))
        # Of all tokens up to here, since some tokenizers drop a space where a text begins.
        text = tokenizer.decode(shown[:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        parts.append({"text": text[len(before) :], "is_measured": is_measured})
        before = text
    return {
        "set": name,
        "is_harmful": spec.prompts[name].source == HARMFUL,
        "is_cut": len(shown) < len(ids),
        "parts": parts,
    }


def marked_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the parts in one line, the measured ones in ⟦ ⟧, and line breaks as in JSON."""
    texts = ((json.dumps(part["text"], ensure_ascii=False)[1:-1], part["is_measured"]) for part in parts)
    return "".join(f"⟦{text}⟧" if is_measured else text for text, is_measured in texts)
