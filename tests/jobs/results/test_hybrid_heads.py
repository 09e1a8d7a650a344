"""Heads of hybrids: dense float64 references in the layers with attention, missing numbers in the others."""

import json

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from support import tiny
from support.each import each
from support.errors import only_line
from support.hand_runs import HYBRIDS
from support.tiny_configs import CONFIGS
from transformers import AutoModelForCausalLM, Qwen3_5TextConfig

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.spec_options import HeadsSpec
from theodolite_jobs.groups.heads.layer import Stream, Vocabulary, decompose_layer, vocabulary_products
from theodolite_jobs.groups.weights.compute import layer_bases
from theodolite_jobs.models.anatomy import check_circuits, check_words
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_model
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import notes_on

BOUND = 1e-9
HEADS = HeadsSpec(offsets=[3], vectors=3)


def saved(family, folder):
    """Save a family's tiny model with its head, and return its weights on disk and its modules."""
    model = tiny.model_with_head(family)
    model.save_pretrained(folder)
    return Weights(folder, CONFIGS[family]), model


def stream():
    random = np.random.default_rng(0)
    samples = {(0, 0): random.normal(size=(9, 48)).astype(np.float32)}
    read, written = random.normal(size=(2, 1, 4, 48))
    return Stream(read[:, 0], written[:, 0], samples, read, written)


def part_of(weights, layer):
    vocabulary = Vocabulary(*np.random.default_rng(1).normal(size=(2, 48, 48)).astype(np.float32))
    return decompose_layer(weights, layer, HEADS, stream(), (1, 1), vocabulary)


@each("family", sorted(HYBRIDS))
def test_a_layer_without_attention_has_the_same_arrays_without_numbers(family, tmp_path):
    weights, _ = saved(family, tmp_path)
    measured, missing = part_of(weights, 4), part_of(weights, 2)
    assert set(measured) == set(missing)
    for name, values in missing.items():
        assert (values.shape, values.dtype) == (measured[name].shape, measured[name].dtype), name
        assert (values == -1).all() if name == "null_dimension" else np.isnan(values).all(), name
        assert np.isfinite(measured[name]).any(), name
    with pytest.raises(ValueError, match=r"layer 2 has no attention: (some blocks have|each block is) "):
        weights.attention(2)


