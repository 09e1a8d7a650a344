"""No file of prompts or weights, however damaged, gives a traceback, and none of them runs code."""

import json
import pickle
import struct
from pathlib import Path

import gguf
import numpy as np
import pandas as pd
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.numpy import save

from theodolite.errors import ModelError, PromptError
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.tables import encode_table
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.prompts.sources import read_prompts

QUICK = settings(
    max_examples=150,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
PROMPTS = {
    ".csv": b'prompt,kind\r\n"a, b",x\r\n"c ""d""",y\r\n',
    ".jsonl": b'{"prompt": "a"}\n{"prompt": "b", "kind": 1}\n',
    ".json": b'[{"prompt": "a"}, {"prompt": "b"}]',
    ".txt": "a\nb\u2028c\n".encode(),
    ".parquet": encode_table(pd.DataFrame({"prompt": ["a", "b", "c"], "kind": [1, 2, 3]})),
}
INSERTED = st.binary(max_size=6) | st.sampled_from(
    [b"\x00", b"\xef\xbb\xbf", b"\xff\xfe", b'"', b",", b"\n", b"\r", b"[" * 3000]
)
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


@QUICK
@given(st.sampled_from(sorted(PROMPTS)), st.data())
def test_a_damaged_file_of_prompts_has_texts_or_is_refused_by_name(tmp_path, suffix, data):
    file = tmp_path / f"goals{suffix}"
    file.write_bytes(damaged(data, PROMPTS[suffix]))
    try:
        texts = read_prompts("goals", PromptSetSpec(source=f"file:{file}"), tmp_path)
    except PromptError as error:
        texts = ["goals" if "prompts.goals" in str(error) else ""]
    assert all(isinstance(text, str) and text.strip() for text in texts)


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


@pytest.mark.parametrize("length", [b"tokens", b"scores"])
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


@pytest.mark.parametrize(
    ("kind", "length", "refused"),
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
