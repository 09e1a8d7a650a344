"""The tokenizer of a converted Qwen1 checkpoint: equal token ids and chat template."""

import json
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import regex
from hypothesis import given, settings
from hypothesis import strategies as st
from support.qwen1 import RANKS, SPECIAL, SPECIAL_IDS, refusal, write_json

from theodolite_jobs.models.convert.qwen1 import convert_qwen1
from theodolite_jobs.models.load import load_tokenizer

PATTERN = regex.compile(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(scope="module")
def tokenizer(converted: Path) -> Any:
    return load_tokenizer(converted)


def reference_ids(text: str) -> list[int]:
    """Tokenise as tiktoken documents it: in each word, join the two neighbours whose union has the lowest rank."""
    return [token for piece in pieces(text) for token in piece]


def pieces(text: str) -> Iterator[list[int]]:
    for word in PATTERN.findall(unicodedata.normalize("NFC", text)):
        parts = [bytes([byte]) for byte in word.encode()]
        while True:
            unions = [
                (RANKS[parts[i] + parts[i + 1]], i) for i in range(len(parts) - 1) if parts[i] + parts[i + 1] in RANKS
            ]
            if not unions:
                break
            _, at = min(unions)
            parts = [*parts[:at], parts[at] + parts[at + 1], *parts[at + 2 :]]
        yield [RANKS[part] for part in parts]


@settings(max_examples=3 * settings.default.max_examples, deadline=None)
@given(st.text(st.sampled_from(list("abctheingr tdé中1'.\n\r\t\xa0\u0301😀")), max_size=40) | st.text(max_size=20))
def test_token_ids_equal_those_of_tiktoken(tokenizer: Any, text: str) -> None:
    ids = tokenizer(text)["input_ids"]
    assert ids == reference_ids(text)
    assert tokenizer.decode(ids) == unicodedata.normalize("NFC", text)


def test_the_merge_with_the_lowest_rank_is_applied_first(tokenizer: Any) -> None:
    abc, a, bc = RANKS[b"abc"], RANKS[b"a"], RANKS[b"bc"]
    assert tokenizer("abc")["input_ids"] == [abc]
    assert tokenizer("aabc")["input_ids"] == [a, abc]
    assert tokenizer("bbc")["input_ids"] == [RANKS[b"b"], bc]
    assert tokenizer("aaaaa")["input_ids"] == [RANKS[b"aa"], RANKS[b"aaa"]]  # with equal ranks, the leftmost first
    assert tokenizer("中e\u0301")["input_ids"] == [RANKS["中".encode()], RANKS["é".encode()]]


def test_special_tokens_follow_the_ranks(tokenizer: Any) -> None:
    assert {token: tokenizer.convert_tokens_to_ids(token) for token in SPECIAL} == SPECIAL_IDS
    assert len(tokenizer) == len(RANKS) + len(SPECIAL)
    ids = tokenizer("<|im_start|>the<|extra_204|>")["input_ids"]
    assert ids == [SPECIAL_IDS["<|im_start|>"], RANKS[b"the"], SPECIAL_IDS["<|extra_204|>"]]


def chat(tokenizer: Any, *messages: tuple[str, str], prompt: bool = True) -> str:
    conversation = [{"role": role, "content": content} for role, content in messages]
    return str(tokenizer.apply_chat_template(conversation, tokenize=False, add_generation_prompt=prompt))


def test_a_chat_starts_with_the_default_system_message(tokenizer: Any) -> None:
    assert chat(tokenizer, ("user", "the  thing\n")) == (
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"
        "<|im_start|>user\nthe  thing\n<|im_end|>\n<|im_start|>assistant\n"
    )


def test_a_system_message_replaces_the_default(tokenizer: Any) -> None:
    messages = [("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", "c")]
    assert chat(tokenizer, *messages, prompt=False) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na<|im_end|>\n"
        "<|im_start|>assistant\nb<|im_end|>\n<|im_start|>user\nc<|im_end|>\n"
    )


@pytest.mark.parametrize("generation", [None, {"chat_format": "raw"}])
def test_a_base_model_has_no_chat_template(folder: Path, tmp_path: Path, generation: dict[str, str] | None) -> None:
    (folder / "generation_config.json").unlink()
    if generation:
        write_json(folder / "generation_config.json", generation)
    assert load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False)).chat_template is None


@pytest.mark.parametrize("file", ["tokenizer_config.json", "chat_template.jinja"])
def test_a_template_of_the_checkpoint_is_used(folder: Path, tmp_path: Path, file: str) -> None:
    text = "{{ messages[0]['content'] }}!"
    content = json.dumps({"chat_template": text}) if file.endswith(".json") else text
    (folder / file).write_text(content)
    own = load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False))
    assert chat(own, ("user", "the")) == "the!"


def test_a_fast_tokenizer_is_used_if_the_folder_has_no_ranks(folder: Path, converted: Path, tmp_path: Path) -> None:
    (folder / "qwen.tiktoken").unlink()
    shutil.copy(converted / "tokenizer.json", folder)
    own = load_tokenizer(convert_qwen1(folder, tmp_path / "qwen2", weights=False))
    text = "the <|im_end|>thing"
    assert own(text)["input_ids"] == load_tokenizer(converted)(text)["input_ids"]
    assert chat(own, ("user", "a")).startswith("<|im_start|>system\nYou are a helpful assistant.")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines, "dGhl"], "line 282 is b'dGhl'; expected a token in base64 and its rank"),
        (lambda lines: ["!!! 0", *lines[1:]], "line 1 is b'!!! 0'; expected a token in base64"),
        (lambda lines: ["dGhl x", *lines[1:]], "line 1 is b'dGhl x'; expected a token in base64"),
        (lambda lines: lines[:-2] + lines[-1:], "the ranks of 280 tokens are not 0 to 279, each once"),
        (lambda lines: ["YWJj 0", *lines[1:256]], "byte 3 is not a token"),
        (lambda lines: [*lines[:256], "dGhl 256"], "token 256 (b'the') cannot be joined from other tokens"),
    ],
)
def test_a_vocabulary_that_cannot_be_converted_is_refused(
    folder: Path, change: Callable[[list[str]], list[str]], message: str
) -> None:
    file = folder / "qwen.tiktoken"
    file.write_text("\n".join(change(file.read_text().splitlines())))
    assert message in refusal(folder)
