"""DeBERTa: biases that are stored apart, and settings that change what a block computes."""

import pytest
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from support.tiny_sizes import PLAIN, RELATIVE
from transformers import AutoModel, DebertaConfig, DebertaV2Config

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_model, wrap
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

BIAS = "deberta.encoder.layer.3.attention.self.q_bias"


@pytest.fixture
def saved(tmp_path):
    tiny.model_with_head("deberta").save_pretrained(tmp_path)
    return tmp_path


def changed(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_missing_bias_of_queries_is_named(saved):
    changed(saved, lambda tensors: tensors.pop(BIAS))
    with pytest.raises(ModelError, match=rf"lack the tensor {BIAS}, which other blocks have"):
        Weights(saved, CONFIGS["deberta"])
    with pytest.raises(ModelError, match=r"lack the tensor deberta.encoder.layer.3.attention.self.q_bias"):
        load_model(saved)


def test_a_bias_of_another_shape_is_named(saved):
    changed(saved, lambda tensors: tensors.update({BIAS: tensors[BIAS][:-1].clone()}))
    with pytest.raises(ModelError, match=rf"{BIAS} has the shape \(47,\), expected \(48,\)"):
        Weights(saved, CONFIGS["deberta"]).attention(3)


def test_keys_have_no_bias_of_their_own(saved):
    circuits = read_circuits(Weights(saved, CONFIGS["deberta"]), 0)
    assert circuits.query_bias.shape == circuits.value_bias.shape == (4, 12)
    assert circuits.key_bias is None


@each("kinds, terms", [(None, 1), (["c2p"], 2), ("p2c|c2p", 3)])
@each("config_class", [DebertaConfig, DebertaV2Config])
def test_the_scale_of_scores_counts_their_terms(tmp_path, config_class, kinds, terms):
    config = config_class(**PLAIN, relative_attention=kinds is not None, pos_att_type=kinds)
    tiny.random_model(config, AutoModel).save_pretrained(tmp_path)
    assert Weights(tmp_path, config).attention(0).scale == pytest.approx((12 * terms) ** -0.5)


def test_a_convolution_between_blocks_is_refused():
    with pytest.raises(UnsupportedModelError, match="a convolution changes the stream between its first two blocks"):
        known_anatomy(DebertaV2Config(**PLAIN, **RELATIVE, **{"conv_kernel_size": 3}))


def test_heads_that_exchange_their_scores_have_no_circuits():
    anatomy = known_anatomy(DebertaConfig(**PLAIN, **RELATIVE, **{"talking_head": True}))
    assert anatomy.no_circuits == "its heads exchange their scores (talking_head)"


def test_a_projection_of_the_embeddings_comes_before_their_norm():
    config = DebertaV2Config(**PLAIN, **RELATIVE, **{"embedding_size": 32})
    assert known_anatomy(config).embedding_norm is None
    assert known_anatomy(CONFIGS["deberta-v2"]).embedding_norm == "embeddings.LayerNorm"
    assert wrap(tiny.random_model(config, AutoModel)).dimensions.d_model == 48
