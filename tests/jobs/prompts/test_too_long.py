"""Prompts that are longer than the model's context: left out with their partners, or cut without their template."""

import tracemalloc
from datetime import date
from typing import Any, NamedTuple

import pytest
from support.each import each
from support.errors import only_line
from support.tiny_survey import save_model

from theodolite.errors import PromptError
from theodolite.spec import TokenIds
from theodolite.spec_file import parse_spec
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.prompts.tokens import tokenize
from theodolite_jobs.prompts.too_long import fit_context

CHAT = (
    "{{ bos_token }}{% for message in messages %}[{{ message['role'] }}:{{ message['content'] }}]{% endfor %}"
    "{% if add_generation_prompt %}{{ eos_token }}{% endif %}"
)
LONG = "abcdefghijklmnopqrstuvwxyz"
SYSTEM = {"template": "chat", "system": "Be."}


class Fitted(NamedTuple):
    prompts: dict[str, list[str]]
    tokens: dict[str, list[TokenIds]]
    counts: dict[str, dict[str, int]]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A tokenizer of bytes, so that the prompts' numbers of tokens are known."""
    loaded = load_tokenizer(save_model(tmp_path_factory.mktemp("model")), False)
    loaded.chat_template = CHAT
    return loaded


def fitted(
    tokenizer: Any, context_length: int, sets: dict[str, list[str]], contrasts: Any = None, **settings: Any
) -> Fitted:
    """Apply the rule of each set; the values of `settings` are of all sets, or by set."""

    def chosen(name: str) -> dict[str, Any]:
        return {key: value[name] if isinstance(value, dict) else value for key, value in settings.items()}

    prompts = {name: {"source": "inline", "texts": texts, **chosen(name)} for name, texts in sets.items()}
    spec = parse_spec(
        {"model": {"id": "x"}, "prompts": prompts, "contrasts": contrasts or {}, "words": {"sentences": []}}
    )

    def token_ids(name: str, texts: list[str]) -> Any:
        return tokenize(name, texts, spec.sets[name], tokenizer, date(2024, 7, 26))

    tokens = {name: token_ids(name, texts).tokens for name, texts in sets.items()}
    prompts_left, _, counts = fit_context(spec, sets, tokens, context_length, tokenizer, token_ids)
    return Fitted(prompts_left, {name: token_ids(name, texts).tokens for name, texts in prompts_left.items()}, counts)


def text_of(tokenizer: Any, ids: Any) -> str:
    return str(tokenizer.decode(list(ids)))


def test_prompts_stay_as_they_are_if_long_ones_are_refused(tokenizer: Any) -> None:
    found = fitted(tokenizer, 5, {"goals": ["short", LONG]}, template="none")
    assert found.prompts == {"goals": ["short", LONG]}
    assert [len(ids) for ids in found.tokens["goals"]] == [5, 26]
    assert found.counts == {}


@each(
    "settings, before, after",
    [
        ({"template": "none"}, "", ""),
        ({"template": "Say {prompt}!"}, "Say ", "!"),
        (SYSTEM, "<s>[system:Be.][user:", "]</s>"),
    ],
)
@each("rule, rest", [("truncate_left", LONG[-9:]), ("truncate_right", LONG[:9])])
def test_a_prompt_is_cut_and_its_template_is_whole(
    tokenizer: Any, rule: str, rest: str, settings: dict[str, Any], before: str, after: str
) -> None:
    template_tokens = len(tokenizer(before + after)["input_ids"])
    found = fitted(tokenizer, template_tokens + 9, {"goals": ["short", LONG]}, too_long=rule, **settings)
    assert found.prompts["goals"] == ["short", rest]
    assert text_of(tokenizer, found.tokens["goals"][1]) == f"{before}{rest}{after}"
    assert len(found.tokens["goals"][1]) == template_tokens + 9
    assert found.counts["goals"] == {"n_truncated": 1}


@each("rule, rest", [("truncate_left", "ßa"), ("truncate_right", "aß")])
def test_no_character_of_several_tokens_is_cut_in_two(tokenizer: Any, rule: str, rest: str) -> None:
    found = fitted(tokenizer, 4, {"goals": ["aßßßßa"]}, template="none", too_long=rule)
    assert found.prompts["goals"] == [rest]  # ß has two tokens, so that a second ß would be half too long


def test_a_prompt_that_the_template_repeats_is_cut_until_it_fits(tokenizer: Any) -> None:
    found = fitted(tokenizer, 21, {"goals": [LONG]}, template="{prompt}+{prompt}", too_long="truncate_left")
    (ids,) = found.tokens["goals"]
    assert text_of(tokenizer, ids) == f"{LONG[-10:]}+{LONG[-10:]}"


@each("rule", ["truncate_left", "truncate_right"])
def test_a_template_that_is_too_long_alone_is_an_error_that_names_the_prompt(tokenizer: Any, rule: str) -> None:
    with pytest.raises(PromptError) as caught:
        fitted(tokenizer, 20, {"goals": ["", LONG]}, too_long=rule, **SYSTEM)
    assert "prompts.goals: prompt 0 does not fit into the model's context of 20 tokens" in only_line(caught)
    with pytest.raises(PromptError, match="prompt 1 does not fit into the model's context of 4 tokens, even if all"):
        fitted(tokenizer, 4, {"goals": ["a", "   " + 9 * " "]}, template="b{prompt}cd", too_long=rule)


