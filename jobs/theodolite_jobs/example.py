"""A prompt of a survey as the model reads it, with the measured tokens marked."""

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from theodolite.spec import Spans, TokenIds
from theodolite_jobs.prepared import Prepared

HARMFUL = "builtin:harmful"

_MOST_TOKENS = 200  # of a long prompt, unless an earlier position is measured
_PROMPTS, _AROUND = 2, 5  # the first prompts whose measured tokens are shown, and the tokens around them


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
    ids, spans = prepared.tokens[name][0], prepared.spans_of(name)[0]
    start = min(max(0, len(ids) - _MOST_TOKENS), min(spans)[0])
    return {
        "set": name,
        "is_harmful": spec.prompts[name].source == HARMFUL,
        "is_cut": start > 0,
        "parts": _parts(ids, start, len(ids), spans, tokenizer),
    }


def measured_tokens(prepared: Prepared, name: str, tokenizer: Any) -> list[dict[str, Any]]:
    """Return where the named positions of a set are in its first prompts; none of the built-in harmful set.

    Returns:
        For each prompt and position: `prompt`, `position`, and `text`, its tokens in ⟦ ⟧ between those around them.
    """
    found: list[dict[str, Any]] = []
    if prepared.spec.sets[name].source == HARMFUL:
        return found
    for number, spans in enumerate(prepared.spans.get(name, ())[:_PROMPTS]):
        ids = prepared.tokens[name][number]
        for label, span in zip(prepared.positions[name], spans, strict=True):
            start, stop = max(0, span[0] - _AROUND), min(len(ids), span[1] + _AROUND)
            text = marked_text(_parts(ids, start, stop, (span,), tokenizer))
            found.append({"prompt": number, "position": label, "text": text})
    return found


def _parts(ids: TokenIds, start: int, stop: int, spans: Spans, tokenizer: Any) -> list[dict[str, Any]]:
    """Return the `text` of consecutive tokens of a prompt, and whether it `is_measured`."""

    def is_measured(token: int) -> bool:
        return any(first <= token < end for first, end in spans)

    parts, before, end = [], "", start
    for measured, run in groupby(range(start, stop), key=is_measured):
        end += len(list(run))
        # Of all tokens up to here, since some tokenizers drop a space where a text begins.
        text = tokenizer.decode(ids[start:end], skip_special_tokens=False, clean_up_tokenization_spaces=False)
        parts.append({"text": text[len(before) :], "is_measured": measured})
        before = text
    return parts


def marked_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Return the parts in one line, the measured ones in ⟦ ⟧, and line breaks as in JSON."""
    texts = ((json.dumps(part["text"], ensure_ascii=False)[1:-1], part["is_measured"]) for part in parts)
    return "".join(f"⟦{text}⟧" if is_measured else text for text, is_measured in texts)
