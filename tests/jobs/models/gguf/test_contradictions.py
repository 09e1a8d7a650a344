"""A key with a value that the model cannot have, and parts that contradict each other, are refused by name."""

import re
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.gguf_files import tiny_llama, write_gguf
from support.gguf_twins import twin

from theodolite.errors import ModelError
from theodolite_jobs.models.gguf.convert import check_gguf
from theodolite_jobs.models.gguf.header import Header, read_header

# The twin, a key of its metadata, a value, and a part of the message.
WRONG: list[tuple[str, str, Any, str]] = [
    ("gemma3_text", "gemma3.attention.scale", 0.3, "attention.scale is 0.3; allowed for gemma3: the inverse root of"),
    ("gemma3_text", "gemma3.attention.sliding_window_pattern", [True], "sliding_window_pattern is [True]; allowed"),
    ("gemma2", "gemma2.attn_logit_softcapping", "much", "attn_logit_softcapping is much, and must be one float"),
    ("deepseek_v3", "deepseek2.expert_gating_func", 7, "expert_gating_func is 7; allowed for deepseek2: 1 (softmax)"),
    ("qwen3_moe", "qwen3moe.expert_used_count", 0, "expert_used_count is 0, and must be"),
    ("lfm2", "lfm2.attention.head_count_kv", [2], "head_count_kv is [2]; allowed for lfm2: one number for each layer"),
    ("gpt2", "gpt2.attention.head_count_kv", 2, "head_count_kv is 2; allowed for gpt2: 4"),
    ("falcon", "tokenizer.ggml.pre", None, "lacks tokenizer.ggml.pre"),
    ("llama", "tokenizer.ggml.token_type", [1], "160 tokens, 1 types and 160 scores of tokens"),
    ("llama", "tokenizer.ggml.tokens", ["a"] * 160, "a token twice among its 160 tokens"),
    ("llama", "tokenizer.ggml.merges", ["a"], "a merge that is no pair of tokens"),
    ("llama", "tokenizer.ggml.merges", None, "lacks tokenizer.ggml.merges, a part of its tokenizer"),
    ("llama", "tokenizer.chat_template", 3, "a chat template that is no text"),
    ("granite", "granite.residual_scale", "x", "residual_scale is x, and must be one float"),
]


def header_of(case: str, folder: Path) -> Header:
    write_gguf(twin(case), folder / "tiny.gguf")
    return read_header(folder / "tiny.gguf")


@each("case, key, value, message", WRONG)
def test_a_value_that_the_model_cannot_have_is_named(
    tmp_path: Path, case: str, key: str, value: object, message: str
) -> None:
    header = header_of(case, tmp_path)
    metadata = {**header.metadata, key: value}
    if value is None:
        del metadata[key]
    with pytest.raises(ModelError, match=re.escape(message)) as caught:
        check_gguf(replace(header, metadata=metadata))
    assert str(tmp_path / "tiny.gguf") in str(caught.value)


def test_a_scale_that_is_an_inverse_root_is_the_one_that_is_read(tmp_path: Path) -> None:
    header = header_of("gemma3_text", tmp_path)
    checked = replace(header, metadata={**header.metadata, "gemma3.attention.scale": 144**-0.5})
    assert check_gguf(checked)[0]["query_pre_attn_scalar"] == 144


def test_one_of_two_tensors_with_factors_is_not_enough(tmp_path: Path) -> None:
    header = header_of("phi3-longrope", tmp_path)
    tensors = {name: one for name, one in header.tensors.items() if name != "rope_factors_long.weight"}
    with pytest.raises(ModelError, match="rope_factors_long"):
        check_gguf(replace(header, tensors=tensors))


@pytest.fixture
def parts(tmp_path: Path) -> list[Path]:
    write_gguf(tiny_llama(), tmp_path / "split.gguf", split_max_tensors=8)
    return sorted(tmp_path.glob("split-*"))


def patched(content: bytes, key: bytes, form: str, value: int) -> bytes:
    changed = bytearray(content)
    struct.pack_into(form, changed, changed.index(key) + len(key) + 4, value)
    return bytes(changed)


def test_a_tensor_in_two_parts_is_named(parts: list[Path]) -> None:
    parts[2].write_bytes(patched(parts[1].read_bytes(), b"split.no", "<H", 2))
    with pytest.raises(ModelError, match=r"00003.gguf and an earlier part both have the tensor blk\."):
        read_header(parts[0])


def test_parts_with_fewer_tensors_than_stated_are_refused(parts: list[Path]) -> None:
    parts[0].write_bytes(patched(parts[0].read_bytes(), b"split.tensors.count", "<i", 99))
    with pytest.raises(ModelError, match="states 99 tensors, and its parts have 21; download them again"):
        read_header(parts[1])
