"""Files of weights that are sharded, old, truncated or incomplete; test_every_family.py reads those of each family."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each
from support.errors import only_line
from support.tiny_configs import CONFIGS
from transformers import AutoModelForCausalLM, CodeGenConfig, DeepseekV32Config, OlmoHybridConfig

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.weights import Weights


@pytest.fixture
def llama(tmp_path):
    tiny.tiny_model("llama", auto_class=AutoModelForCausalLM).save_pretrained(tmp_path, max_shard_size="50KB")
    return tmp_path, CONFIGS["llama"]


def test_a_sharded_checkpoint_is_read_through_its_index(llama):
    folder, config = llama
    assert len(list(folder.glob("*.safetensors"))) > 2
    assert Weights(folder, config).attention(4).q.shape == (4, 48, 16)
    next(iter(sorted(folder.glob("*.safetensors")))).unlink()
    with pytest.raises(ModelError, match=r"lacks model-00001-of-\d+.safetensors, which model.safetensors.index.json"):
        Weights(folder, config)


def test_a_truncated_file_is_named(llama):
    folder, config = llama
    path = sorted(folder.glob("*.safetensors"))[0]
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(ModelError, match="it is corrupt or truncated"):
        Weights(folder, config).embedding()


@each("content", ["{}", "[]", '{"weight_map": ["a"]}', "{", "[" * 100_000])
def test_an_invalid_index_is_named(llama, content):
    folder, config = llama
    (folder / "model.safetensors.index.json").write_text(content)
    with pytest.raises(ModelError, match=r"is not an index|cannot read .*index\.json"):
        Weights(folder, config)


def test_a_missing_tensor_is_named(llama):
    folder, config = llama
    index = folder / "model.safetensors.index.json"
    names = json.loads(index.read_text())
    name = "model.layers.2.self_attn.k_proj.weight"
    file = folder / names["weight_map"].pop(name)
    index.write_text(json.dumps(names))
    save_file({one: tensor for one, tensor in load_file(file).items() if one != name}, file, {"format": "pt"})
    with pytest.raises(ModelError, match=r"lack the tensor model\.layers\.2\.self_attn\.k_proj\.weight"):
        Weights(folder, config).attention(2)


def test_gamma_and_beta_of_older_files_are_read_as_scale_and_bias(tmp_path):
    tiny.tiny_model("bert").save_pretrained(tmp_path)
    whole = Weights(tmp_path, CONFIGS["bert"]).norm(1, "mlp_output")
    tensors = load_file(tmp_path / "model.safetensors")
    renamed = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    save_file(renamed, tmp_path / "model.safetensors", metadata={"format": "pt"})
    older = Weights(tmp_path, CONFIGS["bert"]).norm(1, "mlp_output")
    np.testing.assert_array_equal(older.scale, whole.scale)
    np.testing.assert_array_equal(older.bias, whole.bias)


def test_weights_in_half_precision_are_returned_in_the_requested_dtype(tmp_path):
    tiny.tiny_model("qwen2").bfloat16().save_pretrained(tmp_path)
    assert Weights(tmp_path, CONFIGS["qwen2"]).embedding().dtype == torch.float32


def test_a_missing_head_is_refused(tmp_path):
    tiny.tiny_model("qwen2").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="no language-model head"):
        Weights(tmp_path, CONFIGS["qwen2"]).unembedding()


def test_an_expert_is_required_only_for_a_model_with_experts(tmp_path):
    tiny.tiny_model("mixtral").save_pretrained(tmp_path / "mixtral")
    with pytest.raises(ValueError, match="experts"):
        Weights(tmp_path / "mixtral", CONFIGS["mixtral"]).mlp(0)
    tiny.tiny_model("qwen2").save_pretrained(tmp_path / "qwen2")
    with pytest.raises(ValueError, match="no experts"):
        Weights(tmp_path / "qwen2", CONFIGS["qwen2"]).mlp(0, 1)


def test_a_family_that_is_not_in_the_table_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match="codegen"):
        Weights(tmp_path, CodeGenConfig())


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (OlmoHybridConfig(), "its layers of the kind linear_attention have no circuits of heads"),
        (DeepseekV32Config(), "multi-head latent attention has no matrices of queries, keys and values for each head"),
    ],
)
def test_a_family_without_a_record_is_refused_with_what_its_heads_need(tmp_path, config, reason):
    with pytest.raises(UnsupportedModelError) as caught:
        Weights(tmp_path, config)
    assert reason in only_line(caught)
