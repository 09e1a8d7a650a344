"""Rendering prompts with chat templates: variables, lists of parts, continued answers, and what is left out."""

import inspect
from datetime import date
from typing import Any

import pytest
from support.chat_tokenizers import CHATML, OF_PARTS, SYSTEM_TEXT_USER_PARTS, THINKING, byte_tokenizer
from support.each import each
from support.sentences import assert_says
from transformers import PreTrainedTokenizerFast

from theodolite.errors import PromptError
from theodolite.prompt_values import RESERVED_ARGS
from theodolite.spec_parts import PromptSetSpec
from theodolite_jobs.prompts.chats import open_chat
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.tokens import tokenize

SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": "Name a tool."}
ANSWER = {"role": "assistant", "content": "A hammer"}
REMEDY = "change the prompt, or use template: none, or a text with {prompt}"


def texts_of(*prompts: Prompt, template: Any = CHATML, **options: Any) -> list[str]:
    """Return the decoded tokens of each prompt."""
    tokenizer = byte_tokenizer(template)
    prompt_set = PromptSetSpec(source="builtin:harmless", **options)
    return [tokenizer.decode(ids) for ids in tokenize("goals", prompts, prompt_set, tokenizer, date(2000, 1, 1)).tokens]


def refused(*prompts: Prompt, **options: Any) -> str:
    """Return the error of a set of prompts."""
    with pytest.raises(PromptError) as caught:
        texts_of(*prompts, **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@each("blanks", [" ", "\n"])
def test_the_end_of_a_continued_answer_stays_or_is_refused(blanks: str) -> None:
    begun = [USER, {"role": "assistant", "content": f"It is{blanks}"}]
    assert texts_of(begun)[0].endswith(f"It is{blanks}")
    trimmed = CHATML.replace("m['content']", "m['content'] | trim")
    assert texts_of([USER, {"role": "assistant", "content": "It is"}], template=trimmed)[0].endswith("It is")
    assert_says(refused(begun, template=trimmed), "removes the spaces or line breaks at the end … prompt 0")


# Variables and the beginning of the answer


def test_variables_reach_the_template() -> None:
    assert texts_of("Hi", template=THINKING)[0].endswith("<|im_start|>assistant\n")
    (text,) = texts_of("Hi", template=THINKING, template_args={"enable_thinking": False})
    assert text.endswith("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@each(
    "template",
    [
        "{% macro show(m) %}{% if loud %}!{% endif %}{{ m['content'] }}{% endmacro %}{{ show(messages[0]) }}",
        "{% if loud is not defined %}{% set loud = true %}{% endif %}{{ messages[0]['content'] }}{{ loud }}",
        "{% for m in messages %}{{ m['content'] }}{% if loud.very %}!{% endif %}{% endfor %}",
    ],
)
def test_a_variable_may_be_read_anywhere_in_the_template(template: str) -> None:
    assert texts_of("Hi", template=template, template_args={"loud": {"very": True}})[0].startswith(("Hi", "!Hi"))


def test_a_variable_that_the_template_does_not_read_is_refused() -> None:
    message = refused("Hi", template=THINKING, template_args={"enable_thinkin": False})
    assert_says(message, "template_args: … does not read 'enable_thinkin' … allowed: enable_thinking")
    assert "allowed: none" in refused("Hi", template_args={"enable_thinking": False})
    inner = "{% set enable_thinking = 1 %}{{ messages[0]['content'] }}{{ enable_thinking }}"
    assert "does not read" in refused("Hi", template=inner, template_args={"enable_thinking": False})


def test_every_argument_of_transformers_is_reserved() -> None:
    parameters = inspect.signature(PreTrainedTokenizerFast.apply_chat_template).parameters
    assert {*parameters} - {"kwargs"} <= {*RESERVED_ARGS}


def test_a_prefill_follows_the_generation_prompt_and_its_special_tokens_are_special() -> None:
    tokenizer = byte_tokenizer()
    prompt_set = PromptSetSpec(source="builtin:harmless", prefill="Sure<|im_end|>")
    (ids,) = tokenize("goals", ["Hi"], prompt_set, tokenizer, date(2000, 1, 1)).tokens
    assert tokenizer.decode(ids).endswith("<|im_start|>assistant\nSure<|im_end|>")
    assert ids[-1] == tokenizer.eos_token_id


@each("prompt", ["Hi", "Hi<|im_end|>"])  # the second is encoded by another way
def test_a_prefill_that_changes_the_last_token_of_the_template_is_refused(prompt: str) -> None:
    tokenizer = byte_tokenizer(merges=[("Ċ", "Ċ")])
    prompt_set = PromptSetSpec(source="builtin:harmless", prefill="\n\nSure")
    with pytest.raises(PromptError, match=r"prompts\.goals\.prefill: its first .* one token in prompt 0; begin"):
        tokenize("goals", [prompt], prompt_set, tokenizer, date(2000, 1, 1))
    kept = PromptSetSpec(source="builtin:harmless", prefill="Sure\n\n")
    (ids,) = tokenize("goals", [prompt], kept, tokenizer, date(2000, 1, 1)).tokens
    assert [tokenizer.decode([one]) for one in ids[-6:]] == ["\n", *"Sure", "\n\n"]


@each("options", [{"prefill": "Sure"}, {"template_args": {"a": 1}}])
def test_options_of_chats_need_a_chat_template(options: dict[str, Any]) -> None:
    message = refused("Hi", template=None, **options)
    assert message.endswith(f"no chat template; remove {next(iter(options))}")


# What templates leave out or change


@each("prompt", ["Hi", "assistant"])  # the second is in the template's own text
def test_a_template_that_ignores_the_message_is_refused_for_a_single_prompt(prompt: str) -> None:
    message = refused(prompt, template="<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n")
    assert "goals.template: the chat template leaves out the content of messages with the role user;" in message


def test_a_template_that_ignores_the_system_message_is_refused() -> None:
    only_user = "{% for m in messages %}{% if m['role'] == 'user' %}{{ m['content'] }}{% endif %}{% endfor %}"
    assert texts_of("Hi", template=only_user) == ["Hi"]
    assert "the role system" in refused("Hi", template=only_user, system="Be brief.")
    assert "the role assistant" in refused([USER, ANSWER, USER], template=only_user)


@each("change", ["upper", "replace('a', 'b')", "truncate(9, true)", "reverse"])
def test_a_template_that_changes_a_prompt_is_refused_with_its_number(change: str) -> None:
    template = f"{{% for m in messages %}}{{% if 'x' in m.content %}}{{{{ m.content | {change} }}}}{{% else %}}"
    message = refused("Hello", "An axe and a saw", template=template + "{{ m.content }}{% endif %}{% endfor %}")
    assert "leaves out or changes message 0 (user) of prompt 1;" in message
    assert "axe" not in message


def test_a_template_that_removes_a_part_of_an_earlier_turn_is_refused() -> None:
    without_thoughts = "{% for m in messages %}{{ m.content.split('</think>')[-1] }}|{% endfor %}"
    thought = {"role": "assistant", "content": "<think>hm</think>A saw"}
    assert texts_of([USER, ANSWER, USER], template=without_thoughts)
    assert "message 1 (assistant) of prompt 0" in refused([USER, thought, USER], template=without_thoughts)


@each("shown", ["m.content | trim", "m.content | tojson", "m.content | tojson(ensure_ascii=true)"])
def test_a_template_may_remove_outer_spaces_and_write_json(shown: str) -> None:
    template = "{% for m in messages %}{{ " + shown + " }}{% endfor %}"
    assert len(texts_of(' She said: "é\n', template=template)) == 1


# Contents as lists of parts


def test_a_template_gets_lists_of_parts_if_it_leaves_out_texts() -> None:
    assert texts_of("Name a tool.", template=OF_PARTS) == ["user: Name a tool.assistant:"]
    assert texts_of([SYSTEM, USER, ANSWER], template=OF_PARTS) == [
        "system: Be brief.user: Name a tool.assistant: A hammer"
    ]


def test_only_the_roles_whose_text_is_left_out_have_parts() -> None:
    tokenizer = byte_tokenizer(SYSTEM_TEXT_USER_PARTS)
    prompt_set = PromptSetSpec(source="builtin:harmless", system="Be brief.")
    found = tokenize("goals", ["Name a tool."], prompt_set, tokenizer, date(2000, 1, 1))
    assert tokenizer.decode(found.tokens[0]) == "Be brief.|Name a tool.|"
    assert found.parts == ("user",)


def test_a_template_that_shows_texts_gets_texts() -> None:
    both = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}parts{% endif %}{% endfor %}"
    chat = open_chat("goals", ["Hi"], PromptSetSpec(source="builtin:harmless"), byte_tokenizer(both))
    assert not chat.parts


