"""Convert texts to token ids: chat templates with a fixed date, and the checks that need no weights."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import Any

from theodolite.errors import PromptError, short
from theodolite.spec import TokenIds
from theodolite.spec_parts import NOUN_TEMPLATE, NOUNS, SENTENCES, PromptSetSpec
from theodolite_jobs.prompts.chats import fixed_date, open_chat
from theodolite_jobs.prompts.conversations import Prompt, contents_of, roles_of, text_of
from theodolite_jobs.prompts.special_tokens import (
    is_special_inside,
    plain_text_tokenizer,
    special_ids,
    special_spellings,
)

_TEXTS_AT_ONCE = 10_000


@dataclass(frozen=True)
class Tokenized:
    """The token ids of a set's prompts, and facts about them."""

    tokens: list[TokenIds]
    n_spelled: int = 0  # prompts that spell a special token, which is encoded as plain text
    parts: tuple[str, ...] = ()  # roles whose content the chat template gets as a list of parts
    roles: frozenset[tuple[str, ...]] = frozenset()  # of the messages of a prompt, each sequence of them that occurs


def tokenize(
    name: str, prompts: Sequence[Prompt], prompt_set: PromptSetSpec, tokenizer: Any, template_date: date
) -> Tokenized:
    """Return one tuple of token ids for each prompt of the set `name`.

    A rendered chat already contains its special tokens, so the tokenizer of transformers adds none. With
    `template: none`, or a template of the user's own, it adds its default special tokens. Chat templates that print
    today's date print `template_date`, so that a survey gives the same tokens on every day.

    Raises:
        PromptError: the tokenizer has no chat template, or other prompts than the template needs; the template refuses
            a message or leaves it out; a prefill changes the template's last token; a text repeats a special token
            that the tokenizer adds; or a prompt spells a special token that the tokenizer cannot encode as plain text.
    """
    template = resolve_template(name, prompt_set, tokenizer)
    if template == "chat":
        with fixed_date(template_date):
            chat = open_chat(name, prompts, prompt_set, tokenizer)
            encode = partial(_encoded, name, prompts, prompt_set, tokenizer, add_special_tokens=False)
            _, tokens, n_spelled = encode(render=chat.render)
            if chat.prefill:
                _check_prefill(name, tokens, encode(render=replace(chat, prefill="").render)[1])
        return Tokenized(tokens, n_spelled, tuple(sorted(chat.parts)), frozenset(map(roles_of, prompts)))
    if not all(isinstance(prompt, str) for prompt in prompts):
        given = prompt_set.template
        reason = "the model's tokenizer has no chat template" if given is None else f"the template is {short(given)}"
        raise PromptError(
            f"prompts.{name}.template: {reason}, and the prompts are conversations, which need a chat template; use "
            "template: chat with a chat model, or give texts in place of the conversations"
        )

    def fill(_index: int, prompt: Prompt, change: Callable[[str], str] = str) -> str:
        return filled(template, text_of(prompt), change)

    texts, tokens, n_spelled = _encoded(name, prompts, prompt_set, tokenizer, fill, add_special_tokens=True)
    _check_special_tokens(name, texts, tokens, tokenizer)
    return Tokenized(tokens, n_spelled)


def filled(template: str, text: str, change: Callable[[str], str] = str) -> str:
    """Return a text in a template of the user's own, or alone if it is `none`; `change` changes the text first."""
    return ("{prompt}" if template == "none" else template).replace("{prompt}", change(text))


def _encoded(
    name: str,
    prompts: Sequence[Prompt],
    prompt_set: PromptSetSpec,
    tokenizer: Any,
    render: Callable[..., str],
    *,
    add_special_tokens: bool,
) -> tuple[list[str], list[TokenIds], int]:
    """Return the rendered prompts, their token ids, and the number of prompts whose special tokens are plain text.

    `render` gets the number of a prompt, the prompt, and a function that changes its texts first.
    """
    texts = [render(index, prompt) for index, prompt in enumerate(prompts)]
    tokens = list(_encode(texts, tokenizer, add_special_tokens=add_special_tokens))
    spellings = special_spellings(tokenizer) if prompt_set.special_tokens == "text" else None
    if spellings is None:
        return texts, tokens, 0
    of_set = [] if prompt_set.system is None else [prompt_set.system]
    spelled = [
        index
        for index, prompt in enumerate(prompts)
        if any(spellings.search(text) for text in (*of_set, *contents_of(prompt)))
    ]
    plain = plain_text_tokenizer(tokenizer, (texts[index] for index in spelled)) if spelled else None
    for index in spelled:
        ids = None
        if plain is not None:
            with suppress(PromptError):  # a template may refuse the marks
                rendered = render(index, prompts[index], plain.marked)
                if rendered.replace(plain.mark, "") == texts[index]:
                    ids = plain.encode(rendered, add_special_tokens=add_special_tokens)
        if ids is None:
            raise PromptError(
                f"prompts.{name}: prompt {index} spells a special token, and this tokenizer or chat template cannot "
                "take it as plain text; set special_tokens: allow to encode it as a special token, or remove it from "
                "the prompt"
            )
        tokens[index] = ids
    encode = partial(_encode, tokenizer=tokenizer, add_special_tokens=add_special_tokens)
    _check_hidden_spellings(name, prompts, tokens, tokenizer, render, encode)
    return texts, tokens, len(spelled)


