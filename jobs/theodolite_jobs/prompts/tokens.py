"""Convert texts to token ids: chat templates with a fixed date, and the checks that need no weights."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from functools import partial
from typing import Any, Literal
from unittest import mock

from theodolite.errors import PromptError
from theodolite.spec import SurveySpec, TokenIds
from theodolite.spec_parts import NOUN_TEMPLATE, NOUNS, PromptSetSpec

_TEXTS_AT_ONCE = 10_000


def tokenize(
    name: str, prompts: Sequence[str], prompt_set: PromptSetSpec, tokenizer: Any, template_date: date
) -> list[TokenIds]:
    """Return one tuple of token ids for each prompt of the set `name`.

    A rendered chat already contains its special tokens, so the tokenizer of transformers adds none. With
    `template: none`, or a template of the user's own, it adds its default special tokens. Chat templates that print
    today's date print `template_date`, so that a survey gives the same tokens on every day.

    Raises:
        PromptError: the tokenizer has no chat template, the template refuses the messages or makes different prompts
            equal, or a text repeats a special token that the tokenizer adds.
    """
    template = resolve_template(name, prompt_set, tokenizer)
    if template == "chat":
        with _fixed_date(template_date):
            texts = [_render_chat(name, prompt, prompt_set.system, tokenizer) for prompt in prompts]
        _check_distinct(name, prompts, texts)
        return list(_encode(texts, tokenizer, add_special_tokens=False))
    pattern = "{prompt}" if template == "none" else template
    texts = [pattern.replace("{prompt}", prompt) for prompt in prompts]
    tokens = list(_encode(texts, tokenizer, add_special_tokens=True))
    _check_special_tokens(name, texts, tokens, tokenizer)
    return tokens


def _check_distinct(name: str, prompts: Sequence[str], texts: Sequence[str]) -> None:
    """Raise PromptError if the chat template makes one text of two prompts that differ by more than outer spaces."""
    known: dict[str, int] = {}
    for index, text in enumerate(texts):
        other = known.setdefault(text, index)
        if prompts[other].strip() != prompts[index].strip():
            raise PromptError(
                f"prompts.{name}.template: the chat template makes the same text of prompt {other} and prompt {index}, "
                "which differ, so it ignores the message or a part of it; use template: none, or a text with {prompt}"
            )


def _check_special_tokens(name: str, texts: Sequence[str], tokens: Sequence[TokenIds], tokenizer: Any) -> None:
    """Raise PromptError if a text begins or ends with a special token that the tokenizer adds there too."""
    for end, side, kinds in (("begins", slice(0, 2), ("bos", "cls")), ("ends", slice(-2, None), ("eos", "sep"))):
        special = {getattr(tokenizer, f"{kind}_token_id", None) for kind in kinds}
        for index, ids in enumerate(tokens):
            pair = ids[side]
            if len(pair) < 2 or pair[0] != pair[1] or pair[0] not in special:
                continue
            (own,) = _encode([texts[index]], tokenizer, add_special_tokens=False)
            if own[side] != pair:  # else the text has both of them
                token = tokenizer.convert_ids_to_tokens(pair[0])
                raise PromptError(
                    f"prompts.{name}: prompt {index} {end} with {token!r} twice: the tokenizer adds it to a text that "
                    "has it already; remove it from the template, or from the prompts"
                )


def repeated(name: str, tokens: Sequence[TokenIds]) -> str | None:
    """Return a warning if prompts of the set `name` have equal token ids, else None."""
    known: dict[TokenIds, int] = {}
    first: tuple[int, int] | None = None
    for index, ids in enumerate(tokens):
        other = known.setdefault(ids, index)
        if other != index and first is None:
            first = other, index
    if first is None:
        return None
    return (
        f"prompts.{name}: {len(tokens) - len(known)} of {len(tokens)} prompts repeat the tokens of an earlier prompt, "
        f"the first are prompt {first[0]} and prompt {first[1]}; the statistics count each as an independent prompt"
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
    added = {name: (templates[name], spec.sets[name].system) for name in templates}
    return [
        f"contrasts.{name}: {positive} has the template {_named(*added[positive])} and {negative} "
        f"{_named(*added[negative])}; the templates alone can separate the sets"
        for name, (positive, negative) in ((name, contrast.sides) for name, contrast in spec.contrasts.items())
        if added[positive] != added[negative]
    ]


def _named(template: str, system: str | None) -> str:
    return f"{template!r}{'' if system is None else ' with a system message'}"


def _encode(texts: Sequence[str], tokenizer: Any, *, add_special_tokens: bool) -> Iterator[TokenIds]:
    """Yield the token ids of each text, with little memory for many texts.

    The tokenizer's results take 150 bytes for each token, so it gets a part of the texts at a time. Prompts share the
    objects of equal ids, which leaves 8 bytes for each token.
    """
    known: dict[int, int] = {}
    for start in range(0, len(texts), _TEXTS_AT_ONCE):
        part = texts[start : start + _TEXTS_AT_ONCE]
        for ids in tokenizer(part, add_special_tokens=add_special_tokens)["input_ids"]:
            yield tuple(map(known.setdefault, ids, ids))


def resolve_template(name: str, prompt_set: PromptSetSpec, tokenizer: Any) -> str:
    """Return `chat`, `none` or a text with {prompt}; raises PromptError if there is no chat template.

    Without a template and a system message, the built-in nouns have the template `NOUN_TEMPLATE`.
    """
    has_chat = getattr(tokenizer, "chat_template", None) is not None
    wants_chat = prompt_set.template == "chat" or prompt_set.system is not None
    if wants_chat and not has_chat:
        raise PromptError(f"prompts.{name}.template: this model's tokenizer has no chat template; use template: none")
    if prompt_set.template is not None:
        return prompt_set.template
    if prompt_set.source == f"builtin:{NOUNS}" and not wants_chat:
        return NOUN_TEMPLATE
    return "chat" if has_chat else "none"


def resolve_positions(
    name: str, positions: Sequence[int] | Literal["all"], tokens: Sequence[TokenIds]
) -> tuple[int, ...]:
    """Return a set's captured positions, ascending; `all` starts at the longest prompt's first token.

    Raises:
        PromptError: a prompt has no token at a position.
    """
    if positions == "all":
        return tuple(range(-max(map(len, tokens)), 0))
    for index, ids in enumerate(tokens):
        if len(ids) < -min(positions):
            raise PromptError(
                f"prompts.{name}: prompt {index} has {len(ids)} tokens, so it has no position {min(positions)}; "
                "remove the position or the prompt"
            )
    return tuple(positions)


def check_tokens(name: str, tokens: Sequence[TokenIds], context_length: int, vocabulary_size: int) -> None:
    """Raise PromptError for a prompt without tokens, too long for the model, or with a token id without an embedding.

    A missing embedding means that the tokenizer belongs to another model.
    """
    for index, ids in enumerate(tokens):
        if not ids:
            raise PromptError(f"prompts.{name}: prompt {index} has no tokens; remove it")
        if len(ids) > context_length:
            raise PromptError(
                f"prompts.{name}: prompt {index} has {len(ids)} tokens, more than the model's context of "
                f"{context_length}; shorten or remove it"
            )
    largest = max(map(max, tokens), default=0)
    if largest >= vocabulary_size:
        raise PromptError(
            f"prompts.{name}: the tokenizer gives token id {largest}, but the model has only {vocabulary_size} token "
            "embeddings; use this model's own tokenizer"
        )


@contextmanager
def _fixed_date(day: date) -> Iterator[None]:
    """Fix the date that chat templates print; transformers has no setting for it."""
    from transformers.utils import chat_template_utils

    with mock.patch.object(chat_template_utils, "datetime") as clock:
        clock.now.return_value = datetime.combine(day, time())
        yield


def _render_chat(name: str, prompt: str, system: str | None, tokenizer: Any) -> str:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": prompt})
    render = partial(tokenizer.apply_chat_template, tokenize=False, add_generation_prompt=True)
    try:
        return str(render(messages))
    # Templates are programs of the model's authors and may raise anything, e.g. for a system message.
    except Exception as error:
        # Error messages end up in logs, so they must not quote a prompt: show only an error that "x" causes too.
        reason = "this prompt, but not the prompt 'x'; its error is hidden: it may quote it"
        try:
            render([{**message, "content": "x"} for message in messages])
        except Exception as of_x:
            reason = f"the prompt: {of_x}"
        raise PromptError(f"prompts.{name}: the model's chat template refuses {reason}") from error
