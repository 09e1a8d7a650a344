"""An adapter that cannot be merged, or that contradicts its own settings or its base, is refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from support.adapters import SETTINGS, TENSORS, change_settings, change_tensors, save_adapter, save_base, save_tensors
from support.each import each
from support.errors import only_line

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.adapters import describe_adapter, merge_adapter
from theodolite_jobs.models.load import load_config

Q = "base_model.model.model.layers.0.self_attn.q_proj"
Tensors = dict[str, torch.Tensor]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and an adapter; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved")
    base = save_base("llama", folder / "base", tie_word_embeddings=False)
    save_adapter(base, folder / "adapter", target_modules=["q_proj", "v_proj"])
    return folder


def copied(saved: Path, folder: Path) -> tuple[Path, Path]:
    """Return copies of a base and of an adapter that a test may change."""
    for name in ("base", "adapter"):
        shutil.copytree(saved / name, folder / name)
    return folder / "base", folder / "adapter"


@pytest.fixture
def pair(saved: Path, tmp_path: Path) -> tuple[Path, Path]:
    return copied(saved, tmp_path)


def refusal(pair: tuple[Path, Path], *, before_weights: bool = True) -> str:
    """Return why a pair is refused; without a look at the weights, if that is possible."""
    base, adapter = pair
    if before_weights:
        with pytest.raises(ModelError) as error:
            describe_adapter(load_config(base), adapter)
        return only_line(error)
    with pytest.raises(ModelError) as error:
        merge_adapter(base, adapter, base.parent / "merged")
    assert not (base.parent / "merged").exists()
    return only_line(error)


@each(
    "changes, words",
    [
        ({"peft_type": "IA3"}, ['peft_type is "IA3"', "allowed: LORA", "survey the merged model"]),
        ({"peft_type": "ADALORA"}, ['peft_type is "ADALORA"']),
        ({"peft_type": None}, ["peft_type is null"]),
        ({"init_lora_weights": "pissa"}, ['init_lora_weights is "pissa"', "path_initial_model_for_weight_conversion"]),
        ({"init_lora_weights": "pissa_niter_4"}, ['"pissa_niter_4"', "changed the base"]),
        ({"init_lora_weights": "olora"}, ['"olora"']),
        ({"init_lora_weights": "corda"}, ['"corda"']),
        ({"init_lora_weights": "loftq"}, ['"loftq"']),
        ({"init_lora_weights": "lora_ga"}, ['"lora_ga"']),
        ({"init_lora_weights": 1}, ["init_lora_weights is 1"]),
        ({"alora_invocation_tokens": [1, 2]}, ["alora_invocation_tokens is [1, 2]", "acts only after these tokens"]),
        ({"alora_invocation_tokens": []}, ["alora_invocation_tokens is []"]),
        ({"layer_replication": [[0, 2], [1, 3]]}, ["layer_replication", "repeats layers"]),
        ({"lora_bias": True}, ["lora_bias is true"]),
        ({"megatron_config": {"a": 1}}, ["megatron_config"]),
        ({"use_qalora": True}, ["use_qalora"]),
        ({"use_bdlora": {"nblocks": 2}}, ["use_bdlora"]),
        ({"kasa_config": {}}, ["kasa_config", "also changes the base"]),
        ({"arrow_config": {"top_k": 1}}, ["arrow_config"]),
        ({"velora_config": {}}, ["velora_config"]),
        ({"monteclora_config": {}}, ["monteclora_config"]),
        ({"new_option": 3}, ["new_option is 3", "is not known here"]),
        ({"r": 0}, ["r is 0", "allowed: greater than or equal to 1"]),
        ({"r": "4"}, ['r is "4"', "allowed: a valid integer"]),
        ({"r": True}, ["r is true"]),
        ({"lora_alpha": "6"}, ['is "6"', "lora_alpha"]),
        ({"lora_alpha": float("nan")}, ["lora_alpha"]),
        ({"bias": "some"}, ['bias is "some"', "'none', 'all' or 'lora_only'"]),
        ({"use_dora": "yes"}, ['use_dora is "yes"']),
        ({"rank_pattern": None}, ["rank_pattern is null"]),
        ({"rank_pattern": {"q_proj": "2"}}, ['rank_pattern.q_proj is "2"']),
        ({"target_modules": [3]}, ["target_modules"]),
        ({"target_modules": "("}, ["merge the adapter", "at position 0"]),
        ({"target_modules": ["c_attn"]}, ["c_attn", "not found"]),
        ({"target_modules": ["q_proj"]}, ["has 10 tensors", "v_proj.lora_A.weight"]),
        ({"target_modules": ["q_proj", "v_proj", "k_proj"]}, ["lacks 10 tensors", "k_proj.lora_A.weight"]),
        ({"layers_to_transform": [0]}, ["layers.1.self_attn.q_proj.lora_A.weight"]),
        ({"use_dora": True}, ["lacks 10 tensors", "q_proj.lora_magnitude_vector"]),
        ({"bias": "all"}, ["lacks", ".bias"]),
        ({"modules_to_save": ["norm"]}, ["lacks", "norm.weight"]),
        ({"rank_pattern": {"v_proj": 2}}, ["v_proj.lora_A.weight has the shape (4, 48)", "require (2, 48)"]),
        ({"layers_pattern": "layers"}, ["layers_pattern"]),
        ({"trainable_token_indices": [1_000_000]}, ["trainable_token_indices names 1000000", "tokens"]),
        ({"trainable_token_indices": [3, 3]}, ["trainable_token_indices names a token twice"]),
        ({"trainable_token_indices": [-1]}, ["trainable_token_indices"]),
        ({"task_type": "OTHER"}, ["OTHER"]),
    ],
)
def test_a_setting_is_refused_by_name(saved: Path, tmp_path: Path, changes: dict[str, Any], words: list[str]) -> None:
    pair = copied(saved, tmp_path)
    change_settings(pair[1], **changes)
    message = refusal(pair)
    for word in words:
        assert word in message


def _drop(name: str) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__delitem__(name)


def _put(name: str, tensor: torch.Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.update({name: tensor})


@each(
    "change, words",
    [
        (_drop(f"{Q}.lora_A.weight"), ["lacks the tensor", f"{Q}.lora_A.weight"]),
        (_drop(f"{Q}.lora_B.weight"), ["lacks the tensor", f"{Q}.lora_B.weight"]),
        (_put(f"{Q}.lora_C.weight", torch.zeros(2)), ["has the tensor", f"{Q}.lora_C.weight"]),
        (_put(f"{Q}.lora_magnitude_vector", torch.zeros(48)), ["has the tensor", f"{Q}.lora_magnitude_vector"]),
        (_put(Q.replace("q_", "k_") + ".lora_A.weight", torch.zeros(4, 48)), ["k_proj.lora_A.weight"]),
        (_put("base_model.model.lm_head.weight", torch.zeros(3)), ["lm_head.weight has the shape (3,)"]),
        (_put("base_model.model.model.norm.weight", torch.zeros(48)), ["has the tensor", "model.norm.weight"]),
        (_put(f"{Q}.base_layer.bias", torch.zeros(48)), ["base_layer.bias"]),
        (_put(f"{Q}.lora_A.weight", torch.zeros(3, 48)), ["lora_A.weight has the shape (3, 48)", "require (4, 48)"]),
        (_put(f"{Q}.lora_A.weight", torch.zeros(4, 47)), ["(4, 47)"]),
        (_put(f"{Q}.lora_A.weight", torch.zeros(4)), ["(4,)"]),
        (_put(f"{Q}.lora_A.weight", torch.zeros(4, 48, dtype=torch.int8)), ["is stored as I8", "F32"]),
        (
            _put("model.layers.0.mlp.x", torch.zeros(1)),
            ["model.layers.0.mlp.x", "does not begin with base_model"],
        ),
        (lambda tensors: tensors.clear(), ["has no tensor"]),
    ],
)
def test_a_tensor_is_refused_by_name(
    saved: Path, tmp_path: Path, change: Callable[[Tensors], None], words: list[str]
) -> None:
    pair = copied(saved, tmp_path)
    change_tensors(pair[1], change)
    message = refusal(pair)
    for word in words:
        assert word in message


def test_pickled_weights_are_refused(pair: tuple[Path, Path]) -> None:
    (pair[1] / TENSORS).rename(pair[1] / "adapter_model.bin")
    assert "adapter_model.bin, and pickles can run code" in refusal(pair)
    (pair[1] / "adapter_model.bin").unlink()
    assert f"has no {TENSORS}" in refusal(pair)


def test_truncated_weights_are_refused(pair: tuple[Path, Path]) -> None:
    file = pair[1] / TENSORS
    file.write_bytes(file.read_bytes()[:-10])
    assert "corrupt or truncated" in refusal(pair)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_merged_matrix_that_is_not_finite_is_named(pair: tuple[Path, Path], value: float) -> None:
    change_tensors(pair[1], lambda tensors: tensors[f"{Q}.lora_B.weight"].__setitem__((0, 0), value))
    message = refusal(pair, before_weights=False)
    assert "not finite in model.layers.0.self_attn.q_proj.weight" in message


def test_the_tensors_of_the_base_must_fit(pair: tuple[Path, Path]) -> None:
    base, name = pair[0], "model.layers.1.self_attn.v_proj.weight"
    tensors = load_file(base / "model.safetensors")
    whole = tensors.pop(name)
    save_tensors(tensors, base)
    assert f"lack {name}, which the adapter changes" in refusal(pair, before_weights=False)
    save_tensors({**tensors, name: whole[:-1].clone()}, base)
    assert f"have {name} with the shape" in refusal(pair, before_weights=False)
    save_tensors({**tensors, name: whole, name.removeprefix("model."): whole.clone()}, base)
    assert f"have both {name} and {name.removeprefix('model.')}" in refusal(pair, before_weights=False)


def test_another_base_is_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    other = save_base("llama", tmp_path / "wide", hidden_size=96, head_dim=8)
    assert "has the shape (4, 48), and its rank and this base require (4, 96)" in refusal((other, pair[1]))
    other = save_base("gpt2", tmp_path / "gpt2")
    assert "not found in the base model" in refusal((other, pair[1]))


def test_a_new_embedding_without_a_head_of_its_size_is_refused(pair: tuple[Path, Path]) -> None:
    shape = (100, load_config(pair[0]).hidden_size)
    change_tensors(pair[1], _put("base_model.model.model.embed_tokens.weight", torch.zeros(shape)))
    assert "an embedding of 100 tokens, but no lm_head.weight of this size" in refusal(pair)


@each("module", ["embed_tokens", "lm_head"])
def test_one_of_two_tied_embeddings_of_another_size_is_refused(tmp_path: Path, module: str) -> None:
    base = save_base("llama", tmp_path / "base", tie_word_embeddings=True)
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["q_proj"], modules_to_save=[module])
    name = {"embed_tokens": "base_model.model.model.embed_tokens", "lm_head": "base_model.model.lm_head"}[module]
    change_tensors(adapter, lambda tensors: tensors.update({f"{name}.weight": tensors[f"{name}.weight"][:60].clone()}))
    other = {"embed_tokens": "lm_head", "lm_head": "model.embed_tokens"}[module]
    assert f"60 tokens, but no {other}.weight of this size" in refusal((base, adapter))


def test_copies_that_differ_are_refused(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", tie_word_embeddings=True)
    saved = {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]}
    adapter = save_adapter(base, tmp_path / "adapter", tokens=100, **saved)
    copy = "base_model.model.model.embed_tokens.modules_to_save.weight"
    change_tensors(adapter, lambda tensors: tensors[copy].add_(1))
    assert f"other values in {copy}" in refusal((base, adapter), before_weights=False)


def test_tied_tensors_that_differ_are_refused(tmp_path: Path) -> None:
    base = save_base("llama", tmp_path / "base", tie_word_embeddings=True)
    tied = {"target_modules": ["embed_tokens"], "ensure_weight_tying": True}
    adapter = save_adapter(base, tmp_path / "adapter", **tied)
    change_tensors(adapter, lambda tensors: tensors["base_model.model.lm_head.lora_A.weight"].add_(1))
    assert "lm_head.weight other values" in refusal((base, adapter), before_weights=False)


def test_a_module_that_is_no_matrix_is_refused(tmp_path: Path) -> None:
    base = save_base("gemma3", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["patch_embedding"])
    assert "patch_embedding, which is of the kind Conv2d" in refusal((base, adapter))


def test_directions_of_experts_are_refused(tmp_path: Path) -> None:
    base = save_base("mixtral", tmp_path / "base")
    adapter = save_adapter(
        base, tmp_path / "adapter", target_modules=["q_proj"], target_parameters=["experts.down_proj"]
    )
    change_settings(adapter, use_dora=True)
    assert "does not work with" in refusal((base, adapter))


def test_an_adapter_of_qwen1_is_refused(tmp_path: Path) -> None:
    base = save_base("qwen2", tmp_path / "base")
    adapter = save_adapter(base, tmp_path / "adapter", target_modules=["o_proj"])
    names = {"base_model.model.model.layers": "base_model.model.transformer.h", "self_attn.o_proj": "attn.c_proj"}

    def rename(tensors: Tensors) -> None:
        for name in list(tensors):
            new = name
            for ours, theirs in names.items():
                new = new.replace(ours, theirs)
            tensors[new] = tensors.pop(name)

    change_tensors(adapter, rename)
    change_settings(adapter, target_modules=["c_proj"])
    assert "was trained on Qwen1's own code" in refusal((base, adapter))


def test_settings_that_are_no_json_object_are_refused(pair: tuple[Path, Path]) -> None:
    (pair[1] / SETTINGS).write_text("{")
    assert f"{SETTINGS} as JSON" in refusal(pair)
    (pair[1] / SETTINGS).write_text("[]")
    assert "not a JSON object" in refusal(pair)


@pytest.mark.parametrize("name", ["r", "lora_alpha"])
def test_a_setting_that_is_missing_gets_no_default(pair: tuple[Path, Path], name: str) -> None:
    raw = json.loads((pair[1] / SETTINGS).read_text())
    del raw[name]
    (pair[1] / SETTINGS).write_text(json.dumps(raw))
    assert f"{SETTINGS} lacks {name}" in refusal(pair)


def test_settings_that_are_off_are_accepted(pair: tuple[Path, Path]) -> None:
    change_settings(pair[1], new_option=None, other_option=False, corda_config={"verbose": True})
    assert describe_adapter(load_config(pair[0]), pair[1])["method"] == "LoRA"


@each(
    "settings",
    [
        {"target_modules": ["q_proj", "lm_head"]},
        {"target_modules": ["q_proj", "embed_tokens"]},
        {"target_modules": ["q_proj"], "trainable_token_indices": [3]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"]},
    ],
)
def test_a_head_of_its_own_in_a_tied_base_is_refused(tmp_path: Path, settings: dict[str, Any]) -> None:
    base = save_base("llama", tmp_path / "base", tie_word_embeddings=True)
    adapter = save_adapter(base, tmp_path / "adapter", **settings)
    tensors = load_file(base / "model.safetensors")
    save_tensors({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"] + 1}, base)
    assert "lm_head.weight in the files differs from model.embed" in refusal((base, adapter), before_weights=False)


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.int8])
def test_a_base_that_hides_its_quantisation_is_refused(pair: tuple[Path, Path], dtype: torch.dtype) -> None:
    name = "model.layers.0.self_attn.q_proj.weight"
    tensors = load_file(pair[0] / "model.safetensors")
    save_tensors({**tensors, name: tensors[name].to(dtype)}, pair[0])
    assert f"have {name} in " in refusal(pair, before_weights=False)


@pytest.fixture(scope="module")
def saved_experts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A base and an adapter of its single experts, as before transformers 5."""
    folder = tmp_path_factory.mktemp("experts")
    base = save_base("mixtral", folder / "base", tie_word_embeddings=False)
    adapter = save_adapter(base, folder / "adapter", target_modules=["q_proj"])
    change_settings(adapter, target_modules=["q_proj", "w1", "w2", "w3"])

    def add(tensors: Tensors) -> None:
        for name, whole in load_file(base / "model.safetensors").items():
            if re.search(r"\.experts\.\d+\.w[123]\.", name):
                stem, (out, width) = f"base_model.model.{name.removesuffix('.weight')}", whole.shape
                tensors |= {f"{stem}.lora_A.weight": torch.ones(4, width), f"{stem}.lora_B.weight": torch.ones(out, 4)}

    change_tensors(adapter, add)
    return folder


