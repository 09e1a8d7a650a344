"""Convert texts to token ids: chat templates with a fixed date, and the checks that need no weights."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date, datetime, time
from typing import Any, Literal
from unittest import mock

from theodolite.errors import PromptError
from theodolite.spec import PromptSetSpec, TokenIds


def tokenize(
    name: str, prompts: Sequence[str], prompt_set: PromptSetSpec, tokenizer: Any, template_date: date
) -> list[TokenIds]:
    """Return one tuple of token ids for each prompt.

    A rendered chat already contains its special tokens, so the tokenizer adds none. With `template: none`, or a
    template of the user's own, the tokenizer adds its default special tokens.

    Args:
        name: the set's name, for messages.
        prompts: the texts.
        prompt_set: selects the template; the default is the tokenizer's chat template if it has one.
        tokenizer: a Hugging Face tokenizer.
        template_date: the current date for chat templates, so that a survey gives the same tokens on every day.

    Raises:
        PromptError: the tokenizer has no chat template, or the template refuses the messages.
    """
    template = resolve_template(name, prompt_set, tokenizer)
    if template == "chat":
        with _fixed_date(template_date):
            texts = [_render_chat(name, prompt, prompt_set.system, tokenizer) for prompt in prompts]
    elif template == "none":
        texts = list(prompts)
    else:
        texts = [template.replace("{prompt}", prompt) for prompt in prompts]
    encoded = tokenizer(texts, add_special_tokens=template != "chat")["input_ids"]
    return [tuple(ids) for ids in encoded]


def resolve_template(name: str, prompt_set: PromptSetSpec, tokenizer: Any) -> str:
    """Return `chat`, `none` or the user's own template; raises PromptError if there is no chat template."""
    has_chat = getattr(tokenizer, "chat_template", None) is not None
    wants_chat = prompt_set.template == "chat" or prompt_set.system is not None
    if wants_chat and not has_chat:
        raise PromptError(f"prompts.{name}.template: this model's tokenizer has no chat template; use template: none")
    return prompt_set.template or ("chat" if has_chat else "none")


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


def check_lengths(name: str, tokens: Sequence[TokenIds], context_length: int) -> None:
    """Raise PromptError for a prompt without tokens, or with more than the model's context holds."""
    for index, ids in enumerate(tokens):
        if not ids:
            raise PromptError(f"prompts.{name}: prompt {index} has no tokens; remove it")
        if len(ids) > context_length:
            raise PromptError(
                f"prompts.{name}: prompt {index} has {len(ids)} tokens, more than the model's context of "
                f"{context_length}; shorten or remove it"
            )


def check_vocabulary(name: str, tokens: Sequence[TokenIds], vocabulary_size: int) -> None:
    """Raise PromptError for a token id without an embedding: the tokenizer belongs to another model."""
    largest = max((max(ids, default=0) for ids in tokens), default=0)
    if largest >= vocabulary_size:
        raise PromptError(
            f"prompts.{name}: the tokenizer gives token id {largest}, but the model has only {vocabulary_size} token "
            "embeddings; use this model's own tokenizer"
        )


@contextmanager
def _fixed_date(day: date) -> Iterator[None]:
    """Give chat templates, some of which print today's date, a fixed date; transformers has no setting for it."""
    from transformers.utils import chat_template_utils

    with mock.patch.object(chat_template_utils, "datetime") as clock:
        clock.now.return_value = datetime.combine(day, time())
        yield


def _render_chat(name: str, prompt: str, system: str | None, tokenizer: Any) -> str:
    messages = [{"role": "system", "content": system}] if system is not None else []
    messages.append({"role": "user", "content": prompt})
    try:
        return _templated(messages, tokenizer)
    # Templates are programs of the model's authors and may raise anything, e.g. for a system message.
    except Exception as error:
        raise PromptError(f"prompts.{name}: {_refusal(messages, tokenizer)}") from error


def _templated(messages: Sequence[dict[str, str]], tokenizer: Any) -> str:
    return str(tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True))


def _refusal(messages: Sequence[dict[str, str]], tokenizer: Any) -> str:
    """Return why a chat template refuses messages, without quoting them: error messages end up in logs.

    The template is rendered again with "x" as the content. The message includes only an error of that second attempt,
    which cannot quote a prompt.
    """
    try:
        _templated([{**message, "content": "x"} for message in messages], tokenizer)
    # As above: a template may raise anything.
    except Exception as error:
        return f"the model's chat template refuses the prompt: {error}"
    return "the model's chat template refuses this prompt, but not the prompt 'x'; its error is hidden: it may quote it"
