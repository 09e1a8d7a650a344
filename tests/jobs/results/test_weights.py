"""What layers write and read, against singular vectors of the modules' own weights."""

import copy
from dataclasses import asdict

import numpy as np
import pytest
import torch
from support import tiny
from support.analysing import survey_weights
from support.each import each, together
from support.stored import record_of
from support.tiny_configs import CONFIGS
from transformers import AutoModel, AutoModelForCausalLM

from theodolite.errors import UnsupportedModelError
from theodolite.sections.parts import texts_of
from theodolite.store.result_reader import read_group
from theodolite.store.runs import ModelFacts, create_run
from theodolite_jobs.groups.weights.compute import layer_bases
from theodolite_jobs.groups.weights.formulas import random_overlap
from theodolite_jobs.models.load import load_config, wrap
from theodolite_jobs.models.weights import Weights

LAYER = 2
BOTH_SIDES = {"gemma2", "gemma4_text"}  # with norms also behind the writers
WRITING, READING = ["o", "down"], ["q", "k", "v", "gate", "up"]
FAMILIES = ["llama", "gemma2", "mixtral", "gpt2", "phi3", "falcon-groups", "bert", "gemma4_text"]


def silent(*_):
    pass


@pytest.fixture(scope="module", params=FAMILIES)
def saved(request, tmp_path_factory):
    """A family's weights as files, and its modules."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.model_with_head(request.param).save_pretrained(folder)
    model = wrap(AutoModel.from_pretrained(folder, dtype=torch.float64))
    return request.param, Weights(folder, model.config), model


def linear(module):
    """A linear module's weight as (out, in), in float64."""
    return module.weight.detach().double().numpy()


def matrices_of(family, block):
    """Each matrix as (d_model, …), from the modules: columns are what it writes, or what it reads."""
    if family in ("llama", "gemma2", "gemma4_text"):
        attention, mlp = block.self_attn, block.mlp
        names = {"q": attention.q_proj, "k": attention.k_proj, "v": attention.v_proj}
        found = {name: linear(module).T for name, module in {**names, "gate": mlp.gate_proj, "up": mlp.up_proj}.items()}
        return {**found, "o": linear(attention.o_proj), "down": linear(mlp.down_proj)}
    if family == "mixtral":
        attention, experts = block.self_attn, block.mlp.experts
        found = {name: linear(getattr(attention, f"{name}_proj")).T for name in "qkv"}
        gate_up, down = (getattr(experts, name).detach().double().numpy() for name in ("gate_up_proj", "down_proj"))
        gates, ups = np.split(gate_up, 2, axis=1)  # (expert, d_mlp, d_model)
        side_by_side = {"gate": np.concatenate(gates).T, "up": np.concatenate(ups).T}
        return {**found, **side_by_side, "o": linear(attention.o_proj), "down": np.concatenate(down, axis=1)}
    if family == "gpt2":  # stored as (in, out)
        q, k, v = np.split(linear(block.attn.c_attn), 3, axis=1)
        written = {"o": linear(block.attn.c_proj).T, "down": linear(block.mlp.c_proj).T}
        return {"q": q, "k": k, "v": v, "up": linear(block.mlp.c_fc), **written}
    if family == "phi3":
        q, k, v = np.split(linear(block.self_attn.qkv_proj), [48, 72])
        gate, up = np.split(linear(block.mlp.gate_up_proj), 2)
        written = {"o": linear(block.self_attn.o_proj), "down": linear(block.mlp.down_proj)}
        return {"q": q.T, "k": k.T, "v": v.T, "gate": gate.T, "up": up.T, **written}
    if family == "falcon-groups":  # for each of two groups: two queries, a key, a value
        rows = linear(block.self_attention.query_key_value).reshape(2, 4, 12, 48)
        parts = {"q": rows[:, :2], "k": rows[:, 2], "v": rows[:, 3]}
        found = {name: part.reshape(-1, 48).T for name, part in parts.items()}
        written = {"o": linear(block.self_attention.dense), "down": linear(block.mlp.dense_4h_to_h)}
        return {**found, "up": linear(block.mlp.dense_h_to_4h).T, **written}
    attention = block.attention.self
    names = {"q": attention.query, "k": attention.key, "v": attention.value, "up": block.intermediate.dense}
    found = {name: linear(module).T for name, module in names.items()}
    return {**found, "o": linear(block.attention.output.dense), "down": linear(block.output.dense)}


NORMS = {
    "llama": ("input_layernorm", "post_attention_layernorm"),
    "gemma2": ("input_layernorm", "pre_feedforward_layernorm"),
    "gemma4_text": ("input_layernorm", "pre_feedforward_layernorm"),
    "mixtral": ("input_layernorm", "post_attention_layernorm"),
    "phi3": ("input_layernorm", "post_attention_layernorm"),
    "gpt2": ("ln_1", "ln_2"),
    "falcon-groups": ("ln_attn", "ln_mlp"),
}
"""The norms before attention and before the MLP; an encoder has them behind the sums."""