@pytest.fixture
def experts(saved_experts: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A base, and a copy of its adapter that a test may change."""
    return saved_experts / "base", Path(shutil.copytree(saved_experts / "adapter", tmp_path / "adapter"))


@pytest.mark.parametrize(
    "changes", [{"use_rslora": True}, {"alpha_pattern": {"w2": 32}}, {"rank_pattern": {"w9": 2}}], ids=str
)
def test_scales_of_single_experts_are_refused(experts: tuple[Path, Path], changes: dict[str, Any]) -> None:
    assert describe_adapter(load_config(experts[0]), experts[1])["method"] == "LoRA"
    change_settings(experts[1], **changes)
    assert f"adapter_config.json sets {next(iter(changes))}" in refusal(experts)


@pytest.mark.parametrize(
    ("old", "new", "lacking"),
    [
        (".0.block_sparse_moe.experts.2.", ".0.block_sparse_moe.experts.7.", "experts.2.w1.lora_A.weight"),
        (".0.block_sparse_moe.experts.1.w1.", None, "experts.1.w1.lora_A.weight"),
        (r".0.block_sparse_moe.experts.\d+.w3.", None, "experts.0.w3.lora_A.weight"),
    ],
)
def test_single_experts_that_are_not_whole_are_refused(
    experts: tuple[Path, Path], old: str, new: str | None, lacking: str
) -> None:
    def change(tensors: Tensors) -> None:
        for name in [name for name in tensors if re.search(old, name)]:
            tensor = tensors.pop(name)
            if new is not None:
                tensors[name.replace(old, new)] = tensor

    change_tensors(experts[1], change)
    message = refusal(experts)
    assert "lacks base_model.model.model.layers.0." in message
    assert f"{lacking}, and has other" in message


@each("family", ["t5", "bart"])
@each("settings", [{"target_modules": ["shared"]}, {"modules_to_save": ["shared"]}])
def test_an_embedding_of_many_names_is_refused(tmp_path: Path, family: str, settings: dict[str, Any]) -> None:
    base = save_base(family, tmp_path / "base")
    adapter = save_adapter(
        base, tmp_path / "adapter", task_type="SEQ_2_SEQ_LM", **{"target_modules": r".*\.(q|q_proj)", **settings}
    )
    message = refusal((base, adapter))
    assert "shared.weight or the head tied to it, and the model also uses it as " in message
