"""Render prompts with a model's chat template, and refuse a template that leaves out a message."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from itertools import chain, combinations
from json import dumps
from typing import Any
from unittest import mock

from theodolite.errors import PromptError, one_line
from theodolite.prompt_values import RESERVED_ARGS
from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.conversations import Message, Prompt

_OTHER_TEMPLATE = "use template: none, or a text with {prompt}"


@dataclass(frozen=True)
class Chat:
    """How the prompts of a set become texts: the tokenizer with its chat template, and the set's options."""

    name: str
    tokenizer: Any
    system: str | None
    args: Mapping[str, Any]
    prefill: str
    parts: frozenset[str] = frozenset()  # the roles whose content the template gets as a list of parts

    def messages(self, index: int, prompt: Prompt) -> list[Message]:
        """Return the messages of a prompt, with the set's system message.

        Raises:
            PromptError: a conversation contradicts `system` or `prefill`.
        """
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
        where = f"prompts.{self.name}: prompt {index}"
        if self.system is not None:
            if any(message["role"] == "system" for message in messages):
                raise PromptError(f"{where} has a system message of its own, and the set has `system`; remove one")
            messages = [{"role": "system", "content": self.system}, *messages]
        if self.prefill and messages[-1]["role"] == "assistant":
            raise PromptError(
                f"{where} ends with a message of the assistant, which the model continues, and the set has `prefill`; "
                "remove the message or `prefill`"
            )
        return messages

    def render(self, index: int, prompt: Prompt, change: Callable[[str], str] = str) -> str:
        """Return a prompt with its template. A last message of the assistant is continued.

        Args:
            index: the number of the prompt, for messages.
            prompt: the prompt.
            change: changes the content of each message first.

        Raises:
            PromptError: the template refuses the messages, or leaves out or changes one. No message is quoted.
        """
        messages = [{**one, "content": change(one["content"])} for one in self.messages(index, prompt)]
        try:
            text = self._apply(messages)
        # Templates are programs of the model's authors and may raise anything, e.g. for a system message.
        except Exception as error:
            # Error messages end up in logs, so they must not quote a prompt: show only an error that "x" causes too.
            reason = ", but not if each message is 'x'; its error is hidden, because it may quote the prompt"
            try:
                self._apply([{**message, "content": "x"} for message in messages])
            except Exception as of_x:
                reason = f": {one_line(of_x)}"
            raise PromptError(
                f"prompts.{self.name}: the model's chat template refuses prompt {index}{reason}; change the prompt, "
                f"or {_OTHER_TEMPLATE}"
            ) from error
        for number, message in enumerate(messages):
            if not _contains(text, message["content"]):
                raise PromptError(
                    f"prompts.{self.name}.template: the chat template leaves out or changes message {number} "
                    f"({message['role']}) of prompt {index}; change the prompt, or {_OTHER_TEMPLATE}"
                )
        content = messages[-1]["content"]
        blanks = content[len(content.rstrip()) :]
        if messages[-1]["role"] == "assistant" and not text.endswith(blanks):
            raise PromptError(
                f"prompts.{self.name}.template: the chat template removes the spaces or line breaks at the end of the "
                f"answer that prompt {index} begins; remove them, or {_OTHER_TEMPLATE}"
            )
        return text + self.prefill

    def dropped(self, roles: Sequence[str]) -> frozenset[str]:
        """Return the roles whose content is not in the text of a chat of these roles."""
        texts = [f"theodolite{number}probe" for number in range(len(roles))]
        rendered = self._apply([{"role": role, "content": text} for role, text in zip(roles, texts, strict=True)])
        return frozenset(role for role, text in zip(roles, texts, strict=True) if not _shows(rendered, text))

    def _apply(self, messages: Sequence[Message]) -> str:
        sent: list[dict[str, Any]] = [
            {**one, "content": [{"type": "text", "text": one["content"]}]} if one["role"] in self.parts else one
            for one in messages
        ]
        is_continued = messages[-1]["role"] == "assistant"
        end = {"continue_final_message": True} if is_continued else {"add_generation_prompt": True}
        text = str(self.tokenizer.apply_chat_template(sent, tokenize=False, **end, **self.args))
        text.encode()  # raises for half of a surrogate pair, which JSON can spell
        return text


