"""Heads of Gemma 4 against dense float64 matrices made of its modules: two widths, and keys of an earlier layer."""

import copy
from dataclasses import replace

import numpy as np
import pytest
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import each
from support.errors import only_line
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GLOBAL_KEYS, PLAIN
from transformers import AutoModelForCausalLM, Gemma4TextConfig

from theodolite.errors import ModelError
from theodolite.spec_options import HeadsSpec
from theodolite_jobs.groups.composition import compute as composition
from theodolite_jobs.groups.heads.layer import SIDES, Stream, Vocabulary, decompose_layer
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.weights import Weights

BOUND = 1e-9
LAYERS = range(5)
OFFSETS = [0, 3]
FULL = "full_attention"

# Full attention is narrower than sliding attention, and has one key-value head. Its keys are its values; two layers use
# the keys of another, and each block has experts.
EVERYTHING = Gemma4TextConfig(
    **{**PLAIN, "num_key_value_heads": 2, "head_dim": 20, "global_head_dim": 12, **GLOBAL_KEYS},
    layer_types=["sliding_attention", FULL, "sliding_attention", "sliding_attention", FULL],
    num_kv_shared_layers=2,
    attention_k_eq_v=True,
    attention_bias=True,
    hidden_size_per_layer_input=0,
    enable_moe_block=True,
    num_experts=4,
    top_k_experts=2,
    moe_intermediate_size=24,
)
CASES = {
    "shared": CONFIGS["gemma4"].text_config,
    "biases": CONFIGS["gemma4_text"],
    "experts": CONFIGS["gemma4_text-experts"],
    "unified": CONFIGS["gemma4_unified_text"],
    "everything": EVERYTHING,
}
SOURCES = {"shared": {3: 1, 4: 2}, "everything": {3: 2, 4: 1}}


@pytest.fixture(scope="module", params=CASES)
def case(request):
    return request.param


@pytest.fixture(scope="module")
def saved(case, tmp_path_factory):
    """Return a model's weights on disk, and its blocks and rotary module."""
    folder = tmp_path_factory.mktemp(case)
    model = tiny.random_model(copy.deepcopy(CASES[case]), AutoModelForCausalLM)
    model.save_pretrained(folder)
    return Weights(folder, load_config(folder)), model.model


def matrix(module):
    return module.weight.detach().double().numpy()


def turned(model, layer, offset):
    """Return R(δ): entry i of a head and entry i + d_head/2 are one complex number, which the offset turns."""
    frequencies = getattr(model.rotary_emb, f"{model.config.layer_types[layer]}_inv_freq").double().numpy()
    half = len(frequencies)
    cosine, sine = np.diag(np.cos(offset * frequencies)), np.diag(np.sin(offset * frequencies))
    whole = np.block([[cosine, sine], [-sine, cosine]])
    assert whole.shape == (2 * half, 2 * half)
    return whole


