"""Prompts that are conversations: lists of messages, each with a role and a content."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from theodolite.errors import PromptError, short
from theodolite_jobs.prompts.json_files import is_spelled_conversation
from theodolite_jobs.prompts.rows import named

Message = dict[str, str]
"""The `role` and the `content` of a message."""

Prompt = str | list[Message]
"""A text, which a chat template gets as the content of a user's message, or a conversation."""

ROLES = ("system", "user", "assistant")

_HOW = "a message needs only role and content"


def conversation_of(where: str, messages: Sequence[Any]) -> list[Message]:
    """Return the messages of a conversation, without keys whose value is missing; the contents are not checked.

    A content that is a list of one text part (`{type: text, text: …}`) becomes that text.

    Raises:
        PromptError: a message has another role, or something besides role and content. It quotes no content.
    """
    if not messages:
        raise PromptError(f"{where} is an empty list; a conversation needs a message")
    return [_message(f"{where}, message {index}", message) for index, message in enumerate(messages)]


def _message(where: str, message: Any) -> Message:
    if not isinstance(message, dict):
        raise PromptError(f"{where} is of type {type(message).__name__}; a message is an object with role and content")
    given = {key: value for key, value in message.items() if not _is_missing(key, plain(value))}
    if lacking := [key for key in ("role", "content") if key not in given]:
        raise PromptError(f"{where} has no {lacking[0]} (keys: {named(map(str, given)) or 'none'}); {_HOW}")
    if other := [str(key) for key in given if key not in ("role", "content")]:
        raise PromptError(f"{where} also has {named(other)}; {_HOW}: remove the others, or the row")
    if given["role"] not in ROLES:
        shown = named([given["role"]]) if isinstance(given["role"], str) else type(given["role"]).__name__
        raise PromptError(f"{where} has the role {shown}; allowed: {', '.join(ROLES)}; remove the message, or the row")
    return {"role": given["role"], "content": _content(where, plain(given["content"]))}


def _is_missing(key: str, value: Any) -> bool:
    """Return whether a key has no value: columns of tables are in every row. An empty content is a value."""
    return value is None or (key not in ("role", "content") and value in ("", [], {}))


def _content(where: str, content: Any) -> Any:
    if not isinstance(content, list):
        return content
    kinds = [part.get("type") if isinstance(part, dict) else None for part in content]
    if kinds == ["text"]:
        return content[0].get("text")
    shown = named(str(kind) for kind in kinds) or "none"
    raise PromptError(f"{where} has parts of the types {shown}; allowed: a text, or one part of the type text")


def plain(value: Any) -> Any:
    """Return an array, which a table has in place of a list, as a list; other values as they are."""
    return list(value) if type(value).__name__ == "ndarray" else value


def check_kinds(prompts: Mapping[str, Any], template: str | None) -> None:
    """Raise PromptError if some prompts are texts and others conversations, or if a text spells a conversation.

    Such a text, for example in a cell of a .csv file, would be one message. `none` or a text with {prompt} as the
    `template` says that it is meant as a text. `prompts` has the values by the place that messages name.
    """
    places = {isinstance(value, list): where for where, value in reversed(list(prompts.items()))}
    if len(places) > 1:
        raise PromptError(
            f"{places[True]} is a conversation, and {places[False]} is a text; put conversations and texts into two "
            "sets, or make them of one kind"
        )
    if places.get(True) and template not in (None, "chat"):
        raise PromptError(
            f"{places[True]} is a conversation, and the template is {short(template)}; conversations need template: "
            "chat and a model with a chat template"
        )
    if template in (None, "chat"):
        for where, value in prompts.items():
            if isinstance(value, str) and is_spelled_conversation(value):
                raise PromptError(
                    f"{where} is the text of a conversation; give it as a list of messages, in a .jsonl, .json or "
                    ".parquet file, or, if it is meant as a text, set template: none, or a text with {prompt}"
                )


def text_of(prompt: Prompt) -> str:
    """Return a text as it is, and a conversation as the JSON of its messages."""
    return prompt if isinstance(prompt, str) else json.dumps(prompt, ensure_ascii=False)


def roles_of(prompt: Prompt) -> tuple[str, ...]:
    """Return the roles of a conversation's messages; a text is the message of a user."""
    return ("user",) if isinstance(prompt, str) else tuple(message["role"] for message in prompt)


def contents_of(prompt: Prompt) -> list[str]:
    """Return the text of a prompt, or the contents of a conversation's messages."""
    return [prompt] if isinstance(prompt, str) else [message["content"] for message in prompt]
