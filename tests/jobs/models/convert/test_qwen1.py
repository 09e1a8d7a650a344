"""Qwen1 checkpoints as Qwen2: equal hidden states, and an error that names what cannot be converted."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.qwen1 import (
    CONFIG,
    RANKS,
    SPECIAL,
    Tensors,
    change_config,
    random_weights,
    refusal,
    write_json,
    write_weights,
)

from theodolite.errors import ModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models import source as source_module
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.convert.qwen1 import convert_qwen1
from theodolite_jobs.models.load import load_config, load_model, load_tokenizer
from theodolite_jobs.models.source import ModelSource, fetch, resolve_source

# The numbers


def rms_norm(stream: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return stream / (stream.square().mean(-1, keepdim=True) + CONFIG["layer_norm_epsilon"]).sqrt() * scale


def rotated(heads: torch.Tensor) -> torch.Tensor:
    """Turn the pairs (i, i + d_head / 2) of each head by position * base^(-2i / d_head); heads are (token, head, d)."""
    length, _, d_head = heads.shape
    frequencies = CONFIG["rotary_emb_base"] ** (-torch.arange(0, d_head, 2, dtype=torch.float64) / d_head)
    angles = (torch.arange(length, dtype=torch.float64)[:, None] * frequencies)[:, None]
    first, second = heads[..., : d_head // 2], heads[..., d_head // 2 :]
    return torch.cat(
        [first * angles.cos() - second * angles.sin(), second * angles.cos() + first * angles.sin()], dim=-1
    )


def attention(stream: torch.Tensor, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
    length = len(stream)
    both = stream @ weight("c_attn.weight").T + weight("c_attn.bias")
    query, key, value = (part.view(length, 4, 8) for part in both.split(32, dim=-1))
    scores = torch.einsum("qhd,khd->hqk", rotated(query), rotated(key)) / 8**0.5
    scores = scores.masked_fill(torch.ones(length, length, dtype=torch.bool).triu(1), -torch.inf)
    mixed = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).reshape(length, 32)
    return mixed @ weight("c_proj.weight").T


def mlp(stream: torch.Tensor, weight: Callable[[str], torch.Tensor]) -> torch.Tensor:
    gate = stream @ weight("w2.weight").T
    return (stream @ weight("w1.weight").T * (gate * gate.sigmoid())) @ weight("c_proj.weight").T


def qwen1_hidden_states(weights: Tensors, ids: list[int]) -> list[torch.Tensor]:
    """Return the stream before each block and the normed stream after the last, in float64."""
    exact = {name: tensor.double() for name, tensor in weights.items()}
    stream = exact["transformer.wte.weight"][ids]
    states = [stream]
    for layer in range(3):
        block = f"transformer.h.{layer}."
        normed = rms_norm(stream, exact[f"{block}ln_1.weight"])
        stream = stream + attention(normed, lambda name, block=block: exact[f"{block}attn.{name}"])
        normed = rms_norm(stream, exact[f"{block}ln_2.weight"])
        stream = stream + mlp(normed, lambda name, block=block: exact[f"{block}mlp.{name}"])
        states.append(stream)
    return [*states[:-1], rms_norm(stream, exact["transformer.ln_f.weight"])]


def test_hidden_states_equal_those_of_qwen1(converted: Path) -> None:
    ids = torch.randint(0, 512, (64,), generator=torch.Generator().manual_seed(1)).tolist()
    model = load_model(converted)
    assert model.dtype == torch.float32
    with torch.inference_mode():
        got = model.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
    expected = qwen1_hidden_states(random_weights(), ids)
    assert len(got) == len(expected) == 4
    for layer, (state, exact) in enumerate(zip(got, expected, strict=True)):
        error = (state[0].double() - exact).norm(dim=-1) / exact.norm(dim=-1)
        assert error.max() < 1e-5, f"layer {layer}"  # float32 rounding through three blocks


def test_the_index_lists_the_file_of_every_tensor(converted: Path) -> None:
    index = json.loads((converted / "model.safetensors.index.json").read_text())
    shards = {path.name: load_file(path) for path in sorted(converted.glob("*.safetensors"))}
    assert len(shards) == 2
    assert index["weight_map"] == {name: file for file, tensors in shards.items() for name in tensors}
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in random_weights().values())
    head = shards[index["weight_map"]["lm_head.weight"]]["lm_head.weight"]
    torch.testing.assert_close(head, random_weights()["lm_head.weight"], rtol=0, atol=0)


def test_one_file_without_an_index_and_with_derived_tensors(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    derived = {"transformer.rotary_emb.inv_freq": torch.ones(4), "transformer.h.0.attn.masked_bias": torch.ones(1)}
    save_file(random_weights() | derived, folder / "model.safetensors")
    into = convert_qwen1(folder, tmp_path / "qwen2")
    assert load_model(into).dimensions.n_layers == 3


def test_weights_keep_their_dtype(folder: Path, tmp_path: Path) -> None:
    write_weights(folder, {name: tensor.bfloat16() for name, tensor in random_weights().items()})
    change_config(folder, fp32=False, bf16=True)
    assert load_model(convert_qwen1(folder, tmp_path / "qwen2")).dtype == torch.bfloat16


# Weights that do not fit


def test_an_unknown_tensor_is_named(folder: Path) -> None:
    write_weights(folder, random_weights() | {"transformer.visual.proj": torch.ones(1)})
    assert refusal(folder).endswith("have the tensor transformer.visual.proj, unknown to Qwen1")


def test_a_missing_tensor_is_named(folder: Path) -> None:
    weights = random_weights()
    del weights["transformer.h.2.mlp.w1.weight"]
    write_weights(folder, weights)
    assert refusal(folder) == f"the weights in {folder} lack the tensor transformer.h.2.mlp.w1.weight"


def test_a_missing_shard_is_named(folder: Path) -> None:
    (folder / "model-00002-of-00002.safetensors").unlink()
    assert "model-00002-of-00002.safetensors" in refusal(folder)


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.999])
def test_a_truncated_shard_is_an_error_of_one_line(folder: Path, kept: float) -> None:
    shard = folder / "model-00002-of-00002.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    assert refusal(folder).startswith(f"cannot read {shard}: ")


def test_pickled_weights_are_refused(folder: Path) -> None:
    torch.save(random_weights(), folder / "pytorch_model.bin")
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    assert f"{folder} has no .safetensors weights" in refusal(folder)


def test_a_failure_after_the_first_shard_leaves_no_files(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written = []

    def save_one(tensors: Tensors, file: Path, **_: Any) -> None:
        if written:
            raise OSError("no space left on device")
        written.append(file)
        save_file(tensors, file)

    monkeypatch.setattr("safetensors.torch.save_file", save_one)
    assert refusal(folder).endswith("OSError: no space left on device")
    assert len(written) == 1


# Finding and fetching


def resolve(folder: Path) -> ModelSource:
    return resolve_source(ModelSpec(id=str(folder)), Path())


def test_a_folder_is_converted_once_and_its_own_code_never_runs(folder: Path, tmp_path: Path) -> None:
    source, cache = resolve(folder), tmp_path / "cache"
    fetched = fetch(source, cache)
    assert fetched.parent == cache / "qwen1"
    assert fetched.name.startswith(source.revision.removeprefix("sha256:")[:16])
    assert load_model(fetched, trust_remote_code=True).dimensions.n_layers == 3
    assert len(load_tokenizer(fetched, trust_remote_code=True)) == len(RANKS) + len(SPECIAL)
    first = fetched.stat().st_ino
    assert fetch(source, cache).stat().st_ino == first
    assert [path.name for path in fetched.parent.iterdir() if path.is_dir()] == [fetched.name]


def test_planning_needs_no_weights(folder: Path, tmp_path: Path) -> None:
    for path in folder.glob("*.safetensors*"):
        path.unlink()
    files = fetch(resolve(folder), tmp_path / "cache", weights=False)
    assert files.name.startswith("small-")
    assert dimensions_of(load_config(files)).context_length == 64
    assert load_tokenizer(files)("the")["input_ids"] == [RANKS[b"the"]]
    assert list(files.glob("*.safetensors*")) == []


def test_planning_needs_the_configuration_only(tmp_path: Path) -> None:
    folder = tmp_path / "qwen1"
    folder.mkdir()
    write_json(folder / "config.json", CONFIG)
    files = fetch(resolve(folder), tmp_path / "cache", weights=False)
    assert dimensions_of(load_config(files)).n_layers == 3
    with pytest.raises(ModelError, match="has no tokenizer"):
        load_tokenizer(files)


@pytest.mark.parametrize("weights", [True, False])
def test_a_model_from_the_hub_is_converted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, weights: bool
) -> None:
    requested: list[str] = []

    def downloaded(_id: str, _commit: str, patterns: list[str], _needed: list[str]) -> Path:
        requested.extend(patterns)
        return folder

    monkeypatch.setattr(source_module, "hub_folder", downloaded)
    commit = "0123456789abcdef" * 2 + "01234567"
    source = ModelSource("Qwen-1_8B-Chat", "hub", "Qwen/Qwen-1_8B-Chat", commit)
    files = fetch(source, tmp_path / "cache", weights=weights)
    assert files.name.removeprefix("small-").startswith("0123456789abcdef-")
    assert load_config(files).model_type == "qwen2"
    assert "*.tiktoken" in requested


def test_fingerprint_covers_the_vocabulary(folder: Path) -> None:
    before = resolve(folder).revision
    with (folder / "qwen.tiktoken").open("a") as file:
        file.write("\n")
    assert resolve(folder).revision != before
