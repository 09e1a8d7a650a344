"""Tokenizing texts with a small real tokenizer: templates, special tokens, the date, and the checks."""

from datetime import date
from typing import Any

import pytest
from support.each import each
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from theodolite.errors import PromptError
from theodolite.spec_parts import NOUN_TEMPLATE, PromptSetSpec
from theodolite_jobs.prompts.tokens import (
    all_positions,
    check_positions,
    check_tokens,
    resolve_template,
    tokenize,
)

SPECIAL = ["<unk>", "<s>", "</s>", "<|system|>", "<|user|>", "<|assistant|>", "<|end|>"]
WORDS = ["hello", "world", "say", "be", "brief", "not", "{", "}", "{}", "{prompt}", "{{", "1", "+", "}}"]
WORDS += ["31", "01", "Dec", "Jan", "1999", "2000", "00:00"]
A_DAY = date(1999, 12, 31)

CHAT = (
    "{{ bos_token }} {% for message in messages %}"
    "<|{{ message['role'] }}|> {{ message['content'] }} <|end|> {% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
CHAT_WITH_DATE = "{{ strftime_now('%d %b %Y') }} " + CHAT
CHAT_WITHOUT_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}" + CHAT
)


def tokenizer_with(chat_template: str | None) -> Any:
    """Return a tokenizer of whole words that begins each text with <s>, as Llama's does."""
    backend = Tokenizer(
        models.WordLevel({word: index for index, word in enumerate(SPECIAL + WORDS)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        unk_token="<unk>",
        bos_token="<s>",
        eos_token="</s>",
        additional_special_tokens=SPECIAL[3:],
        chat_template=chat_template,
    )


def words_of(*prompts: str, chat_template: str | None = CHAT, day: date = A_DAY, **settings: Any) -> list[str]:
    """Return each prompt's tokens as words separated by spaces."""
    tokenizer = tokenizer_with(chat_template)
    prompt_set = PromptSetSpec(source="builtin:harmless", **settings)
    rows = tokenize("nouns", prompts, prompt_set, tokenizer, day).tokens
    assert all(isinstance(row, tuple) and all(type(token) is int for token in row) for row in rows)
    return [" ".join(tokenizer.convert_ids_to_tokens(list(row))) for row in rows]


# Templates


def test_chat_is_the_default_if_the_tokenizer_has_a_chat_template() -> None:
    expected = ["<s> <|user|> hello world <|end|> <|assistant|>"]
    assert words_of("hello world") == words_of("hello world", template="chat") == expected


def test_none_is_the_default_if_the_tokenizer_has_no_chat_template() -> None:
    expected = ["<s> hello world"]
    assert words_of("hello world", chat_template=None) == expected
    assert words_of("hello world", template="none") == expected


def test_a_custom_template_inserts_the_prompt_literally() -> None:
    assert words_of("hello", "world", template="say { {prompt} } {} {{ not") == [
        "<s> say { hello } {} {{ not",
        "<s> say { world } {} {{ not",
    ]


def test_a_custom_template_may_contain_the_prompt_twice() -> None:
    assert words_of("hello", template="{prompt} say {prompt}") == ["<s> hello say hello"]


@each("template", ["chat", "none", "say {prompt}"])
@each("prompt", ["{prompt} {{ 1 + 31 }} {}", "{} {prompt} {"])
def test_a_prompt_that_looks_like_a_template_is_not_changed(template: str, prompt: str) -> None:
    (row,) = words_of(prompt, template=template)
    assert prompt.split() == [word for word in row.split() if word not in {*SPECIAL, "say"}]


def test_system_message_comes_first() -> None:
    expected = ["<s> <|system|> be brief <|end|> <|user|> hello <|end|> <|assistant|>"]
    assert words_of("hello", system="be brief") == expected
    assert words_of("hello", system="be brief", template="chat") == expected


def test_an_empty_system_message_is_still_a_message() -> None:
    assert words_of("hello", system="")[0].startswith("<s> <|system|> <|end|> <|user|>")


@each("settings", [{}, {"template": "none"}, {"template": "say {prompt}"}, {"system": "be brief"}])
def test_special_tokens_are_never_doubled(settings: dict[str, Any]) -> None:
    (row,) = words_of("hello", **settings)
    assert row.split().count("<s>") == 1
    assert row.startswith("<s> ")


@each(
    "prompts, template, index",
    [
        (["hello", "world"], "<s> {prompt}", 0),
        (["hello", "<s> world"], "none", 1),
        (["<s> <|user|> hello <|end|> <|assistant|>"], "none", 0),  # a rendered chat
    ],
)
def test_a_special_token_that_the_tokenizer_adds_too_is_refused(prompts: list[str], template: str, index: int) -> None:
    with pytest.raises(
        PromptError, match=rf"prompts\.nouns: prompt {index} begins with '<s>' twice: .* remove it from"
    ):
        words_of(*prompts, template=template, special_tokens="allow")


def test_a_special_token_that_the_tokenizer_adds_at_the_end_is_refused() -> None:
    tokenizer = tokenizer_with(None)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)]
    )
    prompt_set = PromptSetSpec(source="builtin:harmless", template="{prompt} </s>")
    with pytest.raises(PromptError, match=r"prompt 0 ends with '</s>' twice"):
        tokenize("nouns", ["hello"], prompt_set, tokenizer, A_DAY)


