"""The rotary part of latent attention: with QK it is the model's score; its values are those of dense products.

The models compute in float64. The rotation of the dense products is made here, pair by pair.
"""

import numpy as np
import pytest
import torch
from support.each import each, together
from support.latent_attention import (
    HEADS,
    LATENT,
    MORE_CONFIGS,
    PLAIN,
    ROTARY,
    TOKENS,
    run_attention,
    saved_in_float64,
    spread,
)

from theodolite.sites import Site
from theodolite_jobs.groups.heads.formulas_rotary import rotary_singular_values
from theodolite_jobs.groups.heads.rotary import read_rotary_part
from theodolite_jobs.models.anatomy import rotary_settings
from theodolite_jobs.results.circuits import read_circuits

BOUND = 1e-9
OFFSETS = [0, 1, 6, 50]


@pytest.fixture(scope="module", params=MORE_CONFIGS)
def saved(request, tmp_path_factory):
    """Return the weights on disk, and the base model in float64."""
    return saved_in_float64(MORE_CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


def up_of_queries(block):
    """Return diag(γ) W_UQ of the entries that rotate, (head, latent, rotary), without a latent that of the stream."""
    last = block.q_proj if block.q_lora_rank is None else block.q_b_proj
    up = last.weight.double().unflatten(0, (HEADS, PLAIN + ROTARY))[:, PLAIN:].transpose(1, 2)
    return up.numpy() if block.q_lora_rank is None else (block.q_a_layernorm.weight.double()[:, None] * up).numpy()


def biases(block):
    """Return the biases of the entries that rotate, of queries (head, 1, rotary) and of keys (rotary)."""
    if not block.config.attention_bias:
        return 0, 0
    own = 0 if block.q_lora_rank is None else np.einsum("r,hrw->hw", block.q_a_proj.bias.numpy(), up_of_queries(block))
    return np.expand_dims(own, -2), block.kv_a_proj_with_mqa.bias.numpy()[LATENT:]


@each("layer", [0, 4])
@each("fold_norm", [False, True])
def test_qk_and_the_rotary_part_are_the_scores_before_the_softmax(saved, fold_norm, layer, monkeypatch):
    weights, model = saved
    layers, read = run_attention(model, TOKENS, monkeypatch)
    found, circuits = layers[layer], read_circuits(weights, layer, (0,), fold_norm)
    part = read_rotary_part(weights, layer, range(len(TOKENS)), fold_norm)
    x, stream = found["kv_a_proj_with_mqa reads"], read[Site.RESID_PRE][:, layer]
    if fold_norm:
        x = stream / np.sqrt((stream**2).mean(axis=-1, keepdims=True) + model.config.rms_norm_eps)

    sigma_q = spread(found["q_a_proj"]) if "q_a_proj" in found else 1
    sigma_k = spread(found["kv_a_proj_with_mqa"][:, :LATENT])
    queries, keys = (
        x @ matrix + (0 if bias is None else bias[:, None])
        for matrix, bias in ((circuits.query, circuits.query_bias), (circuits.key, circuits.key_bias))
    )
    plain = np.einsum("hqd,de,hke->hqk", queries / sigma_q, circuits.rotations[0], keys / sigma_k)

    of_queries, of_keys = biases(model.blocks[layer].self_attn)
    turned, fixed = (x @ part.query + of_queries) / sigma_q, (x @ part.key + of_keys)[0]
    assert part.key.shape == (1, 48, ROTARY)
    total, compared = np.zeros_like(plain), 0
    for query in range(len(TOKENS)):
        for key in range(query + 1):
            total[:, query, key] = turned[:, query] @ part.rotations[query - key] @ fixed[key]
            compared += 1
    seen = np.tril(np.ones((len(TOKENS), len(TOKENS)), bool))
    theirs = found["scores"][:, seen]
    assert compared == seen.sum() == 28
    assert np.linalg.norm((plain + total)[:, seen] - theirs) < BOUND * np.linalg.norm(theirs)
    assert np.linalg.norm(total[:, seen]) > 0.05 * np.linalg.norm(theirs)


def turn(model, offset):
    """Return s·R(δ), pair by pair, with the frequencies and factors of the family's own modules."""
    module, matrix = model.module.rotary_emb, np.zeros((ROTARY, ROTARY))
    halves = not getattr(model.config, "rope_interleave", True)
    for pair, frequency in enumerate(module.inv_freq.double().tolist()):
        first, second = (pair, pair + ROTARY // 2) if halves else (2 * pair, 2 * pair + 1)
        cosine, sine = np.cos(offset * frequency), np.sin(offset * frequency)
        matrix[[first, second], [first, second]] = cosine
        matrix[first, second], matrix[second, first] = sine, -sine
    return matrix * module.attention_scaling**2 * model.blocks[0].self_attn.scaling


@each("fold_norm", [False, True])
def test_the_singular_values_are_those_of_the_dense_products(saved, fold_norm):
    weights, model = saved
    block = model.blocks[3]
    attention, gamma = block.self_attn, block.input_layernorm.weight.double().numpy()[:, None]
    query, key = up_of_queries(attention), attention.kv_a_proj_with_mqa.weight.double().numpy()[LATENT:].T
    if attention.q_lora_rank is not None:
        query = attention.q_a_proj.weight.double().numpy().T @ query
    if fold_norm:
        query, key = gamma * query, gamma * key
    ours = rotary_singular_values(*read_rotary_part(weights, 3, OFFSETS, fold_norm))
    assert ours.shape == (len(OFFSETS), HEADS, ROTARY)
    for index, offset in enumerate(OFFSETS):
        dense = np.linalg.svd(query @ turn(model, offset) @ key.T, compute_uv=False)
        assert np.abs(ours[index] - dense[:, :ROTARY]).max() < BOUND * dense.max()
        assert dense[:, ROTARY:].max() < BOUND * dense.max()
    assert np.abs(ours[1] - ours[0]).max() > 1e-3 * ours.max()


def the_matrices_are_those_that_attention_returns(saved):
    weights, _ = saved
    attention, part = weights.attention(1), weights.rotary_part(1)
    for ours, theirs in zip(part, (attention.q_rotary, attention.k_rotary), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)


def scaled_positions_scale_the_part(saved):
    weights, model = saved
    rotations = read_rotary_part(weights, 0, [0, 3], False).rotations
    factor = model.module.rotary_emb.attention_scaling**2 * model.blocks[0].self_attn.scaling
    is_scaled = rotary_settings(model.config)[0]["rope_type"] == "yarn"
    assert (abs(factor / 18**-0.5 - 1) > 0.01) == is_scaled
    for rotation in rotations:
        np.testing.assert_allclose(rotation @ rotation.T, factor**2 * np.eye(ROTARY), rtol=1e-12, atol=1e-15)
    np.testing.assert_allclose(rotations[0], factor * np.eye(ROTARY), rtol=1e-12)


def test_a_part_of_known_numbers():
    """Two heads, one pair: W_Q = diag(2, 1) and W_K = 1 have the values 2 and 1 at any angle; 90° turn a bent key."""
    query = np.stack([np.eye(3, 2) * [2.0, 1.0], np.eye(3, 2)])
    turns = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [-1.0, 0.0]]])
    np.testing.assert_allclose(rotary_singular_values(query, np.eye(3, 2)[None], turns)[:, 0], [[2, 1]] * 2)
    bent = (np.eye(3, 2) * [3.0, 1.0])[None]
    found = rotary_singular_values(query, bent, turns)
    np.testing.assert_allclose(found, [[[6, 1], [3, 1]], [[3, 2], [3, 1]]], rtol=1e-12)


test_the_rotary_part_is_that_of_the_model = together(
    the_matrices_are_those_that_attention_returns,
    scaled_positions_scale_the_part,
)
