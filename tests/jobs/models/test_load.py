"""Loading models: whole checkpoints, and an error of one line for each that cannot be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each
from support.errors import only_line
from support.tiny_sizes import PLAIN
from transformers import (
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    LlamaForCausalLM,
    RemBertConfig,
    RobertaPreLayerNormConfig,
)

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.load import load_config, load_model, load_tokenizer, resolved_dtype

WEIGHTS = "model.safetensors"
A_TENSOR = "layers.1.self_attn.q_proj.weight"
ENCODER = {**PLAIN, "pad_token_id": 1, "bos_token_id": 0}


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def test_weights_load_as_they_were_saved(folder: Path) -> None:
    saved = load_file(folder / WEIGHTS)
    model = load_model(folder)
    torch.testing.assert_close(
        model.module.get_parameter(A_TENSOR).detach(), saved[f"model.{A_TENSOR}"], rtol=0, atol=0
    )
    assert len(model.blocks) == model.dimensions.n_layers == 3
    assert (model.dimensions.n_heads, model.dimensions.n_kv_heads, model.dimensions.d_head) == (4, 2, 4)
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


def test_float32_keeps_all_bits_although_the_environment_allows_tf32(folder: Path) -> None:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")  # as TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1 of NVIDIA's containers does
    try:
        load_model(folder)
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cuda.matmul.allow_tf32
        assert not torch.backends.cudnn.allow_tf32
    finally:
        torch.set_float32_matmul_precision(before)


def test_dtype_is_that_of_the_checkpoint_or_the_requested_one(folder: Path) -> None:
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert load_model(folder).dtype == torch.bfloat16
    assert load_model(folder, dtype="float32").dtype == torch.float32
    config = load_config(folder)
    assert resolved_dtype(config, "auto") == "bfloat16"
    assert resolved_dtype(config, "float16") == "float16"


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.999])
def test_truncated_weights_are_an_error_of_one_line(folder: Path, kept: float) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert only_line(caught).startswith(f"cannot read {folder / WEIGHTS}: ")
    assert "corrupt or truncated" in only_line(caught)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(f"model.{A_TENSOR}"))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert f"{folder} lack the tensor model.{A_TENSOR}" in only_line(caught)


def test_the_base_model_loads_without_a_head(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    assert load_model(folder).dimensions.d_model == 16


@each("family", ["albert", "bert", "camembert", "xlm-roberta"])
def test_a_missing_pooler_is_not_needed(tmp_path: Path, family: str) -> None:
    """The checkpoint of a masked language model has none, and no site is behind it."""
    tiny.tiny_model(family, auto_class=AutoModelForMaskedLM).save_pretrained(tmp_path)
    assert load_model(tmp_path).dimensions.n_layers == 5


@each("config_class", [RobertaPreLayerNormConfig, RemBertConfig])
def test_an_unknown_encoder_is_refused_for_its_blocks_and_not_for_a_missing_pooler(
    tmp_path: Path, config_class: Any
) -> None:
    AutoModelForMaskedLM.from_config(config_class(**ENCODER)).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError) as caught:
        load_model(tmp_path)
    assert "a token's stream depends on the tokens after it" in only_line(caught)


def test_a_decoder_of_an_encoder_family_needs_no_pooler(tmp_path: Path) -> None:
    config = RobertaPreLayerNormConfig(**ENCODER, is_decoder=True)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    assert load_model(tmp_path).anatomy.known_by == "probe"


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({f"model.{A_TENSOR}": torch.zeros(3, 3)}))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert A_TENSOR in only_line(caught)


def test_tensors_of_blocks_beyond_the_configuration_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert "layers.2." in only_line(caught)
    assert "use the config.json that belongs to these weights" in only_line(caught)


def test_a_bias_that_the_configuration_does_not_use_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(16)}))
    with pytest.raises(
        ModelError,
        match=r"the configuration .* does not use the tensor model\.layers\.1\.self_attn\.q_proj\.bias",
    ):
        load_model(folder)


def test_constants_that_older_libraries_stored_are_ignored(folder: Path) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda weights: weights.update({name: torch.ones(2)}))
    assert load_model(folder).dimensions.n_layers == 3


def test_a_missing_weight_file_is_named(saved_llama: Path, tmp_path: Path) -> None:
    LlamaForCausalLM.from_pretrained(saved_llama).save_pretrained(tmp_path, max_shard_size="3KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path)
    assert gone.name in only_line(caught)


@pytest.mark.parametrize("dtype", [torch.int8, torch.int64, torch.bool])
def test_a_matrix_of_integers_is_refused(folder: Path, dtype: torch.dtype) -> None:
    tensors = load_file(folder / WEIGHTS)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: tensors[name].to(dtype)}, folder / WEIGHTS, {"format": "pt"})
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert f"have {name} in " in only_line(caught)


def test_pickled_weights_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert f"{folder} has no .safetensors weights" in only_line(caught)


def test_pickled_weights_are_not_read_beside_an_adapter(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match=r"has no \.safetensors weights"):
        load_model(folder)


@pytest.mark.parametrize(
    ("content", "word"),
    [('{"model_type"', "JSON"), ("{}", "model_type"), ('{"model_type": "zork"}', "zork")],
)
def test_a_configuration_that_cannot_be_read_is_an_error_of_one_line(folder: Path, content: str, word: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert only_line(caught).startswith(("cannot load the configuration in ", "cannot read "))
    assert word in only_line(caught)


def test_a_missing_tokenizer_is_an_error_of_one_line(folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_tokenizer(folder)
    assert only_line(caught).startswith(f"{folder} has no tokenizer")