def test_special_tokens_are_not_doubled_if_the_tokenizer_adds_none() -> None:
    tokenizer = tokenizer_with(None)
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    prompt_set = PromptSetSpec(source="builtin:harmless", template="<s> <s> {prompt} </s> </s>")
    (row,) = tokenize("nouns", ["hello"], prompt_set, tokenizer, A_DAY).tokens
    assert tokenizer.convert_ids_to_tokens(list(row)) == ["<s>", "<s>", "hello", "</s>", "</s>"]


@each(
    "chat_template",
    [
        "{{ bos_token }} <|user|> <|assistant|>",  # ignores the message
        "{{ bos_token }} {{ messages[-1]['content'].split()[0] }}",  # ignores a part of it
    ],
)
def test_a_chat_template_that_ignores_a_message_or_a_part_of_it_is_refused(chat_template: str) -> None:
    with pytest.raises(PromptError, match=r"nouns\.template: the chat template leaves out .* template: none"):
        words_of("hello world", "hello world", "hello", chat_template=chat_template)


def test_a_chat_template_may_remove_outer_spaces() -> None:
    trimmed = CHAT.replace("message['content']", "message['content'] | trim")
    assert len(set(words_of("hello", " hello", "hello ", chat_template=trimmed))) == 1


def test_prompts_are_tokenized_independently_and_in_order() -> None:
    prompts = ["hello", "world hello world", "say"]
    assert words_of(*prompts) == [words_of(prompt)[0] for prompt in prompts]


def test_many_prompts_keep_their_order() -> None:
    prompts = ["hello world" if index % 3 else "say" for index in range(20_001)]  # tokenised in parts
    tokenizer = tokenizer_with(None)
    rows = tokenize("nouns", prompts, PromptSetSpec(source="builtin:harmless"), tokenizer, A_DAY).tokens
    each = {text: tuple(tokenizer(text)["input_ids"]) for text in set(prompts)}
    assert rows == [each[prompt] for prompt in prompts]


def test_truncation_and_padding_from_a_tokenizer_file_are_not_applied() -> None:
    tokenizer = tokenizer_with(None)
    tokenizer.backend_tokenizer.enable_truncation(2)
    tokenizer.backend_tokenizer.enable_padding(length=20)
    prompt_set = PromptSetSpec(source="builtin:harmless")
    rows = tokenize("nouns", ["hello", "hello world say"], prompt_set, tokenizer, A_DAY).tokens
    assert [len(row) for row in rows] == [2, 4]


@each(
    "settings, remedy",
    [
        ({"template": "chat"}, "use template: none"),
        ({"system": "be brief"}, "remove system"),
        ({"template": "chat", "system": "be brief"}, "remove system and use template: none"),
    ],
)
def test_chat_is_refused_for_a_tokenizer_without_chat_template(settings: dict[str, Any], remedy: str) -> None:
    with pytest.raises(PromptError, match=rf"prompts\.nouns\.template: .* no chat template; {remedy}$"):
        words_of("hello", chat_template=None, **settings)


def test_the_error_includes_the_message_of_the_template() -> None:
    assert words_of("hello", chat_template=CHAT_WITHOUT_SYSTEM) == words_of("hello")
    with pytest.raises(PromptError, match=r"prompts\.nouns: .* refuses prompt 0: System role not supported"):
        words_of("hello", chat_template=CHAT_WITHOUT_SYSTEM, system="be brief")


@each("quoted", ["messages[0]['content']", "messages[0]", "messages[0]['content'].upper()"])
def test_the_error_does_not_quote_a_prompt(quoted: str) -> None:
    always = "{{ raise_exception('no ' ~ Q) }}"
    for template in (always, "{% if 'hel' in Q|string|lower %}" + always + "{% endif %}{{ messages[0]['content'] }}"):
        with pytest.raises(PromptError, match="refuses") as caught:
            words_of("hello", chat_template=template.replace("Q", quoted))
        assert "hel" not in str(caught.value).lower().replace("prompts.nouns", "")


def test_a_broken_chat_template_is_a_prompt_error() -> None:
    with pytest.raises(PromptError, match=r"prompts\.nouns\.template: .* cannot be read: .* \(its line 1\); mend it"):
        words_of("hello", chat_template="{% for message in messages %}")