def folded_matrices(family, block):
    """The matrices with the scales of the norms before readers and behind writers; layer norms also centre."""
    if family not in NORMS:
        return matrices_of(family, block)

    def scale(name):
        stored = getattr(block, name).weight.detach().double().numpy()
        return 1 + stored if family == "gemma2" else stored

    layer_norm = family in ("gpt2", "falcon-groups")
    centring = np.eye(48) - 1 / 48 if layer_norm else np.eye(48)
    attention, mlp = (scale(name) for name in NORMS[family])
    scales = {"q": attention, "k": attention, "v": attention, "gate": mlp, "up": mlp}
    found = {}
    for name, matrix in matrices_of(family, block).items():
        found[name] = centring @ (scales[name][:, None] * matrix) if name in scales else matrix
    if family in BOTH_SIDES:
        for name, norm in (("o", "post_attention_layernorm"), ("down", "post_feedforward_layernorm")):
            found[name] = scale(norm)[:, None] * found[name]
    return found


def leading(matrix, rank):
    return np.linalg.svd(matrix, full_matrices=False)[0][:, :rank]


def projector(basis):
    return basis @ basis.T


def bases_are_the_leading_singular_vectors_of_the_modules_weights(saved):
    family, weights, model = saved
    rank, block = weights.dimensions.d_head, model.blocks[LAYER]
    found = layer_bases(weights, LAYER).forms
    forms = {"stored": matrices_of(family, block), "folded": folded_matrices(family, block)}
    for form, matrices in forms.items():
        bases = found[form]
        assert set(bases) == set(matrices)
        for name, matrix in matrices.items():
            assert bases[name].shape == (48, rank)
            values = np.linalg.svd(matrix, compute_uv=False)
            gap = values[rank - 1] - (values[rank] if len(values) > rank else 0)
            # weights are read as float32; what that turns a subspace by is its rounding over the gap behind it
            tolerance = 1e-5 * values[0] / gap
            np.testing.assert_allclose(projector(bases[name]), projector(leading(matrix, rank)), atol=tolerance)
            np.testing.assert_allclose(bases[name].T @ bases[name], np.eye(rank), atol=1e-12)


def only_matrices_beside_a_norm_are_folded(saved):
    family, weights, _ = saved
    found = layer_bases(weights, LAYER)
    readers = set() if family == "bert" else set(found.forms["stored"]) - {"o", "down"}
    for bases in (found.forms, found.random):
        plain, folded = bases["stored"], bases["folded"]
        changed = {name for name in plain if not np.array_equal(plain[name], folded[name])}
        assert changed == readers | ({"o", "down"} if family in BOTH_SIDES else set())


def the_random_matrices_have_the_row_lengths_of_the_matrices(saved):
    """Random matrices are drawn again here, and scaled row by row."""
    family, weights, model = saved
    rank, block = weights.dimensions.d_head, model.blocks[LAYER]
    found = layer_bases(weights, LAYER).random
    for form, matrices in (("stored", matrices_of(family, block)), ("folded", folded_matrices(family, block))):
        for index, name in enumerate(name for name in ("q", "k", "v", "o", "gate", "up", "down") if name in matrices):
            lengths = np.linalg.norm(matrices[name], axis=1)
            draw = np.random.default_rng([LAYER, index]).standard_normal(matrices[name].shape)
            rows = draw / np.linalg.norm(draw, axis=1)[:, None] * lengths[:, None]
            np.testing.assert_allclose(
                projector(found[form][name]), projector(leading(rows, rank)), atol=1e-4
            )  # lengths of float32 weights


def surveyed(folder, weights):
    sizes = asdict(weights.dimensions)
    words = {"kind": "folder", "place": "x", "revision": "0", "family": "x", "dtype": "float32", "attention": "x"}
    arrays = {"words": {"resid_pre": np.zeros((1, 1, sizes["n_layers"], sizes["d_model"]))}}
    run = create_run(str(folder), record_of(arrays, 1, model=ModelFacts(name="tiny", **sizes, **words)))
    assert survey_weights(run, weights, None, silent) == ["weights"]
    assert survey_weights(run, weights, None, silent) == []
    return read_group(run, "weights")


@each(
    "family, said",
    [("albert-groups", "share the weights of 2 blocks"), ("gemma4", "layers 3, 4 use the keys and values")],
)
def test_weights_that_layers_share_are_noted(tmp_path, family, said):
    tiny.model_with_head(family).save_pretrained(tmp_path / "model")
    weights = Weights(tmp_path / "model", load_config(tmp_path / "model"))
    assert said in " ".join(texts_of(surveyed(tmp_path / "store", weights).attrs["notes"]))