def dense(model, case, layer, fold_norm):
    """Return W_QK of each offset and W_OV, (head, d_model, d_model), and W_Q and W_K, (head, d_model, d_head)."""
    own, source = model.layers[layer], model.layers[SOURCES.get(case, {}).get(layer, layer)]
    width, n_heads = own.self_attn.head_dim, model.config.num_attention_heads
    is_full, k = model.config.layer_types[layer] == FULL, source.self_attn.k_proj
    v = k if is_full and model.config.attention_k_eq_v else source.self_attn.v_proj
    before, before_source = (matrix(block.input_layernorm)[:, None] if fold_norm else 1.0 for block in (own, source))
    heads = {"query": [], "key": [], "value": [], "written": []}
    group = n_heads * width // len(matrix(k))
    for head in range(n_heads):
        rows, kv_rows = (slice(one * width, (one + 1) * width) for one in (head, head // group))
        heads["query"].append(before * matrix(own.self_attn.q_proj)[rows].T * matrix(own.self_attn.q_norm))
        heads["key"].append(before_source * matrix(k)[kv_rows].T * matrix(source.self_attn.k_norm))
        heads["value"].append(before_source * matrix(v)[kv_rows].T)
        after = matrix(own.post_attention_layernorm)[:, None]
        heads["written"].append(after * matrix(own.self_attn.o_proj)[:, rows])
    query, key, value, written = (np.stack(parts) for parts in heads.values())
    qk = {offset: query @ turned(model, layer, offset) @ key.transpose(0, 2, 1) for offset in OFFSETS}
    return qk, value @ written.transpose(0, 2, 1), query, key


def stream(seed=0):
    rng = np.random.default_rng(seed)
    read, written, source = rng.normal(size=(3, 1, 4, 48))
    samples = {(0, 0): rng.normal(size=(60, 48)).astype(np.float32)}
    return Stream(read[:, 0], written[:, 0], samples, read, written), source


def decomposed(weights, layer, vectors=3, fold_norm=False):
    """Return one layer's arrays; a layer without keys of its own has other directions for keys and values."""
    around, source = stream()
    if layer in weights.anatomy.keys_of:
        around = replace(around, source_read=source[:, 0], source_draws=source)
    vocabulary = Vocabulary(*np.random.default_rng(1).normal(size=(2, 48, 48)).astype(np.float32))
    heads = HeadsSpec(offsets=OFFSETS, vectors=vectors, fold_norm=fold_norm)
    return decompose_layer(weights, layer, heads, around, (1, 1), vocabulary)


def score_of(product):
    eigenvalues = np.linalg.eigvals(product)
    return eigenvalues.sum().real / np.abs(eigenvalues).sum()


def test_layers_are_those_of_the_cases(saved, case):
    weights, model = saved
    assert weights.anatomy.keys_of == SOURCES.get(case, {})
    widths = {width: layers for width, layers in weights.head_widths.items()}
    narrow, wide = sorted(widths)
    assert (narrow, wide) == ((12, 20) if case == "everything" else (16, 24))
    full = [layer for layer, kind in enumerate(model.config.layer_types) if kind == FULL]
    assert widths[narrow if case == "everything" else wide] == full


@each("layer", LAYERS)
@each("fold_norm", [False, True])
def test_spectra_are_those_of_the_dense_matrices_and_end_at_the_width_of_the_layer(saved, case, fold_norm, layer):
    weights, model = saved
    found, (qk, ov, query, key) = decomposed(weights, layer, 30, fold_norm), dense(model, case, layer, fold_norm)
    width, widest = query.shape[2], max(weights.head_widths)
    assert found["singular_values"].shape == (2, 2, 4, widest)
    for at, products in {(0, 0): qk[0], (0, 1): qk[3], (1, 0): ov}.items():
        u, values, vt = np.linalg.svd(products)
        assert np.abs(found["singular_values"][at][:, :width] - values[:, :width]).max() < BOUND * values.max()
        assert np.isnan(found["singular_values"][at][:, width:]).all()
        for name, expected in (("left", u.transpose(0, 2, 1)), ("right", vt)):
            vectors = found[f"{name}_vectors"][at]
            assert vectors.shape == (4, widest, 48)
            cosines = np.abs(np.einsum("hvd,hvd->hv", vectors[:, :3], expected[:, :3]))
            np.testing.assert_allclose(cosines, 1, atol=1e-5)  # stored in float32
            assert np.isfinite(vectors[:, :width]).all()
            assert np.isnan(vectors[:, width:]).all()
    ranks = [[48 - np.linalg.matrix_rank(one) for one in side] for side in (query, key)]
    assert found["null_dimension"].tolist() == ranks == [[48 - width] * 4] * 2
    product = np.random.default_rng(1).normal(size=(2, 48, 48)).astype(np.float32)[0]
    np.testing.assert_allclose(found["copying_score"][:, 0], [score_of(product @ one) for one in ov], atol=2e-5)


@each("layer", LAYERS)
@each("fold_norm", [False, True])
def test_keys_and_values_are_compared_with_the_stream_that_they_read(saved, case, fold_norm, layer):
    weights, model = saved
    found, (qk, ov, query, key) = decomposed(weights, layer, 3, fold_norm), dense(model, case, layer, fold_norm)
    around, source = stream()
    at_keys = SOURCES.get(case, {}).get(layer, layer)

    def seen(directions, block):
        scaled = directions if fold_norm else directions * matrix(model.layers[block].input_layernorm)
        return scaled / np.linalg.norm(scaled, axis=-1, keepdims=True)

    by_queries = seen(around.read_draws[0], layer)
    by_keys = seen((around.read_draws if at_keys == layer else source)[0], at_keys)
    compared = {
        "qk_query": (by_queries, qk[0]),
        "qk_key": (by_keys, qk[0].transpose(0, 2, 1)),
        "ov_read": (by_keys, ov),
        "ov_write": (around.written_draws[0], ov.transpose(0, 2, 1)),
    }
    assert tuple(compared) == SIDES
    for index, (directions, products) in enumerate(compared.values()):
        gains = np.linalg.norm(np.einsum("nd,hde->nhe", directions, products), axis=-1)
        expected = gains / np.linalg.norm(products, 2, axis=(1, 2))
        np.testing.assert_allclose(found["alignment_draws"][0, index], expected, rtol=1e-9)
        np.testing.assert_allclose(found["direction_alignment"][0, index], expected[0], rtol=1e-9)
    _, _, vt = np.linalg.svd(qk[0])
    cosines = np.abs(np.einsum("d,hvd->hv", by_keys[0], vt[:, :3]))
    np.testing.assert_allclose(np.abs(found["vector_cosine"][0, 1]), cosines, atol=1e-9)
    scale = 1.0 if fold_norm else matrix(model.layers[layer].input_layernorm)
    samples = around.samples[0, 0].astype(np.float64)
    read = samples / np.sqrt((samples**2).mean(axis=1, keepdims=True) + 1e-6) * scale
    for index, factors in enumerate((query, key)):
        if index and at_keys != layer:  # the samples are not those that keys read; a survey takes the other layer's
            assert np.isnan(found["null_variance"][0, 0, 1]).all()
            continue
        unseen = [read @ (np.eye(48) - one @ np.linalg.pinv(one)) for one in factors]
        expected = [one.var(axis=0).sum() / read.var(axis=0).sum() for one in unseen]
        np.testing.assert_allclose(found["null_variance"][0, 0, index], expected, rtol=1e-9)


@each("writer, reader", [(0, 3), (0, 4), (1, 3), (1, 4), (2, 3), (2, 4), (3, 4), (0, 2), (1, 2)])
def test_composition_is_that_of_outputs_that_the_other_head_reads(saved, case, writer, reader):
    weights, model = saved
    found = composition._pair_composition(weights, writer, reader, False)
    (_, writes, _, _), (qk, reads, _, _) = (dense(model, case, layer, False) for layer in (writer, reader))
    visible = writer < SOURCES.get(case, {}).get(reader, reader)
    for kind, matrices in enumerate((qk[0], qk[0].transpose(0, 2, 1), reads)):
        if kind and not visible:
            assert np.isnan(found[kind]).all()
            continue
        products = np.linalg.norm(writes[:, None] @ matrices[None], axis=(2, 3))
        lengths = [np.linalg.norm(one, axis=(1, 2)) for one in (writes, matrices)]
        np.testing.assert_allclose(found[kind], products / np.outer(*lengths), rtol=1e-9)


def read_all(folder):
    weights = Weights(folder, load_config(folder))
    for layer in LAYERS:
        decomposed(weights, layer)


def mutated(folder, change):
    """Save the model of all settings with other tensors, and return what refuses it."""
    tiny.random_model(copy.deepcopy(EVERYTHING), AutoModelForCausalLM).save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        read_all(folder)
    return only_line(caught)


@each(
    "layer, name",
    [
        (0, "k_proj.weight"),
        (1, "k_proj.weight"),  # the only layer of its kind
        (2, "v_proj.weight"),
        (3, "q_proj.weight"),
        (4, "o_proj.weight"),
        (0, "k_norm.weight"),
    ],
)
def test_a_missing_tensor_of_a_layer_with_its_own_is_named(tmp_path, layer, name):
    tensor = f"model.layers.{layer}.self_attn.{name}"
    message = mutated(tmp_path, lambda tensors: tensors.pop(tensor))
    assert "lack" in message
    assert tensor.removeprefix("model.") in message


@each(
    "layer, name, expected",
    [
        (0, "q_proj.weight", "(80, 48)"),
        (1, "q_proj.weight", "(48, 48)"),
        (1, "k_proj.weight", "(12, 48)"),
        (2, "v_proj.weight", "(40, 48)"),
        (2, "k_norm.weight", "(20,)"),
        (4, "q_norm.weight", "(12,)"),
        (4, "o_proj.weight", "(48, 48)"),
    ],
)
def test_a_tensor_of_another_width_is_named(tmp_path, layer, name, expected):
    tensor = f"model.layers.{layer}.self_attn.{name}"

    def cut(tensors):
        tensors[tensor] = tensors[tensor][:-1].clone()

    said = mutated(tmp_path, cut)
    assert f"{tensor} has the shape" in said
    assert f"expected {expected}" in said
