"""Weight files that contradict each other or their index are refused by name."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.errors import only_line
from transformers import LlamaForCausalLM

from theodolite.errors import ModelError
from theodolite_jobs.models.load import load_model
from theodolite_jobs.models.tensors import TensorFiles

INDEX = "model.safetensors.index.json"


@pytest.fixture
def shards(saved_llama: Path, tmp_path: Path) -> list[Path]:
    LlamaForCausalLM.from_pretrained(saved_llama).save_pretrained(tmp_path, max_shard_size="6KB")
    return sorted(tmp_path.glob("*.safetensors"))


def refusal(folder: Path) -> str:
    messages = []
    for action in (TensorFiles, load_model):
        with pytest.raises(ModelError) as caught:
            action(folder)
        messages.append(only_line(caught))
    assert len(set(messages)) == 1
    return messages[0]


def edit_index(folder: Path, change: Callable[[dict[str, str]], Any]) -> None:
    content = json.loads((folder / INDEX).read_text())
    change(content["weight_map"])
    (folder / INDEX).write_text(json.dumps(content))


def test_the_index_and_the_files_agree(shards: list[Path]) -> None:
    listed = json.loads((shards[0].parent / INDEX).read_text())["weight_map"]
    assert {name: one.file for name, one in TensorFiles(shards[0].parent).headers.items()} == listed


def test_a_tensor_that_the_index_names_in_another_file_is_named(shards: list[Path]) -> None:
    first, last = shards[0].name, shards[-1].name
    edit_index(shards[0].parent, lambda listed: listed.update({"model.norm.weight": first}))
    assert refusal(shards[0].parent) == (
        f"{first} in {shards[0].parent} lacks the tensor model.norm.weight, which {INDEX} names; download both again"
    )
    assert first != last


def test_a_tensor_that_no_file_has_is_named(shards: list[Path]) -> None:
    edit_index(shards[0].parent, lambda listed: listed.update({"model.gone.weight": shards[0].name}))
    assert "lacks the tensor model.gone.weight" in refusal(shards[0].parent)


def test_a_tensor_in_two_files_is_named(shards: list[Path]) -> None:
    tensors = load_file(shards[0])
    name = next(iter(tensors))
    save_file(load_file(shards[1]) | {name: torch.zeros_like(tensors[name])}, shards[1], metadata={"format": "pt"})
    assert f"has the tensor {name} in {shards[0].name} and in {shards[1].name}; remove" in refusal(shards[0].parent)


def test_a_file_of_another_download_is_named(shards: list[Path]) -> None:
    stale = shards[0].with_name("model-00001-of-00099.safetensors")
    stale.write_bytes(shards[0].read_bytes())
    assert f"has {stale.name}, which {INDEX} does not name; remove it" in refusal(shards[0].parent)


def test_two_sets_of_weights_are_refused(shards: list[Path]) -> None:
    (shards[0].parent / "model.safetensors").write_bytes(shards[0].read_bytes())
    assert f"has weights in model.safetensors and in {shards[0].name}; remove" in refusal(shards[0].parent)


def test_one_file_beside_an_index_of_others_is_refused(shards: list[Path]) -> None:
    (shards[0].parent / "model.safetensors").write_bytes(shards[0].read_bytes())
    for number, shard in enumerate(shards):
        shard.rename(shard.with_name(f"part{number}.safetensors"))
    of = {shard.name: f"part{number}.safetensors" for number, shard in enumerate(shards)}
    edit_index(shards[0].parent, lambda listed: listed.update({name: of[file] for name, file in listed.items()}))
    assert "has weights in model.safetensors and in part0.safetensors; remove" in refusal(shards[0].parent)


def test_an_empty_file_is_named(shards: list[Path]) -> None:
    shards[1].write_bytes(b"")
    assert refusal(shards[0].parent).startswith(f"cannot read {shards[1]}: ")


def test_a_tensor_that_the_index_does_not_list_is_read_as_transformers_reads_it(shards: list[Path]) -> None:
    edit_index(shards[0].parent, lambda listed: listed.pop("model.norm.weight"))
    assert "model.norm.weight" in TensorFiles(shards[0].parent).headers
    assert load_model(shards[0].parent).dimensions.n_layers == 3


@pytest.mark.parametrize("prefix", ["../", "inside/", "/tmp/"])
def test_an_index_that_leaves_its_folder_is_refused(shards: list[Path], prefix: str) -> None:
    name, outside = shards[0].name, f"{prefix}{shards[0].name}"
    edit_index(
        shards[0].parent,
        lambda listed: listed.update({one: outside for one, file in listed.items() if file == name}),
    )
    assert f"{INDEX} names {outside}, which is not a file of its folder" in refusal(shards[0].parent)
