"""The names of a checkpoint are compared with the parameters of its model both ways, outside of blocks too."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny, tiny_survey
from support.each import each
from support.errors import only_line
from support.quantised_cases import changed, fetched, saved
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError
from theodolite.settings import Settings
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.inspection import inspect_model
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.next_token_blocks import left_out_note
from theodolite_jobs.models.stored_names import check_names, compare_names
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.prepare import prepare

WEIGHTS = "model.safetensors"
Tensors = dict[str, torch.Tensor]
Change = Callable[[Tensors], Any]
ONE = torch.ones(1)


def change(folder: Path, action: Change, **settings: Any) -> Path:
    tensors = load_file(folder / WEIGHTS)
    action(tensors)
    save_file({name: one.clone() for name, one in tensors.items()}, folder / WEIGHTS, metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(raw | settings))
    return folder


def open_weights(folder: Path) -> Weights:
    return Weights(folder, load_config(folder))


def refusal_of(action: Callable[[Path], object], folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        action(folder)
    return only_line(caught)


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kinds")
    for family in ("t5", "deepseek_v3", "qwen3_next", "llava", "bert", "qwen3_moe", "gpt2"):
        tiny.model_with_head(family).save_pretrained(folder / family)
    return folder


def copied(kinds: Path, family: str, tmp_path: Path) -> Path:
    return Path(shutil.copytree(kinds / family, tmp_path / family))


@pytest.mark.parametrize("name", ["model.norm.weight", "model.embed_tokens.weight"])
def test_a_missing_tensor_outside_of_blocks_is_named(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors.pop(name))
    assert f" {name.removeprefix('model.')}" in refusal_of(load_model, folder)
    assert " lack" in refusal_of(open_weights, folder)


@pytest.mark.parametrize("name", ["model.norm.bias", "model.embed_norm.weight", "lm_head.bias", "model.layers.0.mlp.x"])
def test_a_surplus_tensor_of_the_stream_or_of_the_head_is_named(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors.update({name: ONE}))
    for action in (load_model, open_weights):
        message = refusal_of(action, folder)
        assert f"does not use the tensor {name}; use the config" in message


def test_a_surplus_tensor_in_files_of_a_base_model_is_named(kinds: Path, tmp_path: Path) -> None:
    folder = copied(kinds, "t5", tmp_path)
    change(folder, lambda tensors: tensors.update({"encoder.first_norm.weight": ONE, "decoder.unread.weight": ONE}))
    assert "does not use the tensor encoder.first_norm" in refusal_of(load_model, folder)


@pytest.mark.parametrize("name", ["v_head.summary.weight", "cls.seq_relationship.weight", "rotary_emb.inv_freq"])
def test_another_head_and_constants_are_not_needed(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors.update({name: ONE}))
    assert load_model(folder).dimensions.n_layers == 3


def test_a_surplus_tensor_of_the_text_part_is_named_and_one_of_the_images_is_not(kinds: Path, tmp_path: Path) -> None:
    folder = copied(kinds, "llava", tmp_path)
    change(folder, lambda tensors: tensors.update({"vision_tower.unread.weight": ONE}))
    assert load_model(folder).dimensions.n_layers == 5
    name = "language_model.model.first_norm.weight"
    change(folder, lambda tensors: tensors.update({name: ONE}))
    assert name in refusal_of(load_model, folder)


@pytest.mark.parametrize("name", ["model.layers.1.mlp.up_proj.weight", "lm_head.weight", "model.norm.weight"])
def test_a_tensor_of_another_shape_is_named_with_the_one_that_is_needed(folder: Path, name: str) -> None:
    change(folder, lambda tensors: tensors.update({name: tensors[name][:-1]}))
    for action in (load_model, open_weights, lambda one: check_names(one, load_config(one))):
        message = refusal_of(action, folder)
        assert re.search(rf"do not fit the configuration: {name} has the shape \(.*\), expected \(", message)


def test_one_parameter_under_two_names_is_refused(folder: Path) -> None:
    change(folder, lambda tensors: tensors.update({"norm.weight": tensors["model.norm.weight"] * 2}))
    for action in (load_model, open_weights):
        assert "have one parameter twice, as model.norm.weight and as norm.weight" in refusal_of(action, folder)


def test_experts_that_are_merged_and_apart_at_once_are_refused(kinds: Path, tmp_path: Path) -> None:
    folder = copied(kinds, "qwen3_moe", tmp_path)
    name = "model.layers.1.mlp.experts.gate_up_proj"
    change(folder, lambda tensors: tensors.update({name: torch.ones(4, 48, 48)}))
    names = TensorFiles(folder).headers
    assert [pair[0] for pair in compare_names(load_config(folder), names).repeated] == [name]
    for action in (load_model, open_weights):
        assert refusal_of(action, folder)


def test_an_expert_with_another_number_is_refused(kinds: Path, tmp_path: Path) -> None:
    folder = copied(kinds, "qwen3_moe", tmp_path)

    def renumber(tensors: Tensors) -> None:
        for name in [name for name in tensors if ".experts.2." in name]:
            tensors[name.replace(".experts.2.", ".experts.7.")] = tensors.pop(name)

    change(folder, renumber)
    stored = compare_names(load_config(folder), TensorFiles(folder).headers)
    assert stored.missing[0] == "model.layers.1.mlp.experts.2.down_proj.weight"
    assert stored.surplus[0] == "model.layers.1.mlp.experts.7.down_proj.weight"


def without_gates(tensors: Tensors) -> None:
    for name in [name for name in tensors if "experts" in name and "gate_proj" in name]:
        del tensors[name]


def narrower(tensors: Tensors) -> None:
    name = "model.layers.1.mlp.experts.2.down_proj.weight"
    tensors[name] = tensors[name][:, :-8]


def widest(tensors: Tensors) -> None:
    for name in [name for name in tensors if "experts" in name and "down_proj" in name]:
        tensors[name] = tensors[name][:, :-8]


def uneven(tensors: Tensors) -> None:
    """All gates get one row fewer, and what they gate one row more, so that the sum is as in the model."""
    for name in [name for name in tensors if "experts" in name and "gate_proj" in name]:
        other = name.replace("gate_proj", "up_proj")
        tensors[other] = torch.cat([tensors[name][-1:], tensors[other]])
        tensors[name] = tensors[name][:-1]


@each(
    "action, message",
    [
        (without_gates, "lack 8 tensors, the first is model.layers.1.mlp.experts.0.gate_proj.weight"),
        (widest, "model.layers.1.mlp.experts.0.down_proj.weight and 3 tensors that are joined with it have"),
        (narrower, r"experts.2.down_proj.weight of shape \(48, 16\), which must be alike"),
        (uneven, r"experts.0.gate_proj.weight of shape .* must be alike"),
    ],
)
def test_experts_that_cannot_be_joined_are_named(kinds: Path, tmp_path: Path, action: Change, message: str) -> None:
    folder = change(copied(kinds, "qwen3_moe", tmp_path), action)
    for reader in (load_model, lambda one: check_names(one, load_config(one))):
        assert re.search(message, refusal_of(reader, folder))
    assert refusal_of(open_weights, folder)


# Quantised checkpoints, before anything is written


def test_a_quantised_checkpoint_without_its_final_norm_is_not_converted(tmp_path: Path) -> None:
    saved("gptq", tmp_path / "model")
    changed(tmp_path / "model", lambda tensors: tensors.pop("model.norm.weight"))
    assert "lack the tensor norm.weight" in refusal_of(fetched, tmp_path / "model")


@each("name", ["model.norm.bias", "model.layers.0.self_attn.q_proj.bias"])
def test_a_quantised_checkpoint_with_a_surplus_tensor_is_not_converted(tmp_path: Path, name: str) -> None:
    saved("fp8", tmp_path / "model")
    changed(tmp_path / "model", lambda tensors: tensors.update({name: ONE}))
    assert f"does not use the tensor {name}" in refusal_of(fetched, tmp_path / "model")
    assert not [path for path in (tmp_path / "cache" / "dequantised").iterdir() if path.is_dir()]


# Multi-token prediction


def with_next_token_block(tensors: Tensors) -> None:
    block = {
        name.replace(".4.", ".5."): one.clone() for name, one in tensors.items() if name.startswith("model.layers.4.")
    }
    tensors |= block | {"model.layers.5.enorm.weight": ONE, "model.layers.5.eh_proj.weight": ONE}


def test_a_block_for_multi_token_prediction_is_left_out(kinds: Path, tmp_path: Path) -> None:
    folder = copied(kinds, "deepseek_v3", tmp_path)
    plain = load_model(folder).run(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state
    change(folder, with_next_token_block, num_nextn_predict_layers=1)
    again = load_model(folder).run(input_ids=torch.tensor([[5, 6, 7]])).last_hidden_state
    torch.testing.assert_close(plain, again)
    weights = open_weights(folder)
    assert weights.dimensions.n_layers == 5
    assert weights.left_out == len([name for name in load_file(folder / WEIGHTS) if ".layers.5." in name])


@each(
    "action, count",
    [
        (with_next_token_block, 0),
        (lambda tensors: tensors.update({"model.layers.5.mlp.up_proj.weight": ONE}), 1),
        (lambda tensors: tensors.update({"model.layers.5.mlp.router.weight": ONE}), 1),
        (lambda tensors: (with_next_token_block(tensors), tensors.update({"model.layers.6.enorm.weight": ONE})), 1),
        (lambda tensors: (with_next_token_block(tensors), tensors.update({"model.first_norm.weight": ONE})), 1),
    ],
)
def test_only_the_stated_blocks_for_multi_token_prediction_are_left_out(
    kinds: Path, tmp_path: Path, action: Change, count: int
) -> None:
    folder = copied(kinds, "deepseek_v3", tmp_path)
    change(folder, action, num_nextn_predict_layers=count)
    for reader in (load_model, open_weights):
        assert "the configuration of the weights" in refusal_of(reader, folder)


def test_a_survey_says_what_it_leaves_out(tmp_path: Path) -> None:
    """The plan warns, run.json and the description of the model name it."""
    model = tiny_survey.save_model(tmp_path / "model", config=CONFIGS["deepseek_v3"])
    spec = ModelSpec(id=str(model))
    settings = Settings(store=str(tmp_path / "store"), cache=tmp_path / "cache")
    before = prepare(tiny_survey.spec_of(model, analyses=["curves"]), tmp_path, settings)
    assert before.left_out is None
    assert before.record("eager", {}).model.left_out is None
    change(model, with_next_token_block, num_nextn_predict_layers=1)
    prepared = prepare(tiny_survey.spec_of(model, analyses=["curves"]), tmp_path, settings)
    note = "tensors of blocks for multi-token prediction are left out: they read the stream after the last block"
    assert note in str(prepared.left_out)
    assert prepared.left_out in prepared.warnings
    assert prepared.record("eager", {}).model.left_out == prepared.left_out
    assert prepared.left_out in inspect_model(spec, tmp_path, settings)["notes"]


def test_the_index_alone_says_what_is_left_out(kinds: Path, tmp_path: Path) -> None:
    config = load_config(kinds / "qwen3_next")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"mtp.fc.weight": "a"}}))
    assert str(left_out_note(tmp_path, config)).startswith("1 tensors of blocks for multi-token prediction")
    (tmp_path / "model.safetensors.index.json").unlink()
    assert left_out_note(tmp_path, config) is None


def test_tensors_of_mtp_are_never_read_as_those_of_the_model(kinds: Path, tmp_path: Path) -> None:
    """Their names are shorter than those of the model's own table and head."""
    folder = copied(kinds, "qwen3_next", tmp_path)
    plain = open_weights(folder)
    embedding, head, block = plain.embedding(), plain.unembedding(), plain.attention(4)
    own = load_file(folder / WEIGHTS)
    more = {f"mtp.{name.removeprefix('model.')}": one * 2 for name, one in own.items() if "layers.4" in name}
    more |= {"mtp.embed_tokens.weight": own["model.embed_tokens.weight"] * 2, "mtp.fc.weight": ONE}
    more |= {"mtp.lm_head.weight": own["model.embed_tokens.weight"] * 2}
    change(folder, lambda tensors: tensors.update(more))
    weights = open_weights(folder)
    assert weights.left_out == len(more)
    assert torch.equal(weights.embedding(), embedding)
    assert torch.equal(weights.unembedding(), head)
    assert torch.equal(weights.attention(4).q, block.q)
    assert load_model(folder).dimensions.n_layers == 5