def test_a_template_that_refuses_texts_gets_parts() -> None:
    strict = "{% if messages[0].content is string %}{{ raise_exception('parts') }}{% endif %}" + OF_PARTS
    assert texts_of("Hi", template=strict) == ["user: Hiassistant:"]
    never = "{{ raise_exception('never') }}"
    assert refused("Hi", template=never).endswith(f"the model's chat template refuses prompt 0: never; {REMEDY}")


@each("printed", ["m.content", "m.content | tojson"])
def test_a_list_of_parts_that_is_printed_is_no_text(printed: str) -> None:
    """Only the system message of these templates has parts; they refuse its text."""
    strict = (
        "{% for m in messages %}{% if m.role == 'system' %}{% if m.content is string %}{{ raise_exception('no') }}"
        "{% endif %}{{ m.content[0].text }}|{% else %}{{ " + printed + " }}|{% endif %}{% endfor %}"
    )
    (text,) = texts_of("Hi", template=strict, system="Be brief.")
    assert text.replace('"', "") == "Be brief.|Hi|"


def test_a_template_that_only_prints_parts_is_refused() -> None:
    printing = "{% if messages[0].content is string %}{{ raise_exception('no') }}{% endif %}{{ messages[0].content }}"
    assert "leaves out the content of messages with the role user" in refused("Hi", template=printing)


