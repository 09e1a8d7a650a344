"""Random weights: equal to those of transformers, for every family, without trained weights."""

import copy
import json
import shutil
import threading
from collections import namedtuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from support import tiny
from support.each import each
from support.errors import only_line
from support.nightly import one_in
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED
from support.tiny_survey import save_model
from transformers import LlamaConfig, LlamaForCausalLM, Qwen2Config

from theodolite.errors import ModelError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models import source
from theodolite_jobs.models.convert import random_weights
from theodolite_jobs.models.convert.files import SMALL_FILES, atomic_folder
from theodolite_jobs.models.convert.random_weights import SEED, create_random, random_bytes
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.source import fetch, resolve_source
from theodolite_jobs.models.tensors import TensorFiles

Usage = namedtuple("Usage", "total used free")


def save_config(folder: Path, family: str, **changes: Any) -> Path:
    config = copy.deepcopy(CONFIGS[family])
    config.architectures = [tiny.class_with_head(config).__name__]
    for name, value in changes.items():
        setattr(config, name, value)
    config.save_pretrained(folder)
    return folder


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    files = TensorFiles(folder)
    return {name: files.read(name) for name in files.headers}


def initialised_by_transformers(folder: Path, into: Path) -> Path:
    """Save a model whose missing weights transformers initialised at once, as `from_pretrained` does."""
    config = load_config(folder)
    with torch.device("meta"):
        model = tiny.class_with_head(config)(copy.deepcopy(config))
    model.to_empty(device="cpu")
    torch.manual_seed(SEED)
    model.initialize_weights()
    model.tie_weights(recompute_mapping=False)
    model.save_pretrained(into)
    return into


# The numbers


# transformers does not initialise what Apertus trains in its activation function, and a bias of the head of Data2Vec;
# models of them are refused.
INITIALISED = [family for family in CONFIGS if family not in ("apertus", "data2vec-text")]


@pytest.mark.parametrize("family", one_in(6, INITIALISED))
def test_all_tensors_are_those_that_transformers_initialises(family: str, tmp_path: Path) -> None:
    folder = save_config(tmp_path / "model", family)
    reference = tensors_in(initialised_by_transformers(folder, tmp_path / "reference"))
    written = tensors_in(create_random(folder, tmp_path / "random"))
    unsaved = tiny.class_with_head(CONFIGS[family])._keys_to_ignore_on_save or ()  # Marian's tables of sines
    assert written.keys() - set(unsaved) == reference.keys()
    assert [name for name, tensor in reference.items() if not torch.equal(tensor, written[name])] == []
    load_model(tmp_path / "random")  # no tensor is missing, unknown or of another shape


def test_an_embedding_that_is_drawn_twice_is_stored_once(tmp_path: Path) -> None:
    random = create_random(save_config(tmp_path / "model", "t5"), tmp_path / "random")
    names = [name for file in random.glob("*.safetensors") for name in load_file(file)]
    assert len(names) == len(set(names))
    assert tensors_in(random)["shared.weight"].std() > 0.9  # the first draw has 0.02


def test_matrices_are_normal_with_the_configured_range_and_norms_are_the_identity(tmp_path: Path) -> None:
    folder = save_config(tmp_path / "model", "llama", initializer_range=0.05)
    tensors = tensors_in(create_random(folder, tmp_path / "random"))
    drawn = [tensor for name, tensor in tensors.items() if tensor.ndim == 2 and "embed" not in name]
    values = torch.cat([tensor.flatten() for tensor in drawn]).double().numpy()
    # Standard errors of a mean, a standard deviation and a kurtosis of n normal numbers; 5 of them.
    n = len(values)
    assert abs(values.mean()) < 5 * 0.05 / np.sqrt(n)
    assert abs(values.std() / 0.05 - 1) < 5 / np.sqrt(2 * n)
    assert abs(np.mean((values / 0.05) ** 4) - 3) < 5 * np.sqrt(96 / n)
    correlations = np.corrcoef([tensor.double().numpy().ravel()[:2000] for tensor in drawn if tensor.numel() >= 2000])
    assert np.abs(correlations - np.eye(len(correlations))).max() < 5 / np.sqrt(2000)
    assert all((tensor == 1).all() for name, tensor in tensors.items() if "norm" in name)
    assert all((tensor == 0).all() for name, tensor in tensors.items() if name.endswith("bias"))


@each("dtype", ["bfloat16", "float16"])
def test_half_precision_is_the_rounded_float32_draw(dtype: str, tmp_path: Path) -> None:
    single = create_random(save_config(tmp_path / "single", "qwen2", dtype="float32"), tmp_path / "a")
    half = create_random(save_config(tmp_path / "half", "qwen2", dtype=dtype), tmp_path / "b")
    rounded = {name: tensor.to(getattr(torch, dtype)) for name, tensor in tensors_in(single).items()}
    assert all(torch.equal(tensor, rounded[name]) for name, tensor in tensors_in(half).items())
    assert load_model(half).dtype == getattr(torch, dtype)


def test_the_draw_depends_on_no_other_random_state_and_changes_none(tmp_path: Path) -> None:
    folder = save_config(tmp_path / "model", "qwen2")
    created = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        created.append(tensors_in(create_random(folder, tmp_path / str(seed))))
        assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(tensor, created[1][name]) for name, tensor in created[0].items())


def test_a_configuration_without_a_known_class_gives_the_base_model(tmp_path: Path) -> None:
    folder = save_config(tmp_path / "model", "qwen2", architectures=["pipeline", "OwnModel"])
    names = tensors_in(create_random(folder, tmp_path / "random")).keys()
    assert "embed_tokens.weight" in names
    assert "lm_head.weight" not in names