def test_an_error_of_the_rest_names_the_prompt(tokenizer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    refusing = "{% if messages[0]['content'] | length == 9 %}{{ raise_exception('nine') }}{% endif %}" + CHAT
    monkeypatch.setattr(tokenizer, "chat_template", refusing)
    with pytest.raises(PromptError, match=r"goals: prompt 1 cannot be cut: .* refuses the rest"):
        fitted(tokenizer, 19, {"goals": ["a", LONG]}, too_long="truncate_left", template="chat")


def test_a_tokenizer_that_does_not_know_where_tokens_begin_cuts_nothing(tokenizer: Any) -> None:
    class Slow:
        chat_template = None

        def __call__(self, texts: list[str], **options: Any) -> Any:
            if options.pop("return_offsets_mapping", False):
                raise NotImplementedError("return_offset_mapping is not available")
            return tokenizer(texts, **options)

    with pytest.raises(PromptError, match=r"prompt 1 is too long, .* cannot be cut; use too_long: skip"):
        fitted(Slow(), 5, {"goals": ["short", LONG]}, too_long="truncate_left")
    assert fitted(Slow(), 5, {"goals": ["short", LONG]}, too_long="skip").prompts["goals"] == ["short"]


def test_cutting_a_long_prompt_takes_little_memory(tokenizer: Any) -> None:
    text = "ab" * 4_000  # all of its rests together are 32 MB
    tracemalloc.start()
    try:
        found = fitted(tokenizer, 9, {"goals": [text]}, template="none", too_long="truncate_left")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert found.prompts["goals"] == [text[-9:]]
    assert peak < 16 * 2**20


def test_a_conversation_is_left_out_and_not_cut(tokenizer: Any) -> None:
    chats = [[{"role": "user", "content": text}] for text in ("short", LONG)]
    sets: dict[str, list[Any]] = {"goals": chats}
    with pytest.raises(PromptError, match="prompt 1 is a conversation with more tokens than the model's context of 30"):
        fitted(tokenizer, 30, sets, too_long="truncate_left")
    assert fitted(tokenizer, 30, sets, too_long="skip").prompts == {"goals": chats[:1]}


def test_special_tokens_of_a_prompt_that_is_cut_stay_plain_text(tokenizer: Any) -> None:
    found = fitted(tokenizer, 12, {"goals": [f"{LONG}</s>xyz"]}, template="none", too_long="truncate_left")
    assert found.prompts["goals"] == ["vwxyz</s>xyz"]
    assert text_of(tokenizer, found.tokens["goals"][0]) == "vwxyz</s>xyz"
    assert tokenizer.eos_token_id not in found.tokens["goals"][0]


def test_long_prompts_are_left_out(tokenizer: Any) -> None:
    sets = {"goals": ["a", LONG, "b"], "others": [LONG, "c"]}
    found = fitted(tokenizer, 26, sets, template="none", too_long="skip")
    assert found.prompts == sets
    found = fitted(tokenizer, 25, sets, template="none", too_long="skip")
    assert found.prompts == {"goals": ["a", "b"], "others": ["c"]}
    assert [len(ids) for ids in found.tokens["goals"]] == [1, 1]
    assert found.counts == {"goals": {"n_skipped": 1}, "others": {"n_skipped": 1}}


def test_the_partners_of_left_out_prompts_are_left_out_in_every_paired_contrast(tokenizer: Any) -> None:
    sets = {
        "first": ["a0", LONG, "a2", "a3"],
        "second": ["b0", "b1", "b2", "b3"],
        "third": ["c0", "c1", "c2", LONG],
        "alone": ["d0", "d1", "d2", "d3"],
    }
    contrasts = {
        "one": {"positive": "first", "negative": "second", "paired": True},
        "two": {"positive": "third", "negative": "second", "paired": True},
        "unpaired": {"positive": "alone", "negative": "second", "paired": False},
    }
    rules = {"first": "skip", "second": "refuse", "third": "skip", "alone": "skip"}
    found = fitted(tokenizer, 9, sets, contrasts, template="none", too_long=rules)
    assert found.prompts == {
        "first": ["a0", "a2"],
        "second": ["b0", "b2"],
        "third": ["c0", "c2"],
        "alone": ["d0", "d1", "d2", "d3"],
    }
    assert found.counts == {name: {"n_skipped": 2} for name in ("first", "second", "third")}


def test_a_prompt_is_cut_only_if_it_is_not_left_out_with_its_partner(tokenizer: Any) -> None:
    contrasts = {"one": {"positive": "first", "negative": "second", "paired": True}}
    sets = {"first": [LONG, "a", "a"], "second": [LONG, LONG, "b"]}
    rules = {"first": "skip", "second": "truncate_right"}
    found = fitted(tokenizer, 3, sets, contrasts, template="none", too_long=rules)
    assert found.prompts == {"first": ["a", "a"], "second": ["abc", "b"]}
    assert found.counts == {"first": {"n_skipped": 1}, "second": {"n_skipped": 1, "n_truncated": 1}}


def test_a_set_of_long_prompts_alone_is_an_error(tokenizer: Any) -> None:
    with pytest.raises(PromptError, match=r"prompts\.goals\.too_long: skip leaves out all 2 prompts, .* context of 25"):
        fitted(tokenizer, 25, {"goals": [LONG, LONG]}, template="none", too_long="skip")