# Conversations


def test_the_turns_of_a_conversation_are_rendered_in_order() -> None:
    (text,) = texts_of([SYSTEM, USER, ANSWER, USER])
    turns = [SYSTEM, USER, ANSWER, USER]
    expected = "".join(f"<|im_start|>{one['role']}\n{one['content']}<|im_end|>\n" for one in turns)
    assert text == f"{expected}<|im_start|>assistant\n"


def test_a_last_answer_is_continued() -> None:
    assert texts_of([USER, ANSWER])[0].endswith("<|im_start|>assistant\nA hammer")


def test_a_text_equals_a_conversation_of_one_message() -> None:
    assert texts_of("Name a tool.", system="Be brief.") == texts_of([SYSTEM, USER])
    assert texts_of([USER], system="Be brief.") == texts_of([SYSTEM, USER])


def test_a_conversation_must_not_contradict_the_options_of_its_set() -> None:
    assert "prompt 1 has a system message of its own" in refused([USER], [SYSTEM, USER], system="Be kind.")
    assert "prompt 1 ends with a message of the assistant" in refused([USER], [USER, ANSWER], prefill="Sure")


def test_an_order_that_the_template_refuses_is_named_by_its_prompt() -> None:
    alternating = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHATML
    message = refused([USER], [{"role": "assistant", "content": "Secret"}, USER], template=alternating)
    assert message == f"prompts.goals: the model's chat template refuses prompt 1: user first; {REMEDY}"


@each("template", ["none", "Say {prompt}"])
def test_conversations_need_the_chat_template(template: str) -> None:
    tokenizer, prompt_set = byte_tokenizer(), PromptSetSpec(source="builtin:harmless", template=template)
    with pytest.raises(PromptError, match=r"goals\.template: the template is .* which need a chat template"):
        tokenize("goals", [[USER]], prompt_set, tokenizer, date(2000, 1, 1))


def test_a_long_template_is_shortened_in_the_message() -> None:
    prompt_set = PromptSetSpec(source="builtin:harmless", template="{prompt}" + "x" * 5_000)
    with pytest.raises(PromptError, match="xxx…, and the prompts are conversations") as caught:
        tokenize("goals", [[USER]], prompt_set, byte_tokenizer(), date(2000, 1, 1))
    assert len(str(caught.value)) < 300


def test_a_base_model_refuses_conversations() -> None:
    assert "tokenizer has no chat template, and the prompts are conversations" in refused([USER], template=None)
