"""Converted weights are held against the files from which they were converted; a wrong conversion is named."""

import json
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from support.adapters import save_adapter, save_base
from support.each import each
from support.gguf_files import tiny_llama, write_gguf
from support.quantised_cases import saved
from support.qwen1 import save_qwen1

from theodolite.errors import ParityError
from theodolite.query.parity import parity_notes
from theodolite.spec_parts import ModelSpec
from theodolite.store.pieces import record
from theodolite_jobs.models.convert import files
from theodolite_jobs.models.second_reading import held_against_source
from theodolite_jobs.models.source import ModelSource, fetch, resolve_source


def gguf(folder: Path) -> ModelSpec:
    write_gguf(tiny_llama(), folder / "tiny.gguf")
    return ModelSpec(id="tiny.gguf")


def qwen1(folder: Path) -> ModelSpec:
    save_qwen1(folder / "qwen1")
    return ModelSpec(id="qwen1")


def quantised(folder: Path) -> ModelSpec:
    saved("gptq", folder / "quantised")
    return ModelSpec(id="quantised")


def adapter(folder: Path) -> ModelSpec:
    save_adapter(save_base("llama", folder / "base"), folder / "adapter", target_modules=["q_proj"], r=2)
    return ModelSpec(id="base", adapter="adapter")


# A tensor that each kind compares.
KINDS = {
    gguf: "model.layers.1.mlp.down_proj.weight",
    qwen1: "model.layers.0.mlp.gate_proj.weight",
    quantised: "model.layers.0.mlp.down_proj.weight",
    adapter: "model.layers.0.self_attn.q_proj.weight",
}


@each("kind", KINDS)
def test_converted_weights_are_compared_with_their_source(tmp_path: Path, kind) -> None:
    source = resolve_source(kind(tmp_path), tmp_path)
    held = held_against_source(source, tmp_path / "cache")
    assert held["tensors"]
    assert held["settings"]
    (note,) = parity_notes({"held_against_source": held})
    assert note.startswith(f"Of the converted model, {len(held['tensors'])} tensors")
    change_a_weight(source, tmp_path / "cache", KINDS[kind])
    with pytest.raises(ParityError, match=rf"{KINDS[kind]} .* read a second way"):
        held_against_source(source, tmp_path / "cache")


@each("kind", KINDS)
def test_another_setting_than_that_of_the_source_is_named(tmp_path: Path, kind) -> None:
    source = resolve_source(kind(tmp_path), tmp_path)
    file = fetch(source, tmp_path / "cache") / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"rms_norm_eps": 0.5}))
    as_converted(file.parent)
    with pytest.raises(ParityError, match=r"eps\w* is .*converted model"):
        held_against_source(source, tmp_path / "cache")


def change_a_weight(source: ModelSource, cache: Path, name: str) -> None:
    for file in fetch(source, cache).glob("*.safetensors"):
        tensors = load_file(file)
        if name in tensors:
            save_file({**tensors, name: tensors[name] * 1.01}, file, {"format": "pt"})
            as_converted(file.parent)


def as_converted(folder: Path) -> None:
    """Write the checksums of a changed folder, as a conversion with a mistake would have written it."""
    (folder / files._CHECKSUMS).write_bytes(record(folder.name, {"files": files._checksums(folder)}))


def test_plain_weights_need_no_second_reading(tmp_path: Path) -> None:
    save_base("llama", tmp_path / "base")
    assert held_against_source(resolve_source(ModelSpec(id="base"), tmp_path), tmp_path / "cache") == {}
