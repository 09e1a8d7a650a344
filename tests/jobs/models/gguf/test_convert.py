"""GGUF files: each K-quant is dequantised exactly; those that cannot be converted, or are converted already."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from support.errors import only_line
from theodolite_jobs.models.convert.gguf import convert_gguf

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.source import fetch, resolve_source, weight_format
from theodolite_jobs.models.tensors import TensorFiles

WEIGHTS = "model.safetensors"


def write_gguf_of_architecture(path: Path, name: str) -> None:
    writer = gguf.GGUFWriter(str(path), name)
    writer.add_uint32(f"{name}.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("content", [b"", b"not at all", b"GGUF\x03\0\0\0 nonsense" * 10, None])
def test_a_gguf_file_that_cannot_be_read_leaves_no_files(tmp_path: Path, content: bytes | None) -> None:
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    if content is None:
        write_gguf_of_architecture(file, "zork")
    else:
        file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        fetch(resolve_source(ModelSpec(id="tiny.gguf"), tmp_path), cache)
    assert only_line(caught).startswith(f"cannot convert {file} from GGUF: ")
    assert list((cache / "gguf").iterdir()) == []


def test_a_gguf_file_of_an_encoder_with_a_decoder_is_refused_with_the_reason(tmp_path: Path) -> None:
    write_gguf_of_architecture(tmp_path / "tiny.gguf", "t5")
    with pytest.raises(UnsupportedModelError) as caught:
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache")
    assert "has an encoder and a decoder; such a model is not read from GGUF" in only_line(caught)
    assert not (tmp_path / "cache").exists()


def test_a_converted_gguf_file_is_not_read_again(tmp_path: Path) -> None:
    done = tmp_path / "cache" / "done"
    done.mkdir(parents=True)
    (done / WEIGHTS).write_bytes(b"converted before")
    assert convert_gguf(tmp_path / "gone.gguf", done) == done
    assert (done / WEIGHTS).read_bytes() == b"converted before"


# Bytes of a block of values, and where it has factors in half precision.
BLOCKS = {
    "Q4_0": (18, [0]),
    "Q4_1": (20, [0, 2]),
    "Q8_0": (34, [0]),
    "Q2_K": (84, [80, 82]),
    "Q3_K": (110, [108]),
    "Q4_K": (144, [0, 2]),
    "Q5_K": (176, [0, 2]),
    "Q6_K": (210, [208]),
    "Q5_0": (22, [0]),
}
SIZE = 256  # of a block of a K-quant


def random_blocks(kind: str, shape: tuple[int, int], rng: np.random.Generator) -> np.ndarray:
    """Return blocks of random bytes with small factors, (row, byte)."""
    n_bytes, factors = BLOCKS[kind]
    per_row = shape[1] // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
    blocks = rng.integers(0, 256, (shape[0], per_row, n_bytes), dtype=np.uint8)
    for start in factors:
        drawn = rng.uniform(1e-4, 1e-3, (shape[0], per_row, 1)).astype(np.float16)
        blocks[..., start : start + 2] = drawn.view(np.uint8)
    return blocks.reshape(shape[0], -1)


def write_gguf(path: Path, kind: str) -> dict[str, np.ndarray]:
    """Write a Qwen2 of one block whose projections have a type; return their matrices by gguf's own reader."""
    rng = np.random.default_rng(0)
    tokens = [*(chr(33 + index) for index in range(63)), chr(33) + chr(34)]
    writer = gguf.GGUFWriter(str(path), "qwen2")
    writer.add_block_count(1)
    writer.add_context_length(128)
    writer.add_embedding_length(SIZE)
    writer.add_feed_forward_length(SIZE)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_merges([f"{tokens[0]} {tokens[1]}"])
    writer.add_eos_token_id(0)
    names = {"attn_q": (SIZE, SIZE), "attn_k": (SIZE // 2, SIZE), "attn_v": (SIZE // 2, SIZE)}
    names |= {"attn_output": (SIZE, SIZE), "ffn_gate": (SIZE, SIZE), "ffn_up": (SIZE, SIZE), "ffn_down": (SIZE, SIZE)}
    matrices = {}
    for name, shape in names.items():
        blocks, quantised = random_blocks(kind, shape, rng), gguf.GGMLQuantizationType[kind]
        writer.add_tensor(f"blk.0.{name}.weight", blocks, raw_dtype=quantised)
        matrices[name] = gguf.dequantize(blocks, quantised)
    for name, size in {"attn_q": SIZE, "attn_k": SIZE // 2, "attn_v": SIZE // 2}.items():
        writer.add_tensor(f"blk.0.{name}.bias", rng.normal(size=size).astype(np.float32))
    for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(SIZE, np.float32))
    writer.add_tensor("token_embd.weight", rng.normal(size=(len(tokens), SIZE)).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return matrices


STORED = {"attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj"}
STORED |= {"attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj"}
STORED |= {"ffn_down": "mlp.down_proj"}


@pytest.mark.parametrize("kind", sorted(BLOCKS.keys() - {"Q5_0"}))
def test_every_matrix_is_what_the_library_of_the_format_reads(tmp_path: Path, kind: str) -> None:
    matrices = write_gguf(tmp_path / "tiny.gguf", kind)
    source = resolve_source(ModelSpec(id="tiny.gguf"), tmp_path)
    folder = fetch(source, tmp_path / "cache")
    files = TensorFiles(folder)
    assert matrices.keys() == STORED.keys()
    for name, matrix in matrices.items():
        stored = files.read(f"model.layers.0.{STORED[name]}.weight").numpy()
        assert stored.dtype == np.float32
        # Both compute in float32, in another order where a block has a minimum.
        np.testing.assert_allclose(stored, matrix, rtol=1e-6, atol=1e-6 * np.abs(matrix).max(), err_msg=name)
    assert weight_format(source, load_config(folder)) == f"GGUF ({kind})"
    load_model(folder)


def test_a_type_that_is_not_dequantised_is_named(tmp_path: Path) -> None:
    write_gguf(tmp_path / "tiny.gguf", "Q5_0")
    with pytest.raises(UnsupportedModelError) as caught:
        fetch(resolve_source(ModelSpec(id="tiny.gguf"), tmp_path), tmp_path / "cache")
    assert "has weights in Q5_0, which transformers does not dequantise; use a file whose weights" in only_line(caught)
    assert "Q4_K" in only_line(caught)
