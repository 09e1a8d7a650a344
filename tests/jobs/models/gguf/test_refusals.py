"""What a GGUF file lacks, has too much or contradicts is refused by name, from the header alone."""

import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from support.each import each
from support.errors import only_line
from support.gguf_files import tiny_llama, write_gguf

from theodolite.errors import ModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.gguf.convert import check_gguf, convert_gguf
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.source import locate, resolve_source
from theodolite_jobs.models.tensors import TensorFiles


@pytest.fixture(scope="module")
def model() -> Any:
    return tiny_llama()


def refusal(file: Path) -> str:
    """Return the message with which the header of a file is refused."""
    with pytest.raises(ModelError) as caught:
        check_gguf(read_header(file))
    message = only_line(caught)
    assert str(file) in message
    return message


NAMES = [
    "token_embd.weight",
    "output_norm.weight",
    "blk.0.attn_norm.weight",
    "blk.1.ffn_up.weight",
    "blk.1.attn_k.weight",
]


@each("name", NAMES)
def test_a_missing_tensor_is_named(model: Any, tmp_path: Path, name: str) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", without=name)
    assert f"lacks the tensor {name}" in refusal(tmp_path / "tiny.gguf")


SURPLUS = ["blk.1.ffn_extra.weight", "blk.2.ffn_up.weight", "rope_factors_long.weight", "cls.output.weight"]


@each("name", SURPLUS)
def test_a_surplus_tensor_is_named(model: Any, tmp_path: Path, name: str) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", more={name: np.ones((96, 64))})
    assert f"has the tensor {name}, which 'llama' does not have" in refusal(tmp_path / "tiny.gguf")


@each("name", ["blk.0.attn_q.bias", "blk.1.ffn_up.bias"])
def test_a_bias_of_one_block_is_refused_before_weights_are_read(model: Any, tmp_path: Path, name: str) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", more={name: np.ones(64 if "attn" in name else 96)})
    with pytest.raises(ModelError, match=r"has no tensor for the weight model\.layers\.\d\..*\.bias of llama"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "cache" / "read")
    assert not (tmp_path / "cache" / "read").exists()


def test_a_tensor_of_another_shape_is_named(model: Any, tmp_path: Path) -> None:
    name = "blk.1.ffn_up.weight"
    write_gguf(model, tmp_path / "tiny.gguf", without=name, more={name: np.ones((95, 64))})
    with pytest.raises(ModelError, match=r"blk\.1\.ffn_up\.weight gives the shape \(95, 64\), .* need \(96, 64\)"):
        convert_gguf(tmp_path / "tiny.gguf", tmp_path / "read")


KEYS: dict[str, tuple[Callable[[gguf.GGUFWriter], object], str]] = {
    "unknown": (
        lambda w: w.add_uint32("llama.attention.sliding_window", 4096),
        "states llama.attention.sliding_window, which this version does not understand",
    ),
    "value width": (lambda w: w.add_value_length(8), "llama.attention.value_length is 8; allowed for llama: 16"),
    "rotary width": (lambda w: w.add_rope_dimension_count(8), "llama.rope.dimension_count is 8; allowed for llama: 16"),
    "not causal": (lambda w: w.add_causal_attention(False), "llama.attention.causal is False; allowed for llama: True"),
    "vocabulary": (lambda w: w.add_vocab_size(161), "llama.vocab_size is 161; allowed for llama: 160"),
    "scaling": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LONGROPE),
        "allowed for llama: none, linear or yarn",
    ),
    "yarn without context": (
        lambda w: (w.add_rope_scaling_type(gguf.RopeScalingType.YARN), w.add_rope_scaling_factor(4.0)),
        "lacks the key llama.rope.scaling.original_context_length",
    ),
    "linear without factor": (
        lambda w: w.add_rope_scaling_type(gguf.RopeScalingType.LINEAR),
        "lacks the key llama.rope.scaling.factor",
    ),
    "factor without type": (
        lambda w: w.add_rope_scaling_factor(4.0),
        "lacks the key llama.rope.scaling.type",
    ),
    "type": (
        lambda w: w.add_string("llama.rope.freq_base", "much"),
        "llama.rope.freq_base is much, and must be one float",
    ),
    "by layer": (
        lambda w: w.add_array("llama.attention.head_count_kv", [2, 1]),
        "llama.attention.head_count_kv is [2, 1], and must be one int",
    ),
    "kind of file": (
        lambda w: w.add_type(gguf.GGUFType.ADAPTER),
        "is of the type 'adapter' (general.type)",
    ),
    "pre-tokenizer": (lambda w: w.add_tokenizer_pre("zork"), "splits text by the rule 'zork' (tokenizer.ggml.pre)"),
    "tokenizer": (lambda w: w.add_tokenizer_model("rwkv"), "has a tokenizer of the kind 'rwkv'"),
    "tokenizer key": (
        lambda w: w.add_bool("tokenizer.ggml.zork", True),
        "states tokenizer.ggml.zork, which this version does not understand",
    ),
    "special token": (lambda w: w.add_eos_token_id(160), "the eos token is 160, and there are 160 tokens"),
}


