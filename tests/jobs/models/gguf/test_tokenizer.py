"""Tokenizers from the metadata of GGUF files equal the models' own, and say the same words."""

import json
from pathlib import Path
from typing import Any

import gguf
from support.each import each
from support.gguf_files import BYTES
from transformers import AutoTokenizer

from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.gguf.pre_tokenizers import SPLITTINGS, pre_tokenizer
from theodolite_jobs.models.gguf.tokenizer import write_tokenizer
from theodolite_jobs.models.source import _alias_path

# Ids of the model's own tokenizer on the hub, as other programs publish them for their self-checks.
SMOLLM = {
    "Hello, we can use": [19556, 28, 392, 416, 722],
    "The capital of France is": [504, 3575, 282, 4649, 314],
    "\n": [198],
    "Hello world! 123": [19556, 905, 17, 216, 33, 34, 35],
    "Café déjà vu.": [51, 1939, 2756, 32564, 90, 16739, 386, 101, 30],
    "  multiple   spaces": [216, 2701, 256, 5600],
}


def test_the_tokenizer_of_the_built_in_model_gives_the_ids_of_the_hub(tmp_path: Path) -> None:
    write_tokenizer(read_header(_alias_path("smollm2-135m-instruct")), tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path)
    assert {text: tokenizer(text)["input_ids"] for text in SMOLLM} == SMOLLM
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert tokenizer("<|im_end|>")["input_ids"] == [2]


# The words of each rule, written by hand; Ġ is a space and Ċ a line break.
TEXT = "I'LL pay $1234 for iPhoneX...  ok\n\nbye"
DIGITS_APART = [
    "I",
    "'",
    "LL",
    "Ġpay",
    "Ġ$",
    "1",
    "2",
    "3",
    "4",
    "Ġfor",
    "ĠiPhoneX",
    "...",
    "Ġ",
    "Ġok",
    "Ċ",
    "Ċ",
    "bye",
]
WORDS = {
    "gpt-2": ["I", "'", "LL", "Ġpay", "Ġ$", "1234", "Ġfor", "ĠiPhoneX", "...", "Ġ", "Ġok", "Ċ", "Ċ", "bye"],
    "smollm": DIGITS_APART,
    "llama-bpe": ["I", "'LL", "Ġpay", "Ġ$", "123", "4", "Ġfor", "ĠiPhoneX", "...", "Ġ", "Ġok", "ĊĊ", "bye"],
    "qwen2": ["I", "'LL", "Ġpay", "Ġ$", "1", "2", "3", "4", "Ġfor", "ĠiPhoneX", "...", "Ġ", "Ġok", "ĊĊ", "bye"],
    "tekken": [
        "I",
        "'LL",
        "Ġpay",
        "Ġ$",
        "1",
        "2",
        "3",
        "4",
        "Ġfor",
        "Ġi",
        "Phone",
        "X",
        "...",
        "Ġ",
        "Ġok",
        "ĊĊ",
        "bye",
    ],
    "gpt-4o": ["I'LL", "Ġpay", "Ġ$", "123", "4", "Ġfor", "Ġi", "Phone", "X", "...", "Ġ", "Ġok", "ĊĊ", "bye"],
    "falcon": ["I", "'", "LL", "Ġpay", "Ġ", "$", "123", "4", "Ġfor", "ĠiPhoneX", "...", "Ġ", "Ġok", "Ċ", "Ċ", "bye"],
    "deepseek-llm": DIGITS_APART,
    "deepseek-v3": ["I", "'LL", "Ġpay", "Ġ$", "123", "4", "Ġfor", "ĠiPhoneX", "...", "Ġ", "Ġok", "ĊĊ", "bye"],
}


@each("name", WORDS)
def test_each_rule_splits_text_into_its_words(name: str) -> None:
    assert [word for word, _ in pre_tokenizer(SPLITTINGS[name]).pre_tokenize_str(TEXT)] == WORDS[name]


def write_vocabulary(path: Path, tokens: list[str], types: list[int], **keys: Any) -> None:
    """Write a GGUF file of a vocabulary alone."""
    writer = gguf.GGUFWriter(str(path), keys.pop("architecture", "llama"))
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    for key, value in keys.items():
        name = f"tokenizer.{key}" if key.startswith("chat_template") else f"tokenizer.ggml.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def read_tokenizer(path: Path) -> Any:
    write_tokenizer(read_header(path), path.parent / "read")
    return AutoTokenizer.from_pretrained(path.parent / "read")


TOKENS = [*BYTES, "<s>", "</s>", "<think>", "ab", "abc", "[PAD9]"]
TYPES = [*([1] * len(BYTES)), 3, 3, 4, 1, 1, 5]
S, END, THINK, AB, ABC = range(len(BYTES), len(BYTES) + 5)
BYTE_LEVEL = {"model": "gpt2", "merges": ["a b"], "bos_token_id": S, "eos_token_id": END}