# The folder


def test_tokenizer_and_template_are_copied_and_trained_weights_are_not_needed(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    (folder / "model.safetensors").rename(folder / "model-00001-of-00001.safetensors")
    (folder / "model.safetensors.index.json").write_text("{}")
    complete = tensors_in(create_random(folder, tmp_path / "complete"))
    for weights in folder.glob("*safetensors*"):
        weights.unlink()
    created = create_random(folder, tmp_path / "random")
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (created / name).read_bytes() == (folder / name).read_bytes()
    assert all(torch.equal(tensor, complete[name]) for name, tensor in tensors_in(created).items())
    assert set(json.loads((created / "model.safetensors.index.json").read_text())["weight_map"]) == complete.keys()


def test_one_block_at_a_time_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, sizes = save_config(tmp_path / "model", "llama"), []
    initialised = random_weights._initialised

    def counted(model: Any, part: Any) -> dict[str, torch.Tensor]:
        tensors = initialised(model, part)
        sizes.append(sum(one.numel() for one in model.parameters() if not one.is_meta))
        return tensors

    monkeypatch.setattr(random_weights, "_initialised", counted)
    create_random(folder, tmp_path / "random")
    block = sum(one.numel() for one in LlamaForCausalLM(load_config(folder)).model.layers[0].parameters())
    assert max(sizes) == block


def test_an_existing_folder_is_not_created_again(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "random"):
        pass
    assert create_random(tmp_path / "gone", tmp_path / "random") == tmp_path / "random"


def test_of_several_processes_one_creates_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, calls, create = save_config(tmp_path / "model", "qwen2"), [], random_weights._create
    monkeypatch.setattr(random_weights, "_create", lambda *paths: (calls.append(paths), create(*paths)))
    threads = [threading.Thread(target=create_random, args=(folder, tmp_path / "random")) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(calls) == 1
    assert (tmp_path / "random" / "config.json").is_file()


def test_an_interrupted_creation_leaves_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, initialised = save_config(tmp_path / "model", "qwen2"), random_weights._initialised
    n_parts = iter(range(3))

    def interrupted(model: Any, part: Any) -> dict[str, torch.Tensor]:
        if next(n_parts, None) is None:
            raise KeyboardInterrupt
        return initialised(model, part)

    monkeypatch.setattr(random_weights, "_initialised", interrupted)
    with pytest.raises(KeyboardInterrupt):
        create_random(folder, tmp_path / "cache" / "random")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []
    monkeypatch.setattr(random_weights, "_initialised", initialised)
    load_model(create_random(folder, tmp_path / "cache" / "random"))


# Refusals


def test_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_config(tmp_path / "model", "qwen2")
    needed = random_bytes(load_config(folder))
    assert needed == sum(tensor.nbytes for tensor in tensors_in(create_random(folder, tmp_path / "whole")).values())
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(0, 0, needed - 1))
    with pytest.raises(ModelError) as caught:
        create_random(folder, tmp_path / "random")
    assert only_line(caught).startswith("the random weights need 0.000")
    assert only_line(caught).endswith("GB free; free some space, or set THEODOLITE_CACHE to another folder")
    assert not (tmp_path / "random").exists()


def test_a_class_that_leaves_a_tensor_without_values_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_config(tmp_path / "model", "llama-3")
    whole = LlamaForCausalLM._init_weights

    def partial(self: Any, module: Any) -> None:
        if "RMSNorm" not in type(module).__name__:
            whole(self, module)

    monkeypatch.setattr(LlamaForCausalLM, "_init_weights", partial)
    monkeypatch.setattr(type(LlamaForCausalLM(LlamaConfig(**GROUPED)).model), "_init_weights", partial)
    with pytest.raises(ModelError) as caught:
        create_random(folder, tmp_path / "random")
    assert_says(only_line(caught), "LlamaForCausalLM has no … model.layers.0.input_layernorm.weight; use trained")
    assert not (tmp_path / "random").exists()


# Sources


def test_the_source_of_random_weights_has_the_revision_of_the_model_and_a_name_of_its_own(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    trained, random = (
        resolve_source(ModelSpec(id=str(folder), weights=weights), Path()) for weights in ("trained", "random")
    )
    assert (trained.name, random.name) == ("model", "model (random weights)")
    assert (trained.kind, trained.location, trained.revision) == (random.kind, random.location, random.revision)
    cache = tmp_path / "cache"
    assert fetch(random, cache, weights=False) == fetch(trained, cache) == folder.resolve()
    assert not cache.exists()
    files = fetch(random, cache)
    assert files.parent == cache / "random"
    first = files.stat().st_ino
    assert fetch(random, cache).stat().st_ino == first


def test_no_weights_of_a_hub_model_are_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, requested = save_config(tmp_path / "model", "qwen2"), []

    def downloaded(_id: str, _commit: str, patterns: list[str], _needed: list[str]) -> Path:
        requested.append(patterns)
        return folder

    monkeypatch.setattr(source, "hub_folder", downloaded)
    model = ModelSpec(id="org/tiny", revision="0" * 40, weights="random")
    load_model(fetch(resolve_source(model, Path()), tmp_path / "cache"))
    assert requested == [SMALL_FILES]


def test_qwen1_has_random_weights_of_its_conversion(saved_qwen1: Path, tmp_path: Path) -> None:
    random = resolve_source(ModelSpec(id=str(saved_qwen1), weights="random"), Path())
    model = load_model(fetch(random, tmp_path / "cache"))
    assert type(model.config) is Qwen2Config
    assert [path.name for path in (tmp_path / "cache" / "qwen1").iterdir()] == [
        path.name for path in (tmp_path / "cache" / "qwen1").glob("small-*")
    ]