@each("family", ["qwen3_next", "qwen3_5_text"])
def test_singular_values_of_gated_heads_are_those_of_the_dense_products(family, tmp_path):
    weights, model = saved(family, tmp_path)
    block, width = model.model.layers[4].self_attn, 16
    q, k, v, o = (getattr(block, f"{name}_proj").weight.detach().double().numpy() for name in "qkvo")
    frequencies = model.model.rotary_emb.inv_freq.double().numpy()
    turned = np.eye(width)
    for pair, frequency in enumerate(frequencies):
        other, angle = pair + len(frequencies), 3 * frequency
        turned[[pair, other], [pair, other]] = np.cos(angle)
        turned[pair, other], turned[other, pair] = np.sin(angle), -np.sin(angle)
    scales = [1 + getattr(block, f"{name}_norm").weight.detach().double().numpy() for name in "qk"]
    found = part_of(weights, 4)["singular_values"]
    for head in range(4):
        own, shared = (
            slice(head * 2 * width, head * 2 * width + width),
            slice(head // 2 * width, (head // 2 + 1) * width),
        )
        queries, keys = q[own].T * scales[0], k[shared].T * scales[1]
        products = {
            (0, 0): queries @ keys.T / width**0.5,
            (0, 1): queries @ turned @ keys.T / width**0.5,
            (1, 0): v[shared].T @ o[:, head * width : (head + 1) * width].T,
        }
        for at, product in products.items():
            dense = np.linalg.svd(product, compute_uv=False)[:width]
            assert np.abs(found[at][head] - dense).max() < BOUND * dense[0], (at, head)


# The factors of scores, of what attention reads, of keys, and of what attention adds.
FACTORS = {
    "falcon_h1": (16**-0.5, 0.7, 1.3, 0.6),
    "granitemoehybrid": (0.2, 1, 1, 0.4),
    "granitemoehybrid-dense": (0.2, 1, 1, 0.4),
    "nemotron_h": (16**-0.5, 1, 1, 1),
}


@each("family", FACTORS)
def test_singular_values_of_heads_beside_state_spaces_are_those_of_the_dense_products(family, tmp_path):
    weights, model = saved(family, tmp_path)
    score, read, key, added = FACTORS[family]
    block = getattr(model.model.layers[4], "mixer" if family == "nemotron_h" else "self_attn")
    q, k, v, o = (getattr(block, f"{name}_proj").weight.detach().double().numpy() for name in "qkvo")
    width, found = len(q) // 4, part_of(weights, 4)["singular_values"]
    for head in range(4):
        own, shared = slice(head * width, (head + 1) * width), slice(head // 2 * width, (head // 2 + 1) * width)
        products = {
            (0, 0): score * (read * q[own].T) @ (read * key * k[shared]),
            (1, 0): (read * v[shared].T) @ (added * o[:, own].T),
        }
        for at, product in products.items():
            dense = np.linalg.svd(product, compute_uv=False)[:width]
            assert np.abs(found[at][head] - dense).max() < BOUND * dense[0], (at, head)
    rotates = not np.allclose(found[0, 0], found[0, 1], rtol=1e-6)
    assert rotates == (family in ("falcon_h1", "granitemoehybrid-dense"))


@each("family", sorted(HYBRIDS))
def test_a_layer_without_attention_writes_and_reads_with_its_mlp_alone(family, tmp_path):
    weights, _ = saved(family, tmp_path)
    mlp, attention = {"gate", "up", "down"}, {"q", "k", "v", "o"}
    expected: dict = {"nemotron_h": ({"up", "down"}, attention), "nemotron_h-dense": (set(), attention)}
    of_third, of_last = expected.get(family, (mlp, mlp | attention))
    assert set(layer_bases(weights, 2).forms["stored"]) == of_third
    assert set(layer_bases(weights, 4).forms["stored"]) == of_last


@each("family", ["qwen3_5_moe_text", "deepseek_v3"])
def test_experts_in_two_tensors_are_read_as_those_in_many(family, tmp_path):
    model = tiny.model_with_head(family)
    model.save_pretrained(tmp_path / "many")
    (tmp_path / "two").mkdir()
    save_file(model.state_dict(), tmp_path / "two" / "model.safetensors")
    many, two = (Weights(tmp_path / name, CONFIGS[family]) for name in ("many", "two"))
    for layer in (3, 4):
        assert two.experts(layer) == many.experts(layer) == [0, 1, 2, 3, "shared"]
        for expert in many.experts(layer):
            for name, tensor in vars(many.mlp(layer, expert)).items():
                if tensor is not None:
                    torch.testing.assert_close(getattr(two.mlp(layer, expert), name), tensor, rtol=0, atol=0)


@each("family", sorted(HYBRIDS))
def test_words_are_refused_with_the_reason(family):
    with pytest.raises(UnsupportedModelError) as caught:
        check_words(known_anatomy(CONFIGS[family]), family)
    assert f"the analysis words of {family!r} cannot be computed: " in only_line(caught)


def test_a_model_without_attention_has_no_circuits(tmp_path):
    config = Qwen3_5TextConfig(**{**CONFIGS["qwen3_5_text"].to_dict(), "layer_types": ["linear_attention"] * 5})
    with pytest.raises(UnsupportedModelError) as caught:
        check_circuits(known_anatomy(config), "qwen3_5_text")
    assert "have no circuits: none of its blocks has attention" in only_line(caught)
    tiny.random_model(config, AutoModelForCausalLM).save_pretrained(tmp_path)
    assert Weights(tmp_path, config).mlp(0).up.shape == (48, 80)


def test_the_first_and_the_last_block_need_no_attention(tmp_path):
    kinds = [*["linear_attention"] * 3, "full_attention", "linear_attention"]
    config = Qwen3_5TextConfig(**{**CONFIGS["qwen3_5_text"].to_dict(), "layer_types": kinds})
    model = tiny.random_model(config, AutoModelForCausalLM)
    model.save_pretrained(tmp_path)
    facts, weights = describe_model(config), Weights(tmp_path, config)
    assert (facts["attention_layers"], facts["qk_norm"]) == ([3], "per head")
    assert facts["biases"] == {"query_key_value": True, "output": True, "mlp": False}
    assert any("1 of 5 blocks have attention heads (layers 3)" in note for note in notes_on(weights, fold_norm=True))
    assert np.isfinite(part_of(weights, 3)["singular_values"][0]).all()
    assert np.isnan(part_of(weights, 0)["singular_values"]).all()
    vocabulary = vocabulary_products(weights, True, torch.device("cpu"))
    assert np.isfinite(vocabulary.centred).all()
    assert load_model(tmp_path).anatomy.attention_layers(5) == [3]


def test_heads_that_do_not_fill_the_output_projection_are_refused(tmp_path):
    saved("qwen3_5_text", tmp_path)
    config = CONFIGS["qwen3_5_text"].to_dict()
    # Half as many heads of twice the width give the same shapes of queries, but other ones of keys.
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_attention_heads": 2, "head_dim": 32}))
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path)
    assert "do not fit the configuration: " in only_line(caught)
