"""The options of chats in a spec, and what no option may have."""

import json
from typing import Any

import pytest
from support.each import each
from support.spec_texts import MODEL, parse, prompts

from theodolite.errors import SpecError
from theodolite.prompt_values import RESERVED_ARGS
from theodolite.spec_file import parse_spec


def of_set(**options: Any) -> Any:
    given = {"source": "inline", "texts": ["a"], **options}
    return parse_spec({"model": {"id": "org/name"}, "prompts": {"goals": given}})


@each(
    "options",
    [
        {"template_args": {"enable_thinking": False, "reasoning_effort": "low", "n": [1, 2.5, None, {"a": True}]}},
        {"prefill": "<think>\n\n</think>\n\n"},
        {"special_tokens": "allow"},
        {"texts": [[{"role": "user", "content": "Hi"}]]},
    ],
)
def test_options_change_the_digest_and_survive_json(options: dict[str, Any]) -> None:
    spec = of_set(**options)
    assert spec.digest() != of_set().digest()
    again = parse_spec(json.loads(spec.canonical()))
    assert again == spec.model_copy(update={"name": None})
    assert again.digest() == spec.digest()


def test_options_at_their_defaults_leave_the_digest_as_it_is() -> None:
    default = of_set(template_args={}, prefill=None, special_tokens="text")
    assert default.digest() == of_set().digest()
    named = parse(MODEL.replace("}", ", template: rag}") + "prompts: {goals: {source: 'builtin:nouns'}}")
    assert named.model.template == "rag"
    assert named.digest() != parse(prompts("limit: null")).digest()


@each("name", RESERVED_ARGS)
def test_reserved_names_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match=rf"goals\.template_args: {name} is reserved, .* remove it"):
        of_set(template_args={name: 1})


@each(
    "options, message",
    [
        ({"template_args": {"a b": 1}}, "the name of a variable has letters, digits and _"),
        ({"template_args": {"1a": 1}}, "begins with no digit"),
        ({"template_args": {"a": float("nan")}}, "template_args.a: given nan; must be plain JSON"),
        ({"template_args": {"a": [float("inf")]}}, "must be plain JSON"),
        ({"template_args": {"a": "\ud800"}}, "must be plain JSON"),
        ({"template_args": ["a"]}, "template_args: given ['a']; must be a mapping"),
        ({"prefill": ""}, "prefill: given ''"),
        ({"special_tokens": "split"}, "should be 'text' or 'allow'"),
        (
            {"template": "none", "prefill": "Sure"},
            "prefill is given, but template is 'none'; the beginning of an answer needs",
        ),
        (
            {"template": "Say {prompt}", "template_args": {"a": 1}},
            "a variable of the chat template needs template: chat",
        ),
        ({"texts": [5]}, "goals.texts.0: given a value of type int; must be a text, or a list of messages: [[{role"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        of_set(**options)
    assert message in str(caught.value)


@each("texts", ["A secret", [{"role": "user", "content": "A secret"}], [["A secret", float("nan")]]])
def test_no_message_quotes_a_prompt(texts: Any) -> None:
    with pytest.raises(SpecError) as caught:
        of_set(texts=texts)
    assert "goals.texts" in str(caught.value)
    assert "given a value of type" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_set_whose_name_is_texts_has_its_values_in_messages() -> None:
    with pytest.raises(SpecError, match=r"prompts\.texts\.limit: given 'many'"):
        parse(f"{MODEL}prompts: {{texts: {{source: 'builtin:nouns', limit: many}}}}")


def test_a_long_template_is_shortened_in_the_message() -> None:
    with pytest.raises(SpecError) as caught:
        of_set(template="{prompt}" + "x" * 5_000, prefill="Sure")
    assert "xxx…; the beginning" in str(caught.value)
    assert len(str(caught.value)) < 300
