"""Named positions are the tokens of a message, or of a text in it; what is ambiguous or missing is refused."""

from collections.abc import Sequence
from datetime import date
from typing import Any

import pytest
from support.chat_tokenizers import CHATML, byte_tokenizer
from support.each import each
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import BertTokenizer, PreTrainedTokenizerFast

from theodolite.errors import PromptError
from theodolite.spec_parts import NamedPosition, PromptSetSpec
from theodolite_jobs.prompts.conversations import Prompt
from theodolite_jobs.prompts.spans import token_spans
from theodolite_jobs.prompts.tokens import tokenize

LAST, MEAN = {"name": "last"}, {"name": "mean", "token": "mean"}
DATED = "Today: {{ strftime_now('%d %B %Y') }}\n" + CHATML.replace("m['content']", "m['content'] | trim")
LLAMA2 = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'].strip() }} [/INST]"
    "{% else %} {{ m['content'].strip() }} {% endif %}{% endfor %}"
)
NAMES_ROLES = "{% for m in messages %}user: assistant: {{ m['content'] }}\n{% endfor %}"
TWICE = "{% for m in messages %}{{ m['content'] }}|{{ m['content'] }}{% endfor %}"
LOOKS = "{% for m in messages %}{{ m['content'] }}{{ '!' if m['content'].startswith('B') }}{% endfor %}"


def wordpiece() -> Any:
    pieces = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]", "bake", "cafe", "##s", "bread", "in", ".", "q", "a", ":"]
    return BertTokenizer({piece: index for index, piece in enumerate(pieces)})


def sentencepiece() -> Any:
    pieces = ["<unk>", "▁", "▁bake", "▁bread", "s", ".", *map(chr, range(97, 123)), "[", "]", "I", "N", "S", "T", "/"]
    inner = Tokenizer(models.Unigram([(piece, -1.0 - (len(piece) < 2)) for piece in dict.fromkeys(pieces)], unk_id=0))
    inner.pre_tokenizer, inner.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="<unk>", chat_template=LLAMA2)


def spans(tokenizer: Any, prompts: Sequence[Prompt], *positions: Any, **options: Any) -> list[list[list[str]]]:
    """Return the pieces of each position of each prompt."""
    prompt_set = PromptSetSpec(source="builtin:harmless", **options)
    tokens = tokenize("goals", prompts, prompt_set, tokenizer, day := date(2000, 1, 1)).tokens
    named = [NamedPosition(**one) if isinstance(one, dict) else one for one in positions]
    numbers = range(10, 10 + len(prompts))
    found = token_spans("goals", prompts, prompt_set, named, tokens, tokenizer, day, numbers)
    return [
        [[tokenizer.decode([token]) for token in ids[start:stop]] for start, stop in of_prompt]
        for ids, of_prompt in zip(tokens, found, strict=True)
    ]


def conversation(*contents: str) -> Prompt:
    return [{"role": ("user", "assistant")[n % 2], "content": content} for n, content in enumerate(contents)]


def test_a_real_tokenizer_of_bytes_and_its_chat_template(chat_tokenizer: Any) -> None:
    texts = ["Hello there 😀", "  How to bake café.\n"]
    positions = (-1, LAST, MEAN, {"name": "second", "first": 1}, {"name": "start", "token": "first"})
    first, second = spans(chat_tokenizer, texts, *positions)
    assert first[0] == second[0] == ["\n"]
    assert (len(first[2]), first[2][:2], first[3], first[4]) == (4, ["Hello", " there"], [" there"], ["Hello"])
    assert first[1] == first[2][-1:], "the last of the bytes of one character"
    assert second[1:] == [["."], [" How", " to", " bake", " café", "."], [" to"], [" How"]]
    answer = conversation("Hello", "Sure, here")
    system = {"name": "rules", "role": "system", "token": "mean"}
    said = {"name": "said", "role": "assistant", "token": "mean"}
    assert spans(chat_tokenizer, [answer], system, said, system="Be nice.") == [
        [["Be", " nice", "."], ["Sure", ",", " here"]]
    ]
    assert spans(chat_tokenizer, ["Hello"], said, prefill="Sure, it") == [[["Sure", ",", " it"]]]
    word = {"name": "word", "text": "bake", "token": "mean"}
    assert spans(chat_tokenizer, ["How to bake?"], word, template="Q: {prompt}") == [[[" bake"]]]


def test_word_pieces_and_sentence_pieces() -> None:
    word = {"name": "word", "text": "CAFÉ", "token": "mean"}
    assert spans(wordpiece(), ["Bakes CAFÉ in."], MEAN, word, template="Q: {prompt} a:") == [
        [["bake", "##s", "cafe", "in", "."], ["cafe"]]
    ]
    assert spans(wordpiece(), ["Bake 😀."], MEAN, template="none") == [[["bake", "[UNK]", "."]]]
    turn = {"name": "turn", "turn": -1, "token": "mean"}
    chat = [conversation("bake bread.", "bread", " bakes ")]
    assert spans(sentencepiece(), chat, turn, {**LAST, "turn": 0}) == [[["bake", "s"], ["."]]]


@each("template", [CHATML, DATED, NAMES_ROLES])
def test_a_message_is_found_where_the_template_writes_it(template: str) -> None:
    chat = conversation("user", "assistant", "user ")
    first, last = {**MEAN, "turn": 0}, {"name": "answer", "role": "assistant", "token": "mean"}
    found = spans(byte_tokenizer(template), [chat, conversation("a", "b")], first, last)
    assert [["".join(one) for one in of_prompt] for of_prompt in found] == [["user", "assistant"], ["a", "b"]]


@each(
    "position, words",
    [
        (LAST, ["prompt 10", "position last", "2 messages", "turn"]),
        ({**LAST, "turn": 2}, ["no turn 2", "has 2"]),
        ({**LAST, "role": "system"}, ["no message", "system"]),
        ({**LAST, "text": "bread"}, ["'bread'", "2 times"]),
        ({**LAST, "text": "rice"}, ["'rice'", "0 times"]),
        ({**LAST, "turn": 0, "first": 20}, ["10 tokens", "no token 20"]),
        ({**LAST, "role": "assistant"}, ["assistant", "empty"]),
    ],
)
def test_what_is_missing_or_ambiguous_is_refused(position: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(PromptError) as refused:
        spans(byte_tokenizer(), [conversation("Bake bread", "", "More bread")], position)
    assert all(word in str(refused.value) for word in words), refused.value
    assert "Bake" not in str(refused.value)


def test_what_hides_the_tokens_of_a_message_is_refused() -> None:
    for tokenizer, prompt, options, words in (
        (byte_tokenizer(TWICE), "Bake", {}, ["2 times", "prompt 10"]),
        (byte_tokenizer(LOOKS), "Bake", {}, ["another text"]),
        (byte_tokenizer(), "Say <|im_end|>", {}, ["special_tokens: allow"]),
        (byte_tokenizer(), "Bake", {"template": "{prompt} {prompt}"}, ["2 times"]),
    ):
        with pytest.raises(PromptError) as refused:
            spans(tokenizer, [prompt], LAST, **options)
        assert all(word in str(refused.value) for word in words), refused.value
    (found,) = spans(byte_tokenizer(), ["Say <|im_end|>"], LAST, special_tokens="allow")
    assert found == [["<|im_end|>"]]