def open_chat(name: str, prompts: Iterable[Prompt], prompt_set: PromptSetSpec, tokenizer: Any) -> Chat:
    """Return how the prompts of the set `name` are rendered.

    The contents are texts. A role whose text the template leaves out gets a list of parts instead, if this helps.

    Raises:
        PromptError: the template reads no such variable as `template_args` has, or leaves out the messages of a role.
    """
    _check_template(name, prompt_set.template_args, tokenizer.chat_template)
    prefill = prompt_set.prefill or ""
    chat = Chat(name, tokenizer, prompt_set.system, prompt_set.template_args, prefill)
    shapes = {tuple(one["role"] for one in chat.messages(index, prompt)) for index, prompt in enumerate(prompts)}
    return replace(chat, parts=_roles_as_parts(chat, sorted(shapes)))


def _roles_as_parts(chat: Chat, shapes: Sequence[Sequence[str]]) -> frozenset[str]:
    """Return the smallest set of roles that need parts, so that the template shows the texts of all roles."""
    roles = sorted({role for shape in shapes for role in shape})
    first_dropped = None
    for chosen in chain.from_iterable(combinations(roles, size) for size in range(len(roles) + 1)):
        parts = frozenset(chosen)
        try:
            dropped = frozenset[str]().union(*map(replace(chat, parts=parts).dropped, shapes))
        # As in `render`: a template may raise anything, for example if it expects parts.
        except Exception:
            continue
        if not dropped:
            return parts
        first_dropped = first_dropped or dropped
    if first_dropped is None:
        return frozenset()  # rendering the prompts raises the error of the template
    raise PromptError(
        f"prompts.{chat.name}.template: the chat template leaves out the content of messages with the role "
        f"{' and '.join(sorted(first_dropped))}; remove these messages, or {_OTHER_TEMPLATE}"
    )


def _shows(rendered: str, text: str) -> bool:
    """Return whether a rendered chat has a text; a list of parts that is printed as Python or JSON does not count."""
    printed = re.compile(rf"""['"]text['"]\s*:\s*['"]{text}['"]""")
    return text in printed.sub("", rendered)


def _contains(rendered: str, content: str) -> bool:
    """Return whether a rendered chat has a content: without spaces at its ends, or as the text of a JSON string."""
    text = content.strip()
    return text in rendered or any(dumps(text, ensure_ascii=ascii)[1:-1] in rendered for ascii in (False, True))


def _check_template(name: str, args: Mapping[str, Any], template: str) -> None:
    """Raise PromptError if the template is no program, or never reads a variable, which then has no effect."""
    if not template:  # the estimate has an empty one in place of a tokenizer that it cannot load
        return
    from jinja2.meta import find_undeclared_variables
    from transformers.utils.chat_template_utils import _compile_jinja_template

    try:
        read = find_undeclared_variables(_compile_jinja_template(template).environment.parse(template))
    # jinja2's own errors, and those of Python for code that it should not have made.
    except Exception as error:
        line = f" (its line {error.lineno})" if hasattr(error, "lineno") else ""
        raise PromptError(
            f"prompts.{name}.template: the model's chat template cannot be read: {one_line(error)}{line}; mend it, or "
            f"{_OTHER_TEMPLATE}"
        ) from error
    if unread := [one for one in args if one not in read]:
        allowed = sorted(one for one in read if one not in RESERVED_ARGS and not one.endswith("_token"))
        raise PromptError(
            f"prompts.{name}.template_args: the chat template does not read {unread[0]!r}, so it would have no effect; "
            f"allowed: {', '.join(allowed) or 'none'}"
        )


@contextmanager
def fixed_date(day: date) -> Iterator[None]:
    """Fix the date that chat templates print; transformers has no setting for it."""
    from transformers.utils import chat_template_utils

    with mock.patch.object(chat_template_utils, "datetime") as clock:
        clock.now.return_value = datetime.combine(day, time())
        yield
