"""Gemma 4: heads of several widths, layers with the keys of another layer, and what a block does after its MLP."""

import copy
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GEMMA4, PER_LAYER
from transformers import AutoModel, Gemma4TextConfig, Gemma4UnifiedTextConfig

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.groups.weights.compute import layer_bases
from theodolite_jobs.models.anatomy import check_sites, dimensions_of
from theodolite_jobs.models.batching import can_share_prefix
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model, wrap
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.sharding import check_shardable
from theodolite_jobs.models.weights import Weights

FULL = ["full_attention"] * 5


@pytest.fixture
def shared(tmp_path):
    """Return the folder of a model whose layers 3 (sliding) and 4 (full) use the keys of layers 1 and 2."""
    tiny.model_with_head("gemma4").save_pretrained(tmp_path)
    return tmp_path


def attention_of(folder, layer):
    return Weights(folder, load_config(folder)).attention(layer)


def test_heads_have_the_width_of_their_layer(shared):
    assert dimensions_of(load_config(shared)).d_head == 16
    assert [attention_of(shared, layer).q.shape for layer in range(5)] == [
        (4, 48, 24) if layer in (2, 4) else (4, 48, 16) for layer in range(5)
    ]
    assert attention_of(shared, 4).o.shape == (4, 24, 48)
    assert attention_of(shared, 4).k_norm.shape == (2, 24)


@pytest.mark.parametrize(("layer", "source"), [(3, 1), (4, 2)])
def test_keys_and_values_of_a_layer_without_its_own_are_those_of_the_last_layer_of_its_kind(shared, layer, source):
    ours, theirs, module = attention_of(shared, layer), attention_of(shared, source), load_model(shared).blocks[source]
    assert torch.equal(ours.k, theirs.k)
    assert torch.equal(ours.v, theirs.v)
    assert torch.equal(ours.k_norm, theirs.k_norm)
    assert not torch.equal(ours.q, theirs.q)
    assert torch.equal(ours.k.transpose(1, 2).flatten(0, 1), module.self_attn.k_proj.weight)


def test_directions_that_a_layer_reads_leave_out_the_keys_of_another_layer(shared):
    bases = [layer_bases(Weights(shared, load_config(shared)), layer).forms["stored"] for layer in range(5)]
    assert [set("kv") <= set(of_layer) for of_layer in bases] == [True, True, True, False, False]
    assert all({"q", "o", "gate", "up", "down"} <= set(of_layer) for of_layer in bases)


def test_values_of_full_attention_may_be_its_keys(tmp_path):
    tiny.model_with_head("gemma4_text-experts").save_pretrained(tmp_path)
    full, sliding = attention_of(tmp_path, 2), attention_of(tmp_path, 1)
    assert full.k.shape == (1, 48, 24)
    assert torch.equal(full.k, full.v)
    assert not torch.equal(sliding.k, sliding.v)


@torch.inference_mode()
def test_stored_keys_of_a_layer_that_does_not_use_them_change_nothing(shared, tmp_path):
    older = shutil.copytree(shared, tmp_path / "older")  # published files have them
    tensors = load_file(older / "model.safetensors")
    for layer, source in ((3, 1), (4, 2)):
        for name in [name for name in tensors if f".layers.{source}.self_attn." in name]:
            other = name.replace(f".layers.{source}.", f".layers.{layer}.")
            tensors.setdefault(other, torch.randn_like(tensors[name]))
    save_file(tensors, older / "model.safetensors", metadata={"format": "pt"})
    ids = tiny.random_tokens([9])[0]
    ours, theirs = (read_sites(load_model(folder), ids, [-1])[Site.RESID_POST] for folder in (older, shared))
    assert relative_errors(ours, theirs).max() == 0
    assert torch.equal(attention_of(older, 3).k, attention_of(shared, 3).k)


def test_a_prefix_is_shared_only_if_each_layer_has_its_own_keys():
    for count, can in ((0, True), (2, False)):
        sizes = {**GEMMA4, **PER_LAYER, "layer_types": FULL, "num_kv_shared_layers": count}
        config = Gemma4TextConfig(**sizes)
        assert can_share_prefix(config, known_anatomy(config)) == can


def test_hidden_units_are_counted_only_if_all_mlps_have_one_width():
    assert mlp_width(CONFIGS["gemma4_text"]) == 80
    assert mlp_width(CONFIGS["gemma4"]) is None  # its last MLPs are twice as wide
    assert mlp_width(CONFIGS["gemma4_text-experts"]) is None


@each("setting, causal", [(None, True), ("vision", True), ("all", False)])
def test_text_attends_to_later_text_only_with_all(setting, causal):
    config = Gemma4UnifiedTextConfig(**GEMMA4, use_bidirectional_attention=setting)
    anatomy = known_anatomy(config)
    assert anatomy.causal == causal
    model = wrap(tiny.random_model(copy.deepcopy(config), AutoModel))
    first = [read_sites(model, ids, [0 - len(ids)])[Site.RESID_POST] for ids in ((5, 6, 7), (5, 8, 9))]
    assert (relative_errors(*first).max() == 0) == causal


def test_the_number_of_gpus_divides_the_keys_of_all_layers():
    check_shardable(CONFIGS["gemma4_text"], 2)
    with pytest.raises(UnsupportedModelError, match="are not both divisible by 2; allowed: 1"):
        check_shardable(CONFIGS["gemma4_text-experts"], 2)


@each("site", [Site.MLP_OUT, Site.HEAD_OUT])
def test_a_site_that_the_blocks_lack_is_refused_with_the_reason(site):
    with pytest.raises(SiteNotFoundError, match=r"add a vector of its per-layer input|have several widths"):
        check_sites(known_anatomy(CONFIGS["gemma4"]), [site])