@each("case", KEYS)
def test_a_key_that_cannot_be_honoured_is_named(model: Any, tmp_path: Path, case: str) -> None:
    edit, expected = KEYS[case]

    def replace(writer: gguf.GGUFWriter) -> None:
        fresh = gguf.GGUFWriter(None, "llama")
        edit(fresh)
        for key, value in fresh.kv_data[0].items():
            if key != "general.architecture":
                writer.kv_data[0][key] = value

    write_gguf(model, tmp_path / "tiny.gguf", edit=replace)
    assert expected in refusal(tmp_path / "tiny.gguf")


NEEDED = ["block_count", "context_length", "embedding_length", "feed_forward_length", "attention.head_count"]
NEEDED += ["attention.layer_norm_rms_epsilon"]


@each("key", NEEDED)
def test_a_missing_key_is_named(model: Any, tmp_path: Path, key: str) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", edit=lambda writer: writer.kv_data[0].pop(f"llama.{key}"))
    assert f"lacks the key llama.{key}" in refusal(tmp_path / "tiny.gguf")


def test_factors_of_another_number_than_pairs_are_refused(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", more={"rope_freqs.weight": np.ones(7)})
    assert "has the tensor rope_freqs.weight with 7 factors" in refusal(tmp_path / "tiny.gguf")


def test_a_type_without_a_rule_is_named(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "tiny.gguf")
    content = bytearray((tmp_path / "tiny.gguf").read_bytes())
    name = b"output_norm.weight"
    kind = content.index(name) + len(name) + 4 + 8
    struct.pack_into("<I", content, kind, gguf.GGMLQuantizationType.I32)
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert "the tensor output_norm.weight has the type I32, which cannot be dequantised" in refusal(
        tmp_path / "tiny.gguf"
    )
    struct.pack_into("<I", content, kind, 999)
    (tmp_path / "tiny.gguf").write_bytes(content)
    assert "the tensor output_norm.weight has the unknown type 999" in refusal(tmp_path / "tiny.gguf")


def test_an_unknown_architecture_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(str(tmp_path / "tiny.gguf"), "t5")
    writer.add_uint32("t5.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    message = refusal(tmp_path / "tiny.gguf")
    assert "has the architecture 't5'; supported in GGUF files: llama, qwen2, " in message
    assert message.endswith("use the model's safetensors files")


def test_a_truncated_file_names_the_first_tensor_that_is_cut(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "tiny.gguf")
    content = (tmp_path / "tiny.gguf").read_bytes()
    (tmp_path / "tiny.gguf").write_bytes(content[:-8])
    assert "it ends before the tensor lm_head" not in refusal(tmp_path / "tiny.gguf")
    assert "it ends before the tensor output.weight does; download it again" in refusal(tmp_path / "tiny.gguf")


def test_a_refusal_needs_neither_torch_nor_transformers(model: Any, tmp_path: Path) -> None:
    write_gguf(model, tmp_path / "tiny.gguf", without="blk.1.ffn_up.weight")
    program = (
        "import sys; from pathlib import Path\n"
        "from theodolite.errors import ModelError\n"
        "from theodolite_jobs.models.gguf.convert import check_gguf\n"
        "from theodolite_jobs.models.gguf.header import read_header\n"
        "try: check_gguf(read_header(Path(sys.argv[1])))\n"
        "except ModelError as error: print(error, {'torch', 'transformers', 'tokenizers'} & sys.modules.keys())"
    )
    command = [sys.executable, "-c", program, str(tmp_path / "tiny.gguf")]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert "lacks the tensor blk.1.ffn_up.weight" in printed
    assert printed.rstrip().endswith("set()")


@pytest.fixture
def parts(model: Any, tmp_path: Path) -> list[Path]:
    """The same model in one file, and in parts."""
    write_gguf(model, tmp_path / "whole.gguf")
    write_gguf(model, tmp_path / "split.gguf", split_max_tensors=8)
    return sorted(tmp_path.glob("split-*"))


def test_a_split_model_equals_the_whole_one_whichever_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    assert len(parts) == 3
    whole = TensorFiles(convert_gguf(tmp_path / "whole.gguf", tmp_path / "cache" / "whole"))
    sources = [resolve_source(ModelSpec(id=part.name), tmp_path) for part in parts]
    assert {(source.name, source.location) for source in sources} == {("split", str(parts[0]))}
    assert len({source.revision for source in sources}) == 1
    split = TensorFiles(convert_gguf(parts[1], tmp_path / "cache" / "split"))
    assert split.headers.keys() == whole.headers.keys()
    assert all(bool((split.read(name) == whole.read(name)).all()) for name in whole.headers)


def test_a_missing_part_is_named(parts: list[Path], tmp_path: Path) -> None:
    parts[1].unlink()
    with pytest.raises(ModelError, match=r"split-00002-of-00003\.gguf is missing .*; download all 3 parts"):
        locate(ModelSpec(id=parts[0].name), tmp_path)


def test_a_byte_of_any_part_changes_the_revision(parts: list[Path], tmp_path: Path) -> None:
    before = resolve_source(ModelSpec(id=parts[0].name), tmp_path).revision
    content = bytearray(parts[2].read_bytes())
    content[-1] ^= 1
    parts[2].write_bytes(content)
    assert resolve_source(ModelSpec(id=parts[0].name), tmp_path).revision != before


def test_parts_in_another_order_or_without_their_names_are_refused(parts: list[Path], tmp_path: Path) -> None:
    first = parts[0].read_bytes()
    parts[0].write_bytes(parts[1].read_bytes())
    parts[1].write_bytes(first)
    with pytest.raises(
        ModelError, match=r"states that it is part 1 \(split\.no, from 0\), and its name says part 1 of 3"
    ):
        read_header(parts[0])
    parts[1].rename(tmp_path / "alone.gguf")
    with pytest.raises(ModelError, match=r"its model has 3 files \(split\.count\), and its name says 1"):
        read_header(tmp_path / "alone.gguf")


def test_seeded_mutations_of_a_header_are_read_as_they_are_or_refused(model: Any, tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    write_gguf(model, file)
    content, rng = file.read_bytes(), np.random.default_rng(0)
    n_header = read_header(file).tensors["token_embd.weight"].offset
    refused = []
    for _ in range(150):
        changed = bytearray(content)
        for _ in range(rng.integers(1, 4)):
            changed[rng.integers(0, n_header)] = rng.integers(0, 256)
        file.write_bytes(changed)
        try:
            check_gguf(read_header(file))
        except ModelError as error:
            refused.append(str(error))
    assert len(refused) > 75
    assert all(str(file) in message and "\n" not in message for message in refused)
