"""The circuits of multi-head latent attention against the modules of DeepSeek, in float64.

Each module of the latents is read by a hook. The part of scores that rotates is computed here, with complex numbers.
"""

import copy

import numpy as np
import pytest
from support.each import each
from support.errors import only_line
from support.latent_attention import (
    HEADS,
    LATENT,
    LATENT_CONFIGS,
    PLAIN,
    TOKENS,
    VALUE,
    run_attention,
    saved_in_float64,
    spread,
)

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.groups.heads.layer import PROJECTIONS
from theodolite_jobs.models.anatomy import check_circuits, check_words, dimensions_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.results.circuits import notes_on, read_circuits
from theodolite_jobs.statistics.factors import decompose, numerical_rank, thin

BOUND = 1e-9


@pytest.fixture(scope="module", params=LATENT_CONFIGS)
def saved(request, tmp_path_factory):
    """Return the weights on disk, and the base model in float64."""
    return saved_in_float64(LATENT_CONFIGS[request.param], tmp_path_factory.mktemp(request.param))


def rotated(x, model):
    """Rotate neighbouring entries by each position's angles, x (token, …, width)."""
    module = model.module.rotary_emb
    angles = np.arange(len(x))[:, None] * module.inv_freq.double().numpy()
    turn = np.exp(1j * angles).reshape(len(x), *[1] * (x.ndim - 2), -1) * module.attention_scaling
    return (x[..., ::2] + 1j * x[..., 1::2]) * turn


def error(ours, theirs):
    return np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)


@each("layer", [0, 4])
@each("fold_norm", [False, True])
def test_scores_are_qk_by_the_latents_spread_and_the_part_that_rotates(saved, fold_norm, layer, monkeypatch):
    weights, model = saved
    layers, read = run_attention(model, TOKENS, monkeypatch)
    found, circuits = layers[layer], read_circuits(weights, layer, (0, 3), fold_norm)
    x, stream = found["kv_a_proj_with_mqa reads"], read[Site.RESID_PRE][:, layer]
    if fold_norm:
        x = stream / np.sqrt((stream**2).mean(axis=-1, keepdims=True) + model.config.rms_norm_eps)
    queries, keys = (
        x @ matrix + (0 if bias is None else bias[:, None])
        for matrix, bias in ((circuits.query, circuits.query_bias), (circuits.key, circuits.key_bias))
    )
    if "q_a_proj" in found:
        queries = queries / spread(found["q_a_proj"])
    keys = keys / spread(found["kv_a_proj_with_mqa"][:, :LATENT])
    plain = np.einsum("hqd,de,hke->hqk", queries, circuits.rotations[0], keys)
    np.testing.assert_array_equal(circuits.rotations[0], circuits.rotations[3])
    projected = found.get("q_b_proj", found.get("q_proj")).reshape(len(TOKENS), HEADS, -1)
    q, k = rotated(projected[..., PLAIN:], model), rotated(found["kv_a_proj_with_mqa"][:, None, LATENT:], model)
    turning = np.einsum("qhd,kd->hqk", q, k[:, 0].conj()).real * circuits.rotations[0][0, 0]
    seen = np.tril(np.ones((len(TOKENS), len(TOKENS)), bool))
    assert error((plain + turning)[:, seen], found["scores"][:, seen]) < BOUND
    assert error(plain[:, seen], found["scores"][:, seen]) > 0.05


@each("layer", [0, 4])
def test_ov_by_the_latents_spread_is_attentions_output_for_one_token(saved, layer, monkeypatch):
    weights, model = saved
    layers, read = run_attention(model, (7,), monkeypatch)
    found, circuits = layers[layer], read_circuits(weights, layer)
    values = found["kv_a_proj_with_mqa reads"] @ circuits.value
    values = values if circuits.value_bias is None else values + circuits.value_bias[:, None]
    values = values / spread(found["kv_a_proj_with_mqa"][:, :LATENT])
    assert error(values[:, 0], read[Site.HEAD_OUT][0, layer].reshape(HEADS, VALUE)) < BOUND
    added = np.einsum("hk,hdk->d", values[:, 0], circuits.written)
    added = added if circuits.output_bias is None else added + circuits.output_bias
    assert error(added, read[Site.ATTN_OUT][0, layer]) < BOUND


def test_the_singular_values_are_those_of_the_dense_products(saved):
    weights, model = saved
    circuits, block = read_circuits(weights, 3), model.blocks[3].self_attn
    matrices = {name: module.weight.double() for name, module in block.named_modules() if hasattr(module, "weight")}
    down = matrices["kv_a_proj_with_mqa"][:LATENT].T * matrices["kv_a_layernorm"]
    both = matrices["kv_b_proj"].unflatten(0, (HEADS, PLAIN + VALUE))
    if "q_proj" in matrices:
        query = matrices["q_proj"].unflatten(0, (HEADS, -1)).transpose(1, 2)
    else:
        up = matrices["q_b_proj"].unflatten(0, (HEADS, -1))
        query = (matrices["q_a_proj"].T * matrices["q_a_layernorm"]) @ up.transpose(1, 2)
    qk = query[..., :PLAIN] @ (down @ both[:, :PLAIN].transpose(1, 2)).transpose(1, 2) * block.scaling
    ov = down @ both[:, PLAIN:].transpose(1, 2) @ matrices["o_proj"].unflatten(1, (HEADS, VALUE)).permute(1, 2, 0)
    thins = {name: thin(getattr(circuits, name)) for name in ("query", "key", "value", "written")}
    each = np.arange(HEADS)
    ours = decompose(thins["query"], thins["key"], 2, each, circuits.kv_head_of, circuits.rotations[0])
    dense = np.linalg.svd(qk.numpy(), compute_uv=False)[:, :VALUE]
    assert np.abs(ours.singular_values - dense).max() < BOUND * dense.max()
    assert (numerical_rank(thins["query"]) == PLAIN).all()
    ours = decompose(thins["value"], thins["written"], 2, circuits.kv_head_of, each)
    dense = np.linalg.svd(ov.numpy(), compute_uv=False)[:, :VALUE]
    assert np.abs(ours.singular_values - dense).max() < BOUND * dense.max()
    assert PROJECTIONS == ("query", "key")


def test_notes_name_what_the_circuits_leave_out(saved):
    weights, _ = saved
    first, latents, rotary = notes_on(weights, fold_norm=False)
    assert "not folded" in first
    through = "keys" if weights.config.q_lora_rank is None else "queries, keys"
    assert latents.startswith(f"{through} and values pass through normalised latents")
    assert "leaves out the part of 8 entries that rotates (circuit “rotary”)" in rotary


def test_a_head_is_as_wide_as_its_values():
    assert dimensions_of(LATENT_CONFIGS["deepseek_v3"]).d_head == VALUE


def test_words_are_refused_with_the_reason():
    with pytest.raises(UnsupportedModelError) as caught:
        check_words(known_anatomy(LATENT_CONFIGS["deepseek_v3"]), "deepseek_v3")
    assert "divides the values of each token by a norm that its circuits leave out" in only_line(caught)


def test_keys_wider_than_values_are_refused_with_the_reason():
    config = copy.deepcopy(LATENT_CONFIGS["deepseek_v3"])
    config.qk_nope_head_dim = VALUE + 1
    with pytest.raises(UnsupportedModelError, match="have no circuits: the keys of a head are wider than its values"):
        check_circuits(known_anatomy(config), "deepseek_v3")
