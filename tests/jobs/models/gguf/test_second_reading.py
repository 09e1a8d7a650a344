"""A converted model is held against its file, read a second way; a wrong conversion is named."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.gguf_files import tiny_llama, write_gguf

from theodolite.errors import ParityError
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.second_reading import held_against_file


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A file, and its conversion."""
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf", kind="Q8_0", split_max_tensors=8)
    file = tmp_path / "tiny-00001-of-00003.gguf"
    return file, convert_gguf(file, tmp_path / "read")


def test_the_compared_tensors_and_settings_are_named(pair: tuple[Path, Path]) -> None:
    held = held_against_file(*pair)
    assert {"token_embd.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.1.ffn_down.weight"} <= set(
        held["tensors"]
    )
    assert {"block_count", "attention.layer_norm_rms_epsilon", "rope.freq_base"} <= set(held["settings"])


WRONG = {
    "rows in llama.cpp's order": ("model.layers.0.self_attn.q_proj.weight", lambda w: w.roll(1, 0)),
    "another block": ("model.layers.1.mlp.down_proj.weight", lambda w: w * 1.001),
    "a shifted norm": ("model.norm.weight", lambda w: w - 1),
    "another embedding": ("model.embed_tokens.weight", lambda w: w.flip(0)),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_weight_is_named(pair: tuple[Path, Path], case: str) -> None:
    (part,) = pair[1].glob("*.safetensors")
    name, change = WRONG[case]
    tensors = load_file(part)
    save_file({**tensors, name: torch.as_tensor(change(tensors[name])).contiguous()}, part, {"format": "pt"})
    with pytest.raises(ParityError, match=f"{name} .* read a second way, .* a mistake of the conversion"):
        held_against_file(*pair)


def test_a_wrong_setting_is_named(pair: tuple[Path, Path]) -> None:
    text = (pair[1] / "config.json").read_text()
    assert read_json(pair[1] / "config.json")["rope_parameters"]["rope_theta"] == 3000
    (pair[1] / "config.json").write_text(text.replace("3000.0", "10000.0"))
    with pytest.raises(ParityError, match=r"llama\.rope\.freq_base is 3000\.0 .* the converted model has 10000\.0"):
        held_against_file(*pair)