def test_whole_words_special_tokens_and_the_first_token_are_those_of_the_rule(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "tiny.gguf", TOKENS, TYPES, pre="llama-bpe", **BYTE_LEVEL)
    tokenizer = read_tokenizer(tmp_path / "tiny.gguf")
    assert tokenizer("abc</s><think>ab")["input_ids"] == [S, ABC, END, THINK, AB]
    assert (tokenizer.bos_token, tokenizer.eos_token, tokenizer.all_special_tokens) == ("<s>", "</s>", ["<s>", "</s>"])
    assert tokenizer.decode([THINK, AB], skip_special_tokens=True) == "<think>ab"
    assert "[PAD9]" not in tokenizer.get_vocab()
    assert tokenizer.decode(tokenizer("a b\tc")["input_ids"][1:]) == "a b\tc"


def test_a_file_says_whether_its_first_and_last_tokens_are_added(tmp_path: Path) -> None:
    keys = {**BYTE_LEVEL, "pre": "llama-bpe", "add_bos_token": False, "add_eos_token": True}
    write_vocabulary(tmp_path / "tiny.gguf", TOKENS, TYPES, **keys)
    assert read_tokenizer(tmp_path / "tiny.gguf")("abc")["input_ids"] == [ABC, END]


def test_words_are_merged_where_the_rule_has_no_whole_words(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "tiny.gguf", TOKENS, TYPES, pre="qwen2", **BYTE_LEVEL)
    assert read_tokenizer(tmp_path / "tiny.gguf")("abc")["input_ids"] == [AB, TOKENS.index("c")]


PIECES = ["<unk>", "<s>", "</s>", "\u2581", "a", "b", "ab", "\u2581ab", "<0x0A>", "  "]
PIECE_TYPES = [2, 3, 3, 1, 1, 1, 1, 1, 6, 4]
SCORES = [0.0, 0.0, 0.0, -5.0, -6.0, -7.0, -1.0, -2.0, 0.0, -3.0]
PIECE_KEYS = {"model": "llama", "scores": SCORES, "bos_token_id": 1, "eos_token_id": 2, "unknown_token_id": 0}


def test_pieces_merge_by_their_scores_after_a_space(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "tiny.gguf", PIECES, PIECE_TYPES, **PIECE_KEYS)
    tokenizer = read_tokenizer(tmp_path / "tiny.gguf")
    assert tokenizer("ab ab\nb")["input_ids"] == [1, 7, 7, 8, 5]
    assert tokenizer("z")["input_ids"] == [1, 3, 0]
    assert tokenizer.decode([7, 7]) == "ab ab"


def test_pieces_need_no_space_in_front_if_the_file_says_so(tmp_path: Path) -> None:
    write_vocabulary(
        tmp_path / "tiny.gguf", PIECES, PIECE_TYPES, architecture="gemma3", add_space_prefix=False, **PIECE_KEYS
    )
    tokenizer = read_tokenizer(tmp_path / "tiny.gguf")
    assert tokenizer("ab ab")["input_ids"] == [1, 6, 7]
    assert tokenizer("a  b")["input_ids"] == [1, 4, 9, 5]


@each("architecture, merged", [("gemma3", ["ab", "c"]), ("llama", ["a", "bc"])])
def test_pieces_of_gemma_merge_by_their_ids(tmp_path: Path, architecture: str, merged: list[str]) -> None:
    pieces = ["<unk>", "<s>", "</s>", "a", "b", "c", "ab", "bc"]
    keys = {**PIECE_KEYS, "scores": [0.0] * 6 + [-2.0, -1.0], "add_space_prefix": False, "add_bos_token": False}
    types = [2, 3, 3, 1, 1, 1, 1, 1]
    write_vocabulary(tmp_path / "tiny.gguf", pieces, types, architecture=architecture, **keys)
    assert read_tokenizer(tmp_path / "tiny.gguf").tokenize("abc") == merged


def test_all_chat_templates_of_a_file_are_kept(tmp_path: Path) -> None:
    keys = {"chat_template": "D", "chat_template.rag": "R", "chat_templates": ["rag"]}
    write_vocabulary(tmp_path / "tiny.gguf", TOKENS, TYPES, pre="qwen2", **BYTE_LEVEL, **keys)
    assert read_tokenizer(tmp_path / "tiny.gguf").chat_template == {"default": "D", "rag": "R"}


def test_the_saved_tokenizer_needs_no_class_of_its_own(tmp_path: Path) -> None:
    write_vocabulary(tmp_path / "tiny.gguf", TOKENS, TYPES, pre="qwen2", **BYTE_LEVEL)
    read_tokenizer(tmp_path / "tiny.gguf")
    saved = json.loads((tmp_path / "read" / "tokenizer_config.json").read_text())
    assert saved["tokenizer_class"] == "TokenizersBackend"
