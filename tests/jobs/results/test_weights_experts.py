"""Overlaps of the experts of a layer, against singular vectors of the modules' own weights in float64."""

import numpy as np
import pytest
import torch
from support import tiny
from support.analysing import context_of
from support.each import each
from support.sentences import assert_each_says, assert_says
from support.stored import store_run
from transformers import AutoModel

from theodolite.sections.parts import texts_of
from theodolite_jobs.groups.weights import compute as group
from theodolite_jobs.groups.weights import experts as weights_experts
from theodolite_jobs.groups.weights.experts import MATRICES, ExpertBases
from theodolite_jobs.groups.weights.formulas import leading_columns, overlap, pairwise_overlaps
from theodolite_jobs.models.load import load_config, wrap
from theodolite_jobs.models.weights import Weights

SHARED = {"deepseek_v3": "mlp.shared_experts", "nemotron_h": "mixer.shared_experts"}


@pytest.fixture(scope="module", params=["mixtral", "qwen3_moe", "gpt_oss", "granitemoe", *SHARED])
def saved(request, tmp_path_factory):
    """A family's weights as files, and its modules."""
    folder = tmp_path_factory.mktemp(request.param)
    tiny.model_with_head(request.param).save_pretrained(folder)
    model = wrap(AutoModel.from_pretrained(folder, dtype=torch.float64))
    return request.param, Weights(folder, load_config(folder)), model


def double(tensor):
    return tensor.detach().double().numpy()


def matrices_of(family, block):
    """The matrices of each expert by their names, (d_model, …), from the modules; none for a block without experts."""
    experts = [module for module in block.modules() if "Experts" in type(module).__name__]
    if not experts:
        return {}
    down = double(experts[0].down_proj)
    if family == "nemotron_h":  # its experts have no gate
        found = {"up": list(double(experts[0].up_proj).transpose(0, 2, 1)), "down": list(down)}
    elif family == "gpt_oss":  # stored as (in, out), with gate and up in turns
        gate_up = double(experts[0].gate_up_proj)
        found = {"gate": list(gate_up[..., ::2]), "up": list(gate_up[..., 1::2]), "down": list(down.transpose(0, 2, 1))}
    else:
        gates, ups = np.split(double(experts[0].gate_up_proj).transpose(0, 2, 1), 2, axis=2)
        found = {"gate": list(gates), "up": list(ups), "down": list(down)}
    if family in SHARED:
        shared = block.get_submodule(SHARED[family])
        for name in found:
            weight = double(getattr(shared, f"{name}_proj").weight)
            found[name].append(weight if name == "down" else weight.T)
    return found


def leading(matrix, rank):
    return np.linalg.svd(matrix, full_matrices=False)[0][:, :rank]


def computed(tmp_path, weights):
    run = store_run(tmp_path, {"words": {"resid_pre": np.ones((2, 1, 5, weights.dimensions.d_model), np.float32)}})
    context = context_of(run, {})
    context.open_weights = lambda: weights
    return group.compute(context)


def test_overlaps_of_experts_are_those_of_singular_vectors_of_the_modules_weights(saved, tmp_path):
    family, weights, model = saved
    result, rank = computed(tmp_path, weights), weights.dimensions.d_head
    names = result.coordinates["expert_or_shared"]
    routed = 3 if family == "mixtral" else 4
    assert list(names) == [*map(str, range(routed)), *(["shared"] if family in SHARED else [])]
    overlaps, nulls = result.arrays["expert_overlap"], result.arrays["expert_overlap_null"]
    assert overlaps.shape == (3, 5, len(names), len(names))
    n_compared = 0
    for layer, block in enumerate(model.blocks):
        found = matrices_of(family, block)
        for row, name in enumerate(MATRICES):
            assert np.isnan(overlaps[row, layer]).all() == np.isnan(nulls[row, layer]) == (name not in found)
            bases = [leading(matrix, rank) for matrix in found.get(name, [])]
            for first, second in np.ndindex(len(bases), len(bases)):
                expected = np.square(bases[first].T @ bases[second]).sum() / rank
                # weights are read as float32, and the gaps behind the last direction are narrow
                np.testing.assert_allclose(overlaps[row, layer, first, second], expected, rtol=0, atol=1e-4)
                n_compared += first != second
    assert n_compared
    assert not any("overlaps of experts" in note for note in texts_of(result.attributes.get("notes", [])))