def test_a_head_wider_than_the_stream_has_as_many_directions_as_the_stream(tmp_path):
    config = copy.deepcopy(CONFIGS["llama"])
    config.update({"hidden_size": 16, "head_dim": 32})
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    weights = Weights(tmp_path, load_config(tmp_path))
    assert {one.shape for one in layer_bases(weights, LAYER).forms["stored"].values()} == {(16, 16)}


@each("value", [np.nan, np.inf])
def test_a_weight_that_is_not_finite_is_named(tmp_path, value):
    model = tiny.model_with_head("llama")
    model.model.layers[LAYER].mlp.up_proj.weight.data[3, 5] = value
    model.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="layer 2: the matrix up has a weight that is not finite"):
        layer_bases(Weights(tmp_path, load_config(tmp_path)), LAYER)


def the_group_holds_the_overlaps_of_all_layers(saved, tmp_path):
    family, weights, model = saved
    group, rank = surveyed(tmp_path, weights), weights.dimensions.d_head
    of_model = group.sel(matrices="model")
    sequential = "resid_mid" in {str(site) for site in model.anatomy.taps}

    def shared(first, second):
        return np.sum((first.T @ second) ** 2) / rank

    close = {"rtol": 0, "atol": 1e-4}  # float32 weights against the gaps of random matrices
    for form, matrices in (("stored", matrices_of), ("folded", folded_matrices)):
        of_layers = [
            {name: leading(matrix, rank) for name, matrix in matrices(family, block).items()} for block in model.blocks
        ]
        writing, reading, between = (
            of_model[f"{name}_overlap"].sel(form=form).values for name in ("writing", "reading", "writer_reader")
        )
        for first, second in np.ndindex(5, 5):
            for names, overlaps in ((WRITING, writing), (READING, reading)):
                for row, name in enumerate(names):
                    expected = np.nan
                    if name in of_layers[0]:
                        expected = shared(of_layers[first][name], of_layers[second][name])
                    np.testing.assert_allclose(overlaps[row, first, second], expected, **close)
            for row, column in np.ndindex(2, 5):
                writer, reader = WRITING[row], READING[column]
                in_block = first == second and writer == "o" and reader in ("gate", "up") and sequential
                expected = np.nan
                if reader in of_layers[0] and (first < second or in_block):
                    expected = shared(of_layers[first][writer], of_layers[second][reader])
                np.testing.assert_allclose(between[row, column, first, second], expected, **close)
    assert group["writing_matrix"].values.tolist() == WRITING
    assert group["reading_matrix"].values.tolist() == READING
    assert group["random_overlap"].values.tolist() == [rank / 48, random_overlap(rank, 48)[1]]
    for side in ("writing", "reading"):
        whole = np.diagonal(of_model[f"{side}_overlap"].sel(form="stored"), axis1=1, axis2=2)
        np.testing.assert_allclose(whole[~np.isnan(whole)], 1, rtol=1e-10)


@each("spread", [0.0, 1.0])
def test_shared_row_lengths_alone_explain_the_overlap_of_random_weights(tmp_path, spread):
    """With equal features the null is that of random subspaces; with long rows in common it lies above them."""
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    lengths = torch.exp(spread * torch.randn(48))
    with torch.no_grad():
        for block in model.model.layers:
            block.self_attn.o_proj.weight *= lengths[:, None]
            block.mlp.down_proj.weight *= lengths[:, None]
    model.save_pretrained(tmp_path / "model")
    group = surveyed(tmp_path / "store", Weights(tmp_path / "model", CONFIGS["llama"]))
    apart, stored = ~np.eye(5, dtype=bool), group.sel(form="stored")
    found, null = (overlaps.values[:, apart].mean() for overlaps in stored["writing_overlap"])
    assert abs(found - null) < 0.03
    assert (null - group["random_overlap"].sel(null="mean").item() > 0.2) == (spread > 0)
    expected, missing = np.isnan(stored["writer_reader_overlap"].values)
    np.testing.assert_array_equal(missing, expected)


def test_random_weights_have_the_overlap_of_random_subspaces(tmp_path):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS["llama"])
    model.save_pretrained(tmp_path / "model")
    group = surveyed(tmp_path / "store", Weights(tmp_path / "model", CONFIGS["llama"]))
    apart = group["reading_overlap"].sel(matrices="model", form="stored").values[:, ~np.eye(5, dtype=bool)]
    assert abs(np.nanmean(apart) - group["random_overlap"].sel(null="mean").item()) < 0.02


test_weight_matrices_are_those_of_the_modules = together(
    bases_are_the_leading_singular_vectors_of_the_modules_weights,
    only_matrices_beside_a_norm_are_folded,
    the_random_matrices_have_the_row_lengths_of_the_matrices,
    the_group_holds_the_overlaps_of_all_layers,
)
