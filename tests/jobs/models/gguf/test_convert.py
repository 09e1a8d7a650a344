"""GGUF files: every type is dequantised as a second library does; files that cannot be read, or are converted."""

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from support.each import each
from support.errors import only_line
from support.gguf_files import tiny_llama, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.integrations.gguf.dequant import GGML_NAME
from transformers.integrations.gguf.kernels import dequantize_blocks

from theodolite.errors import ModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.convert.files import atomic_folder
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.header import StoredTensor
from theodolite_jobs.models.gguf.tensors import read_tensor
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.source import fetch, resolve_source, weight_format
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.stages import Stage, listening

WEIGHTS = "model.safetensors"


@each("content", [b"", b"not at all", b"GGUF\x03\0\0\0 nonsense" * 10])
def test_a_gguf_file_that_cannot_be_read_leaves_no_files(tmp_path: Path, content: bytes) -> None:
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        fetch(resolve_source(ModelSpec(id="tiny.gguf"), tmp_path), cache)
    assert only_line(caught).startswith(f"cannot read {file} as a GGUF file: ")
    assert not cache.exists()


def test_a_converted_gguf_file_is_not_read_again(tmp_path: Path) -> None:
    done = tmp_path / "cache" / "done"
    with atomic_folder(done) as staging:
        (staging / WEIGHTS).write_bytes(b"converted before")
    assert convert_gguf(tmp_path / "gone.gguf", done) == done
    assert (done / WEIGHTS).read_bytes() == b"converted before"


def test_a_conversion_counts_its_tensors(tmp_path: Path) -> None:
    told: list[Stage | None] = []
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    with listening(told.append):
        folder = convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache" / "tiny")
    total = len(TensorFiles(folder).headers)
    assert total > 10
    assert told == [*(("converting", done, total, "tensors") for done in range(1, total + 1)), None]


# Where a block has factors in half precision; elsewhere any byte may stand.
FACTORS = {"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "Q2_K": [80, 82], "Q3_K": [108]}
FACTORS |= {"Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0], "IQ4_XS": [0]}


@each("kind", FACTORS)
def test_every_type_is_what_a_second_library_reads(tmp_path: Path, kind: str) -> None:
    rng, number = np.random.default_rng(0), gguf.GGMLQuantizationType[kind]
    block, n_bytes = gguf.GGML_QUANT_SIZES[number]
    blocks = rng.integers(0, 256, (3, 512 // block, n_bytes), dtype=np.uint8)
    for start in FACTORS[kind]:
        drawn = rng.uniform(1e-4, 1e-3, (3, 512 // block, 1)).astype(np.float16)
        blocks[..., start : start + 2] = drawn.view(np.uint8)
    file = tmp_path / "blocks"
    file.write_bytes(b"before" + blocks.tobytes())
    values = read_tensor(StoredTensor(file, (3, 512), kind, 6, blocks.nbytes))
    assert values.dtype == np.float32
    if int(number) in GGML_NAME:
        second = dequantize_blocks(torch.from_numpy(blocks.reshape(3, -1)), int(number), 3, 512, torch.float32)
    else:  # Q5_0 and Q5_1 by hand: four bits of each value follow those of all fifth bits
        second = torch.from_numpy(fifth_bits(blocks, kind))
    # Both compute in float32, in another order where a block has a minimum.
    np.testing.assert_allclose(values, second, rtol=1e-6, atol=1e-6 * np.abs(values).max())


def fifth_bits(blocks: np.ndarray, kind: str) -> np.ndarray:
    """Return the values of Q5_0 or Q5_1 blocks one by one, in float64."""
    rows = np.empty((len(blocks), 512))
    start = 2 if kind == "Q5_0" else 4
    for row, column, index in np.ndindex(len(blocks), blocks.shape[1], 32):
        one = blocks[row, column]
        factor, minimum = (float(one[at : at + 2].view(np.float16)[0]) for at in (0, 2))
        packed = int(one[start + 4 + index % 16])
        low = packed & 15 if index < 16 else packed >> 4
        high = (int.from_bytes(one[start : start + 4].tobytes(), "little") >> index & 1) << 4
        value = (low | high) * factor + minimum if kind == "Q5_1" else ((low | high) - 16) * factor
        rows[row, 32 * column + index] = value
    return rows


def test_a_file_is_converted_named_and_loaded_from_the_cache(tmp_path: Path) -> None:
    config = AutoConfig.for_model("qwen2", vocab_size=160, hidden_size=64, intermediate_size=96, num_hidden_layers=1)
    config.num_attention_heads = config.num_key_value_heads = 4
    write_gguf(AutoModelForCausalLM.from_config(config), tmp_path / "tiny.gguf", kind="Q5_0")
    source = resolve_source(ModelSpec(id="tiny.gguf"), tmp_path)
    folder = fetch(source, tmp_path / "cache")
    assert weight_format(source, load_config(folder)) == "GGUF (Q5_0)"
    assert str(load_model(folder).dtype) == "torch.float32"


def test_a_plan_writes_no_weights(tmp_path: Path) -> None:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    source = resolve_source(ModelSpec(id="tiny.gguf"), tmp_path)
    planned, whole = (fetch(source, tmp_path / "cache", weights=weights) for weights in (False, True))
    files = [[path for path in one.iterdir() if path.name != "checksums.json"] for one in (planned, whole)]
    names = [{path.name: path.read_bytes() for path in some} for some in files]
    assert not any(name.endswith(".safetensors") for name in names[0])
    assert names[0] == {name: content for name, content in names[1].items() if name in names[0]}
    assert {"config.json", "tokenizer.json"} < names[0].keys()


def test_a_folder_of_gguf_files_or_of_an_adapter_is_refused_with_what_to_give(tmp_path: Path) -> None:
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    with pytest.raises(ModelError, match=r"has no config\.json; give the path of one of its \.gguf files, such"):
        resolve_source(ModelSpec(id=str(tmp_path)), tmp_path)
    (tmp_path / "adapter").mkdir()
    (tmp_path / "adapter" / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelError, match=r"has no config\.json, but an adapter; give its base as model\.id"):
        resolve_source(ModelSpec(id="adapter", adapter="adapter"), tmp_path)