@each(
    "settings, chat_template, resolved",
    [
        ({}, CHAT, "chat"),
        ({}, None, "none"),
        ({"system": "be brief"}, CHAT, "chat"),
        ({"template": "none"}, CHAT, "none"),
        ({"template": "say {prompt}"}, CHAT, "say {prompt}"),
        ({"template": "say {prompt}"}, None, "say {prompt}"),
    ],
)
def test_resolve_template_returns_the_template_in_use(
    settings: dict[str, Any], chat_template: str | None, resolved: str
) -> None:
    prompt_set = PromptSetSpec(source="builtin:harmless", **settings)
    assert resolve_template("goals", prompt_set, tokenizer_with(chat_template)) == resolved


@each("chat_template", [CHAT, None])
@each(
    "settings, resolved", [({}, NOUN_TEMPLATE), ({"template": "none"}, "none"), ({"template": "{prompt}"}, "{prompt}")]
)
def test_a_builtin_noun_follows_a_few_words_unless_the_spec_has_a_template(
    chat_template: str | None, settings: dict[str, Any], resolved: str
) -> None:
    prompt_set = PromptSetSpec(source="builtin:nouns", **settings)
    assert resolve_template("nouns", prompt_set, tokenizer_with(chat_template)) == resolved


def test_a_system_message_for_nouns_needs_the_chat_template() -> None:
    prompt_set = PromptSetSpec(source="builtin:nouns", system="be brief")
    assert resolve_template("nouns", prompt_set, tokenizer_with(CHAT)) == "chat"
    with pytest.raises(PromptError, match="no chat template"):
        resolve_template("nouns", prompt_set, tokenizer_with(None))


# The date


def test_a_chat_template_prints_the_date_of_the_survey() -> None:
    assert words_of("hello", chat_template=CHAT_WITH_DATE) == ["31 Dec 1999 <s> <|user|> hello <|end|> <|assistant|>"]


def test_each_survey_has_its_own_date() -> None:
    dates = [A_DAY, date(2000, 1, 1), A_DAY]
    rows = [words_of("hello", chat_template=CHAT_WITH_DATE, day=day)[0] for day in dates]
    assert [" ".join(row.split()[:3]) for row in rows] == ["31 Dec 1999", "01 Jan 2000", "31 Dec 1999"]


def test_the_fixed_time_of_a_date_is_midnight() -> None:
    (row,) = words_of("hello", chat_template="{{ strftime_now('%H:%M') }} " + CHAT)
    assert row.split()[0] == "00:00"


def test_the_date_is_fixed_only_during_tokenization() -> None:
    tokenizer = tokenizer_with("{{ strftime_now('%Y') }} {{ messages[0]['content'] }}")
    tokenize("nouns", ["hello"], PromptSetSpec(source="builtin:harmless"), tokenizer, A_DAY)
    year = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert int(year.split()[0]) >= 2024


# Positions and lengths

LENGTHS_3_5_2 = [(1, 2, 3), (1, 2, 3, 4, 5), (1, 2)]


def test_positions_that_all_prompts_have_pass() -> None:
    check_positions("nouns", [-2, -1], LENGTHS_3_5_2, range(3))
    check_positions("nouns", [], LENGTHS_3_5_2, range(3))


def test_all_positions_start_at_the_first_token_of_the_longest_prompt() -> None:
    assert all_positions(LENGTHS_3_5_2) == (-5, -4, -3, -2, -1)


def test_a_position_before_the_first_token_is_refused_with_the_prompt_index() -> None:
    with pytest.raises(PromptError, match=r"prompts\.nouns: prompt 2 has 2 tokens, so it has no position -3"):
        check_positions("nouns", [-3, -1], LENGTHS_3_5_2, range(3))


def test_a_prompt_may_fill_the_context_but_not_exceed_it() -> None:
    check_tokens("nouns", LENGTHS_3_5_2, range(3), context_length=5, vocabulary_size=6)
    with pytest.raises(
        PromptError, match=r"prompts\.nouns: prompt 1 has 5 tokens, more than .* context of 4; .* too_long$"
    ):
        check_tokens("nouns", LENGTHS_3_5_2, range(3), context_length=4, vocabulary_size=6)


def test_sentences_are_named_by_their_field() -> None:
    with pytest.raises(PromptError, match=r"^words\.sentences: prompt 1 has 5 tokens, .*; shorten or remove it$"):
        check_tokens("sentences", LENGTHS_3_5_2, range(3), context_length=4, vocabulary_size=6)


def test_a_prompt_without_tokens_is_refused_with_its_index() -> None:
    with pytest.raises(PromptError, match=r"prompts\.nouns: prompt 1 has no tokens"):
        check_tokens("nouns", [(1,), ()], range(2), context_length=4, vocabulary_size=6)


def test_a_token_id_without_an_embedding_is_refused() -> None:
    with pytest.raises(PromptError, match=r"prompts\.nouns: the tokenizer gives token id 5, but the model has only 5"):
        check_tokens("nouns", LENGTHS_3_5_2, range(3), context_length=5, vocabulary_size=5)
