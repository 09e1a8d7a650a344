"""Find the tokens of named positions in the text of each prompt, by the characters that each token covers."""

import re
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from itertools import count
from typing import Any

from theodolite.errors import PromptError, short
from theodolite.spec import Spans, TokenIds
from theodolite.spec_parts import NamedPosition, PromptSetSpec
from theodolite_jobs.prompts.chats import fixed_date, open_chat
from theodolite_jobs.prompts.conversations import Prompt, text_of
from theodolite_jobs.prompts.special_tokens import between_marks, unused_marks
from theodolite_jobs.prompts.tokens import filled, resolve_template

_Render = Callable[[Callable[[str], str]], str]
"""Returns a prompt with its template; gets a function that changes each text first."""


@dataclass(frozen=True)
class _Message:
    """A message in a rendered prompt: its role, and its first character and one past its last, without outer blanks."""

    role: str
    start: int
    stop: int


def token_spans(
    name: str,
    prompts: Sequence[Prompt],
    prompt_set: PromptSetSpec,
    positions: Sequence[int | NamedPosition],
    tokens: Sequence[TokenIds],
    tokenizer: Any,
    template_date: date,
    numbers: Sequence[int],
) -> list[Spans]:
    """Return the tokens of each position of each prompt of the set `name`.

    A token belongs to a message, or to a text in it, if it covers one of its characters, without blanks at the ends of
    the message. The tokens, decoded, must contain the characters.

    Args:
        name: the set's name, for messages.
        prompts: the prompts, as tokenised.
        prompt_set: their template and its options.
        positions: named ones, and those from the end, which all prompts have.
        tokens: the token ids of each prompt.
        tokenizer: one that says which characters each token covers.
        template_date: the date that chat templates print.
        numbers: those of the prompts, for messages.

    Raises:
        PromptError: a prompt lacks a message, a text or a token of a position, or has several; or it is not known which
            tokens are those of a message. No prompt is quoted.
    """
    with fixed_date(template_date):
        return [
            _spans_of(f"prompts.{name}: prompt {number}", positions, ids, tokenizer, *rendered)
            for rendered, ids, number in zip(
                _rendered(name, prompts, prompt_set, tokenizer), tokens, numbers, strict=True
            )
        ]


def _spans_of(
    where: str,
    positions: Sequence[int | NamedPosition],
    ids: TokenIds,
    tokenizer: Any,
    roles: Sequence[str],
    render: _Render,
    add_special_tokens: bool,
) -> Spans:
    """Return the tokens of each position of a prompt, whose texts have these roles; `where` is for messages."""
    text, messages = _messages(where, roles, render)
    offsets = _offsets(where, text, ids, tokenizer, add_special_tokens=add_special_tokens)
    spans = []
    for position in positions:
        if isinstance(position, int):
            spans.append((len(ids) + position, len(ids) + position + 1))
            continue
        at = f"{where}, position {position.name}"
        start, stop = _characters(at, position, text, messages)
        covering = [index for index, (first, end) in enumerate(offsets) if first < stop and start < end]
        _check_decoded(at, text[start:stop], [ids[index] for index in covering], tokenizer)
        span = position.within(covering[0], covering[-1] + 1)
        if span[1] > covering[-1] + 1:
            raise PromptError(f"{at}: the text has {len(covering)} tokens, so it has no token {position.first}")
        spans.append(span)
    return tuple(spans)


def _rendered(
    name: str, prompts: Sequence[Prompt], prompt_set: PromptSetSpec, tokenizer: Any
) -> Iterator[tuple[list[str], _Render, bool]]:
    """Yield the roles of each prompt's texts, what renders it, and whether the tokenizer adds special tokens to it."""
    template = resolve_template(name, prompt_set, tokenizer)
    if template != "chat":
        for prompt in prompts:
            yield ["user"], partial(filled, template, text_of(prompt)), True
        return
    chat = open_chat(name, prompts, prompt_set, tokenizer)
    for index, prompt in enumerate(prompts):
        roles = [message["role"] for message in chat.messages(index, prompt)]
        render = partial(replace(chat, prefill="").render, index, prompt)
        if chat.prefill:  # the beginning of an answer
            yield [*roles, "assistant"], partial(_prefilled, render, chat.prefill), False
        else:
            yield roles, render, False


def _prefilled(render: _Render, prefill: str, change: Callable[[str], str]) -> str:
    return render(change) + change(prefill)


