"""No file of prompts or weights, however damaged, gives a traceback, and none of them runs code."""

import gzip
import json
import pickle
import struct
from datetime import date
from functools import partial
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import pytest
from datasets import Dataset
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save
from support.chat_tokenizers import CHATML, OF_PARTS, SYSTEM_TEXT_USER_PARTS, THINKING, byte_tokenizer
from support.each import each

from theodolite.errors import ModelError, PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.tables import encode_table
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.prompts.sources import read_prompts
from theodolite_jobs.prompts.tokens import tokenize

QUICK = settings(
    max_examples=2 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PROMPTS = {
    ".csv": b'prompt,kind\r\n"a, b",x\r\n"c ""d""",y\r\n',
    ".tsv": b'prompt\tkind\r\n"a\tb"\tx\r\nc "d"\ty\r\n',
    ".jsonl": b'{"prompt": "a"}\n{"prompt": "b", "kind": 1}\n',
    ".ndjson": b'"a"\n{"prompt": "b\\u00e9\\ud83d\\ude00", "kind": [1e3, {"a": null}]}\n',
    ".json": b'[{"prompt": "a"}, {"prompt": "b"}]',
    ".txt": "a\nb\u2028c\n".encode(),
    ".parquet": encode_table(pd.DataFrame({"prompt": ["a", "b", "c"], "kind": [1, 2, 3]})),
}
SIGNS = [b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b"\xed\xa0\x80", b'"', b",", b"\n", b"\r", b"\t"]
VALUES = [
    b"[" * 3000,
    b'{"a":' * 3000,
    b"\\u0000",
    b"\\ud800",
    b"NaN",
    b"-Infinity",
    b"9" * 5000,
    b"1e999",
    b"null",
    b"{}",
]
INSERTED = st.binary(max_size=6) | st.sampled_from([*SIGNS, *VALUES])
WEIGHTS = save({"a": np.ones((2, 3), np.float32), "b": np.zeros(4, np.float16)})


def damaged(data: st.DataObject, content: bytes, stop: int | None = None) -> bytes:
    """Return the content with one to four changes among its first `stop` bytes."""
    changed = bytearray(content)
    for _ in range(data.draw(st.integers(1, 4))):
        start = data.draw(st.integers(0, min(len(changed), stop or len(changed))))
        end = data.draw(st.integers(start, min(start + 6, len(changed))))
        changed[start:end] = data.draw(INSERTED)
    return bytes(changed)


def gguf_file(path: Path) -> bytes:
    """Write a GGUF file of an unknown architecture without weights, and return its bytes."""
    writer = gguf.GGUFWriter(str(path), "zork")
    writer.add_uint32("zork.block_count", 1)
    writer.add_array("tokens", ["a", "b", "c"])
    writer.add_array("scores", [1.0, 2.0, 3.0])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.read_bytes()


def check_read(source, **settings):
    """Read prompts, which are texts without NUL or halves of surrogate pairs, or refused in one line with a name."""
    message, texts = "prompts.goals", []
    try:
        texts = read_prompts("goals", PromptSetSpec(source=f"file:{source}", **settings), Path())
    except PromptError as error:
        message = str(error)
    assert "prompts.goals" in message
    assert "\n" not in message
    assert len(message) < 1500
    assert all(isinstance(text, str) and text.strip() and "\0" not in text and text.encode() for text in texts)


SETTINGS = [{}, {"column": "prompt"}, {"column": "prompt", "where": {"kind": "x"}, "limit": 1}]


@QUICK
@given(st.sampled_from(sorted(PROMPTS)), st.sampled_from(SETTINGS), st.data())
def test_a_damaged_file_of_prompts_has_texts_or_is_refused_by_name(tmp_path, suffix, settings, data):
    file = tmp_path / f"goals{suffix}"
    file.write_bytes(damaged(data, PROMPTS[suffix]))
    check_read(file, **settings)


@QUICK
@given(st.sampled_from(sorted(set(PROMPTS) - {".parquet"})), st.booleans(), st.data())
def test_a_damaged_compressed_file_has_texts_or_is_refused_by_name(tmp_path, suffix, is_inside, data):
    file, content = tmp_path / f"goals{suffix}.gz", PROMPTS[suffix]
    damage = partial(damaged, data)
    file.write_bytes(gzip.compress(damage(content)) if is_inside else damage(gzip.compress(content)))
    check_read(file)


JINJA = [
    *("{%", "%}", "{{", "}}", "{#", "{% endif %}", "{% endfor %}", "{% for m in messages %}", "{% break %}"),
    *("{{ raise_exception('no') }}", "{{ raise_exception(1) }}", "{{ messages[7].content }}", "{{ messages['x'] }}"),
    *("{{ m.x.y }}", "{{ 1 / 0 }}", "{{ ''.__class__.mro() }}", "{% include 'x' %}", "{{ strftime_now('%Q') }}"),
    *("{{ messages | tojson }}", "{{ m | length }}", "{{ m['content'] + 1 }}", "{% generation %}", "{{ none() }}"),
    *("<|im_end|>", "\ud800", "\0"),
]
"""Pieces of templates that are wrong in most places."""

CHATS = ["Hi", [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi"}]]


@QUICK
@given(st.sampled_from([CHATML, OF_PARTS, SYSTEM_TEXT_USER_PARTS, THINKING]), st.data())
def test_a_damaged_chat_template_renders_the_prompt_or_is_refused_by_name(byte_tokens, template, data):
    for _ in range(data.draw(st.integers(1, 3))):
        start = data.draw(st.integers(0, len(template)))
        end = data.draw(st.integers(start, min(start + 12, len(template))))
        template = template[:start] + data.draw(st.sampled_from(["", *JINJA])) + template[end:]
    byte_tokens.chat_template = template
    options = data.draw(st.sampled_from([{}, {"prefill": "Sure"}, {"system": "Be kind."}, {"template_args": {"m": 1}}]))
    prompts = CHATS[:1] if "system" in options else CHATS
    chats = PromptSetSpec(source="inline", texts=["Hi"], **options)
    message = "prompts.goals"
    try:
        found = tokenize("goals", prompts, chats, byte_tokens, date(2000, 1, 1))
        assert all("Hi" in byte_tokens.decode(ids) for ids in found.tokens)
    except PromptError as error:
        message = str(error)
    assert "prompts.goals" in message
    assert "\n" not in message
    assert len(message) < 1500


@pytest.fixture(scope="module")
def byte_tokens():
    return byte_tokenizer()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """The files of a folder of save_to_disk, by name, and a folder for their damaged copies."""
    folder = tmp_path_factory.mktemp("saved")
    rows = {"prompt": ["a", "bß", "c"], "kind": ["x", None, "y"], "tags": [["a"], [], None]}
    Dataset.from_dict(rows).save_to_disk(folder / "whole")
    (folder / "damaged").mkdir()
    return {path.name: path.read_bytes() for path in (folder / "whole").iterdir()}, folder / "damaged"


@QUICK
@given(st.integers(0, 2), st.sampled_from(SETTINGS), st.data())
def test_a_damaged_saved_dataset_has_texts_or_is_refused_by_name(saved, which, settings, data):
    files, folder = saved
    for index, (name, content) in enumerate(sorted(files.items())):
        (folder / name).write_bytes(damaged(data, content) if index == which else content)
    check_read(folder, **settings)


@QUICK
@given(st.data())
def test_damaged_weights_are_read_or_refused_by_name(tmp_path, data):
    length = 8 + int.from_bytes(WEIGHTS[:8], "little")
    (tmp_path / "model.safetensors").write_bytes(damaged(data, WEIGHTS, length))
    refused = ""
    try:
        tensors = TensorFiles(tmp_path)
        for name in ("a", "b"):
            assert tensors.read(name).numel() <= 1000
    except ModelError as error:
        refused = str(error)
    assert not refused or str(tmp_path) in refused


def test_a_header_that_claims_more_than_the_file_is_refused(tmp_path):
    header = json.dumps({"a": {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(ModelError, match=r"model\.safetensors"):
        TensorFiles(tmp_path)


@QUICK
@given(st.data())
def test_a_damaged_gguf_file_is_refused_by_name(tmp_path, data):
    file = tmp_path / "tiny.gguf"
    file.write_bytes(damaged(data, gguf_file(file)))
    with pytest.raises(ModelError, match=r"tiny\.gguf"):
        convert_gguf(file, tmp_path / "converted")


@each("length", [b"tokens", b"scores"])
def test_a_gguf_header_that_announces_more_than_the_file_has_is_refused(tmp_path, length):
    file = tmp_path / "tiny.gguf"
    content = bytearray(gguf_file(file))
    read_header(file)
    struct.pack_into("<Q", content, content.index(length) + len(length) + 8, 2**20)
    file.write_bytes(content)
    with pytest.raises(ModelError, match="beyond the end of the file"):
        convert_gguf(file, tmp_path / "converted")


def test_a_big_endian_gguf_file_is_refused_as_such(tmp_path):
    writer = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "llama", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ModelError, match="it is big-endian; use a little-endian file"):
        read_header(tmp_path / "tiny.gguf")


@each(
    "kind, length, refused",
    [(0, 2**22 + 1, "a: the array has 4194305 elements"), (9, 1, "a: the array has elements of type 9")],
)
def test_a_gguf_header_with_an_array_that_no_model_has_is_refused(tmp_path, kind, length, refused):
    file = tmp_path / "tiny.gguf"
    header = b"GGUF" + struct.pack("<IQQQ", 3, 0, 1, 1) + b"a" + struct.pack("<IIQ", 9, kind, length)
    file.write_bytes(header + bytes(length))  # the file is long enough for the array
    with pytest.raises(ModelError, match=refused):
        convert_gguf(file, tmp_path / "converted")


def test_pickled_weights_are_refused_and_their_code_does_not_run(tmp_path):
    class Payload:
        def __reduce__(self):
            return Path.touch, (tmp_path / "ran",)

    (tmp_path / "pytorch_model.bin").write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ModelError, match="pickled weights"):
        TensorFiles(tmp_path)
    assert not (tmp_path / "ran").exists()
