"""The types of values that a prompt set of a spec has: texts, conversations, and variables of chat templates."""

import json
from typing import Annotated, Any

from pydantic import AfterValidator, Discriminator, Field, JsonValue, Tag

ARG_NAME = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"

RESERVED_ARGS = (
    *("messages", "conversation", "tools", "documents", "chat_template", "add_generation_prompt"),
    *("continue_final_message", "tokenize", "sanitize_control_tokens", "padding", "truncation", "max_length"),
    *("return_tensors", "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "self"),
    *("raise_exception", "strftime_now", "namespace", "dict", "range", "lipsum", "cycler", "joiner"),
)
"""Names that `template_args` cannot have: transformers and its template engine give them values of their own."""


def _check_json(value: Any) -> Any:
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise ValueError("must be plain JSON: no infinity, no NaN, no lone surrogate, no deep nesting") from error
    return value


def _check_args(args: dict[str, Any]) -> dict[str, Any]:
    reserved = [name for name in args if name in RESERVED_ARGS]
    if reserved:
        raise ValueError(f"{reserved[0]} is reserved, because the survey sets it itself; remove it")
    return args


Text = Annotated[str, Field(max_length=100_000)]
Json = Annotated[JsonValue, AfterValidator(_check_json)]

# Tags in brackets are no part of a field's name in messages. Messages of conversations are checked with their row, by
# code that quotes no prompt.
InlinePrompt = Annotated[
    Annotated[Text, Tag("[text]")] | Annotated[list[Json], Field(max_length=1_000), Tag("[conversation]")],
    Discriminator(lambda value: "[conversation]" if isinstance(value, list) else "[text]"),
]
"""A text, or a conversation: a list of {role, content}."""

TemplateArgs = Annotated[
    dict[Annotated[str, Field(pattern=ARG_NAME)], Json], Field(max_length=100), AfterValidator(_check_args)
]
"""Values of a chat template's variables by name."""