def _messages(where: str, roles: Sequence[str], render: _Render) -> tuple[str, list[_Message]]:
    """Return a rendered prompt and its messages, which are found by marks at their ends; empty ones have no length."""
    text = render(str)
    marks = unused_marks(text, len(roles))
    each = count()
    marked = render(lambda content: between_marks(marks[next(each)], content))
    places: dict[str, list[int]] = {mark: [] for mark in marks}
    for number, match in enumerate(re.finditer(f"[{''.join(marks)}]", marked)):
        places[match[0]].append(match.start() - number)
    if re.sub(f"[{''.join(marks)}]", "", marked) != text:
        raise PromptError(
            f"{where}: the chat template writes another text if a message has other characters at its ends, so it is "
            "not known where a message is; use positions from the end"
        )
    for role, ends in zip(roles, places.values(), strict=True):
        if len(ends) > 2:
            raise PromptError(
                f"{where}: the template writes a message ({role}) {len(ends) // 2} times, so it is not known which is "
                "meant; use positions from the end, or another template"
            )
    return text, [_Message(role, *(ends or (0, 0))) for role, ends in zip(roles, places.values(), strict=True)]


def _characters(at: str, position: NamedPosition, text: str, messages: Sequence[_Message]) -> tuple[int, int]:
    """Return the first character of a position in a rendered prompt, and one past its last."""
    own = [message for message in messages if message.role == position.role]
    if not own:
        raise PromptError(f"{at}: there is no message of the role {position.role}; change the position, or the prompt")
    if position.turn is not None:
        if not -len(own) <= position.turn < len(own):
            raise PromptError(
                f"{at}: there is no turn {position.turn}; the role {position.role} has {len(own)}, and 0 is the first"
            )
        own = [own[position.turn]]
    if position.text is None:
        if len(own) > 1:
            raise PromptError(
                f"{at}: there are {len(own)} messages of the role {position.role}; say which one by turn: 0 is the "
                "first, -1 the last"
            )
        if own[0].start == own[0].stop:
            raise PromptError(f"{at}: the message ({position.role}) is empty; change the position, or the prompt")
        return own[0].start, own[0].stop
    wanted = re.compile(f"(?={re.escape(position.text)})")  # also finds occurrences that overlap
    starts = [
        message.start + match.start()
        for message in own
        for match in wanted.finditer(text[message.start : message.stop])
    ]
    if len(starts) != 1:
        remedy = "give a longer text, or a turn" if starts else "change the position, or remove the prompt"
        raise PromptError(
            f"{at}: the text {short(position.text)} occurs {len(starts)} times in the messages of the role "
            f"{position.role}, and must occur once; {remedy}"
        )
    return starts[0], starts[0] + len(position.text)


def _offsets(
    where: str, text: str, ids: TokenIds, tokenizer: Any, *, add_special_tokens: bool
) -> list[tuple[int, int]]:
    """Return the first character of each token, and one past its last."""
    try:
        encoded = tokenizer([text], add_special_tokens=add_special_tokens, return_offsets_mapping=True)
    except NotImplementedError as error:
        raise PromptError(
            f"{where}: this model's tokenizer (a slow one) does not say which characters a token covers, which named "
            "positions need; use positions from the end"
        ) from error
    if tuple(encoded["input_ids"][0]) != tuple(ids):
        raise PromptError(
            f"{where}: it spells a special token, which is encoded as plain text, and named positions cannot be found "
            "in it; set special_tokens: allow, or remove the prompt"
        )
    offsets: list[tuple[int, int]] = encoded["offset_mapping"][0]
    return offsets


def _check_decoded(at: str, text: str, ids: Sequence[int], tokenizer: Any) -> None:
    """Raise PromptError if the tokens, decoded, do not contain the text, apart from what tokenizers normalise."""
    decoded = tokenizer.decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False) if ids else ""
    if not ids or (tokenizer.unk_token_id not in ids and _letters(text) not in _letters(decoded)):
        raise PromptError(
            f"{at}: the {len(ids)} tokens at the characters of the text do not decode to it; use positions from the end"
        )


def _letters(text: str) -> str:
    """Return a text without blanks, accents, control characters, and the difference of small and capital letters."""
    normal = unicodedata.normalize("NFKD", text).casefold()
    return "".join(one for one in normal if not one.isspace() and unicodedata.category(one)[0] not in "MC")