def test_random_matrices_have_the_row_lengths_of_the_experts(saved, tmp_path):
    family, weights, model = saved
    result, rank = computed(tmp_path, weights), weights.dimensions.d_head
    layer = 3
    for row, name in enumerate(MATRICES):
        matrices = matrices_of(family, model.blocks[layer]).get(name)
        if matrices is None:
            continue
        bases = []
        for expert in range(3 if family == "mixtral" else 4):  # all routed experts, since there are few
            draw = np.random.default_rng([layer, row, expert]).standard_normal(matrices[expert].shape)
            lengths = np.linalg.norm(matrices[expert], axis=1)
            bases.append(leading(draw / np.linalg.norm(draw, axis=1)[:, None] * lengths[:, None], rank))
        pairs = [np.square(first.T @ second).sum() / rank for i, first in enumerate(bases) for second in bases[i + 1 :]]
        assert len(pairs) == (3 if family == "mixtral" else 6)
        np.testing.assert_allclose(result.arrays["expert_overlap_null"][row, layer], np.mean(pairs), rtol=0, atol=1e-4)


def test_a_model_without_experts_has_empty_dimensions(tmp_path):
    tiny.model_with_head("llama").save_pretrained(tmp_path / "model")
    result = computed(tmp_path / "store", Weights(tmp_path / "model", load_config(tmp_path / "model")))
    for name in ("mlp_matrix", "expert_or_shared", "expert_or_shared_other"):
        assert list(result.coordinates[name]) == []
    assert "notes" not in result.attributes


def experts_with(matrices, rank):
    bases = ExpertBases(0, rank, range(len(matrices)))
    for expert, matrix in enumerate(matrices):
        bases.add("up", expert, matrix, matrix @ matrix.T)
    return bases.overlaps()


def test_experts_with_planted_directions_in_common_overlap_by_their_share():
    """Of three directions, experts 0 and 1 share two; expert 2 shares none with them."""
    axes = np.eye(12)
    planted = [axes[:, [0, 1, 2]], axes[:, [1, 2, 3]], axes[:, [4, 5, 6]]]
    rng = np.random.default_rng(0)
    rotations = [np.linalg.qr(rng.standard_normal((8, 8)))[0][:3] for _ in planted]
    matrices = [own * [3, 2, 1] @ rotation for own, rotation in zip(planted, rotations, strict=True)]
    noise = [1e-3 * rng.standard_normal((12, 8)) for _ in planted]
    found = experts_with([matrix + small for matrix, small in zip(matrices, noise, strict=True)], 3)
    expected = [[1, 2 / 3, 0], [2 / 3, 1, 0], [0, 0, 1]]
    np.testing.assert_allclose(found.overlaps["up"], expected, atol=1e-4)


def test_narrow_experts_compare_as_many_directions_as_they_have(tmp_path):
    rng = np.random.default_rng(1)
    matrices = [rng.standard_normal((12, 4)) for _ in range(3)]
    found = experts_with(matrices, 8)
    assert found.rank == 4
    whole = [np.linalg.qr(matrix)[0] for matrix in matrices]
    np.testing.assert_allclose(found.overlaps["up"][0, 1], overlap(whole[0], whole[1]), rtol=1e-10)
    assert_each_says(weights_experts.expert_notes([None, found], 8), "4 directions … 4 hidden units")


def test_experts_without_overlaps_are_named_and_have_no_random_matrices():
    rng = np.random.default_rng(2)
    matrices = [rng.standard_normal((12, 8)) for _ in range(4)]
    whole, found = experts_with(matrices, 3), experts_with([np.zeros((12, 8)), *matrices[1:]], 3)
    assert list(weights_experts.expert_notes([None, whole], 3)) == []
    (note,) = weights_experts.expert_notes([None, found], 3)
    assert_says(note, "W_up … expert 0 of layer 1 … fewer than 3 independent directions")
    assert 0 < found.nulls["up"] < 1


@each("shape", [(20, 7), (7, 20), (9, 9)])
def test_leading_columns_are_singular_vectors_whichever_side_is_smaller(shape):
    matrix = np.random.default_rng(2).standard_normal(shape)
    found, expected = leading_columns(matrix, matrix @ matrix.T, 3), leading(matrix, 3)
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=1e-10)
    np.testing.assert_allclose(found.T @ found, np.eye(3), atol=1e-12)


def test_an_expert_with_too_few_independent_columns_has_no_overlap():
    rng = np.random.default_rng(3)
    dead, alive = np.zeros((12, 8)), [rng.standard_normal((12, 8)) for _ in range(2)]
    low = rng.standard_normal((12, 2)) @ rng.standard_normal((2, 8))
    for matrix in (dead, low):
        assert np.isnan(leading_columns(matrix, matrix @ matrix.T, 3)).all()
    bases = [leading_columns(matrix, matrix @ matrix.T, 3) for matrix in (*alive, dead)]
    found = pairwise_overlaps(np.stack(bases))
    np.testing.assert_array_equal(np.isnan(found), [[False, False, True], [False, False, True], [True] * 3])
    np.testing.assert_allclose(found[0, 1], overlap(*bases[:2]), rtol=1e-12)