def _check_hidden_spellings(
    name: str,
    prompts: Sequence[Prompt],
    tokens: Sequence[TokenIds],
    tokenizer: Any,
    render: Callable[..., str],
    encode: Callable[[Sequence[str]], Iterator[TokenIds]],
) -> None:
    """Raise PromptError if a prompt gives a special token that it does not spell.

    The tokenizer may normalise a text to one, or a text may join with its template to one. Such prompts have more
    special tokens than one of the same roles whose texts are all `x`. So may others, whose template writes special
    tokens because of their texts; `is_special_inside` tells them apart.
    """
    special = special_ids(tokenizer)

    def count(ids: TokenIds) -> int:
        return sum(map(special.__contains__, ids))

    expected: dict[tuple[str, ...], int] = {}
    for index, (prompt, ids) in enumerate(zip(prompts, tokens, strict=True)):
        roles = roles_of(prompt)
        if roles not in expected:
            expected[roles] = -1
            with suppress(PromptError):  # a template may refuse `x`
                expected[roles] = count(next(encode([render(index, prompt, lambda _: "x")])))
        if count(ids) > expected[roles] and is_special_inside(tokenizer, special, partial(render, index, prompt)):
            raise PromptError(
                f"prompts.{name}: prompt {index} gives a special token of the tokenizer that it does not spell; set "
                "special_tokens: allow to encode it as a special token, or change the prompt"
            )


def _check_prefill(name: str, tokens: Sequence[TokenIds], without: Sequence[TokenIds]) -> None:
    """Raise PromptError if a prefill changes a token before it; `without` has the ids without a prefill.

    Then no answer of the model could begin so, and the template's last token is not in the ids.
    """
    for index, (ids, shorter) in enumerate(zip(tokens, without, strict=True)):
        if ids[: len(shorter)] != shorter:
            raise PromptError(
                f"prompts.{name}.prefill: its first characters and the end of the chat template become one token in "
                f"prompt {index}; begin the prefill with other characters, for example without line breaks or spaces"
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
                    f"{field_of(name)}: prompt {index} {end} with {token!r} twice: the tokenizer adds it to a text "
                    "that has it already; remove it from the template, or from the prompts"
                )


def field_of(name: str) -> str:
    """Return the field of the spec that has the prompts of a set."""
    return "words.sentences" if name == SENTENCES else f"prompts.{name}"


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
    """Return `chat`, `none` or a text with {prompt}; raises PromptError if there is no chat template, or no default.

    Without a template and an option of chats, the built-in nouns have the template `NOUN_TEMPLATE`.
    """
    chat_template = getattr(tokenizer, "chat_template", None)
    has_chat = chat_template is not None
    wants_chat = prompt_set.template == "chat" or bool(prompt_set.chat_options)
    if wants_chat and not has_chat:
        options = " and ".join(prompt_set.chat_options)
        remedy = f"remove {options}" if options else "use template: none"
        remedy += " and use template: none" if options and prompt_set.template else ""
        raise PromptError(f"prompts.{name}.template: this model's tokenizer has no chat template; {remedy}")
    if prompt_set.template not in (None, "chat"):
        return prompt_set.template
    if prompt_set.source == f"builtin:{NOUNS}" and not wants_chat:
        return NOUN_TEMPLATE
    if isinstance(chat_template, dict):
        raise PromptError(
            f"prompts.{name}.template: this model has the chat templates {', '.join(sorted(chat_template))}, and none "
            "named default; set model.template to one of them, or use template: none"
        )
    return "chat" if has_chat else "none"


def all_positions(tokens: Sequence[TokenIds]) -> tuple[int, ...]:
    """Return the captured positions of a set with `positions: all`: from the longest prompt's first token."""
    return tuple(range(-max(map(len, tokens)), 0))


def check_positions(name: str, positions: Sequence[int], tokens: Sequence[TokenIds], numbers: Sequence[int]) -> None:
    """Raise PromptError if a prompt has no token at a position; `numbers` are those of the prompts, for messages."""
    first = min(positions, default=0)
    for index, ids in zip(numbers, tokens, strict=True):
        if len(ids) < -first:
            raise PromptError(
                f"prompts.{name}: prompt {index} has {len(ids)} tokens, so it has no position {first}; "
                "remove the position or the prompt"
            )


def check_tokens(
    name: str, tokens: Sequence[TokenIds], numbers: Sequence[int], context_length: int, vocabulary_size: int
) -> None:
    """Raise PromptError for a prompt without tokens, too long for the model, or with a token id without an embedding.

    `numbers` are those of the prompts, for messages. A missing embedding means that the tokenizer belongs to another
    model.
    """
    for index, ids in zip(numbers, tokens, strict=True):
        if not ids:
            raise PromptError(f"{field_of(name)}: prompt {index} has no tokens; remove it")
        if len(ids) > context_length:
            other = "" if name == SENTENCES else ", or set too_long"
            raise PromptError(
                f"{field_of(name)}: prompt {index} has {len(ids)} tokens, more than the model's context of "
                f"{context_length}; shorten or remove it{other}"
            )
    largest = max(map(max, tokens), default=0)
    if largest >= vocabulary_size:
        raise PromptError(
            f"{field_of(name)}: the tokenizer gives token id {largest}, but the model has only {vocabulary_size} token "
            "embeddings; use this model's own tokenizer"
        )
