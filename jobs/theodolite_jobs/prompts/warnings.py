"""Warnings about prompts that may be a mistake: repeated ones, and contrasts that more than the prompts separate."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.errors import short
from theodolite.spec import SurveySpec, TokenIds
from theodolite_jobs.prompts.tokens import Tokenized, field_of

_SHOWN_ROLES = 6


def prompt_warnings(
    spec: SurveySpec,
    templates: Mapping[str, str],
    tokenized: Mapping[str, Tokenized],
    numbers: Mapping[str, Sequence[int]],
) -> list[str]:
    """Return sentences about prompts that may be a mistake.

    `templates`, `tokenized` and `numbers` have those of each set; a number counts the prompts that are left out too.
    """
    tokens = {name: one.tokens for name, one in tokenized.items()}
    of_sets = [repeated(name, ids, numbers[name]) for name, ids in tokens.items()]
    as_text = [special_tokens_as_text(name, one) for name, one in tokenized.items()]
    of_contrasts = [*equal_sets(spec, tokens), *different_templates(spec, templates), *different_roles(spec, tokenized)]
    return [warning for warning in (*of_sets, *of_contrasts, *as_text) if warning is not None]


def repeated(name: str, tokens: Sequence[TokenIds], numbers: Sequence[int]) -> str | None:
    """Return a warning if prompts of the set `name` have equal token ids, else None; `numbers` are the prompts'."""
    known: dict[TokenIds, int] = {}
    first: tuple[int, int] | None = None
    for index, ids in zip(numbers, tokens, strict=True):
        other = known.setdefault(ids, index)
        if other != index and first is None:
            first = other, index
    if first is None:
        return None
    return (
        f"{field_of(name)}: {len(tokens) - len(known)} of {len(tokens)} prompts repeat the tokens of an earlier "
        f"prompt, the first are prompt {first[0]} and prompt {first[1]}; the statistics count each as an independent "
        "prompt"
    )


def equal_sets(spec: SurveySpec, tokens: Mapping[str, Sequence[TokenIds]]) -> list[str]:
    """Return a warning for each contrast of two sets with the same tokens, in any order; `tokens` has those of each."""
    return [
        f"contrasts.{name}: {contrast.positive} and {contrast.negative} have the same prompts; nothing separates them"
        for name, contrast in spec.contrasts.items()
        if Counter(tokens[contrast.positive]) == Counter(tokens[contrast.negative])
    ]


def different_templates(spec: SurveySpec, templates: Mapping[str, str]) -> list[str]:
    """Return a warning for each contrast whose sets differ in what the template adds; `templates` has that of each."""
    added = {name: (templates[name], spec.sets[name].chat_options) for name in templates}
    return [
        f"contrasts.{name}: {positive} has the template {_named(*added[positive])} and {negative} "
        f"{_named(*added[negative])}; the templates alone can separate the sets"
        for name, (positive, negative) in ((name, contrast.sides) for name, contrast in spec.contrasts.items())
        if added[positive] != added[negative]
    ]


def different_roles(spec: SurveySpec, tokenized: Mapping[str, Tokenized]) -> list[str]:
    """Return a warning for each contrast if one of its sets has a conversation whose roles no one of the other has."""
    warnings = []
    for name, contrast in spec.contrasts.items():
        found = {side: tokenized[side].roles for side in contrast.sides}
        if not all(found.values()):  # a set without chats has another template, which is a warning of its own
            continue
        shared = frozenset.intersection(*found.values())
        own = [(side, roles) for side in contrast.sides for roles in sorted(found[side] - shared)]
        if own:
            side, roles = own[0]
            shown = ", ".join(roles[:_SHOWN_ROLES]) + ", …" * (len(roles) > _SHOWN_ROLES)
            other = next(one for one in contrast.sides if one != side)
            warnings.append(
                f"contrasts.{name}: {side} has a conversation of {len(roles)} messages ({shown}), and {other} has none "
                "of the same roles; the roles alone can separate the sets"
            )
    return warnings


def _named(template: str, options: Mapping[str, Any]) -> str:
    # Without the texts: warnings end up in logs.
    shown = {"system": "a system message", "prefill": "a prefill"}
    shown["template_args"] = f"template_args ({', '.join(options.get('template_args', {}))})"
    return f"{short(template)}{' with ' if options else ''}{' and '.join(shown[name] for name in options)}"


def special_tokens_as_text(name: str, tokenized: Tokenized) -> str | None:
    """Return a warning if special tokens in prompts of the set `name` are encoded as plain text, else None."""
    if not tokenized.n_spelled:
        return None
    return (
        f"prompts.{name}: {tokenized.n_spelled} of {len(tokenized.tokens)} prompts spell special tokens of the "
        "tokenizer, which are encoded as plain text; set special_tokens: allow to encode them as special tokens"
    )
