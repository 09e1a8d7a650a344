"""ALBERT: each layer has a module of its own, whose parameters are those of its group."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS

from theodolite.sites import Site
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model, wrap
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import notes_on, read_circuits

GROUPS = {"albert": [0, 0, 0, 0, 0], "albert-groups": [0, 0, 0, 1, 1]}
IDS = tiny.random_tokens([11])[0]


@torch.inference_mode()
@pytest.mark.parametrize("family", GROUPS)
def test_the_stream_of_each_layer_is_that_of_the_plain_model(family):
    plain = tiny.tiny_model(family)
    states = plain(input_ids=torch.tensor([IDS]), output_hidden_states=True).hidden_states
    read = read_sites(wrap(tiny.tiny_model(family)), IDS, range(-len(IDS), 0))
    theirs = torch.stack([state[0] for state in states], dim=1).numpy()
    assert len(states) == 6
    assert relative_errors(read[Site.RESID_PRE], theirs[:, :5]).max() < 1e-6
    assert relative_errors(read[Site.RESID_POST], theirs[:, 1:]).max() < 1e-6
    assert relative_errors(read[Site.RESID_FINAL], theirs[:, 5]).max() < 1e-6


@each("family", GROUPS)
@each("dtype", [torch.float32, torch.bfloat16])
def test_layers_of_a_group_have_the_same_parameters_in_memory(family, dtype):
    module = tiny.tiny_model(family)
    alone = sum(parameter.numel() for parameter in module.parameters())
    blocks = wrap(module).blocks
    module.to(dtype)
    assert sum(parameter.numel() for parameter in module.parameters()) == alone
    pointers = [next(block.parameters()).data_ptr() for block in blocks]
    first_of = {group: pointers[GROUPS[family].index(group)] for group in GROUPS[family]}
    assert pointers == [first_of[group] for group in GROUPS[family]]
    assert len({id(block.albert_layers[0].attention.dense) for block in blocks}) == 5


@each("family", GROUPS)
def test_a_model_is_unrolled_once_and_its_configuration_stays(family):
    module = tiny.tiny_model(family)
    first = list(wrap(module).blocks)
    assert list(wrap(module).blocks) == first
    assert module.config.num_hidden_groups == CONFIGS[family].num_hidden_groups
    assert known_anatomy(module.config).block_of == dict(enumerate(GROUPS[family]))


def test_the_kernel_of_attention_can_be_switched_in_all_layers():
    module = wrap(tiny.tiny_model("albert-groups")).module
    module.set_attn_implementation("eager")
    attentions = [child for child in module.modules() if hasattr(child, "attention_head_size")]
    assert [one.config._attn_implementation for one in attentions] == ["eager"] * 5


@each("family", GROUPS)
def test_layers_of_a_group_have_the_same_circuits(tmp_path, family):
    tiny.model_with_head(family).save_pretrained(tmp_path)
    weights = Weights(tmp_path, load_config(tmp_path))
    queries = [read_circuits(weights, layer).query for layer in range(5)]
    same = [[np.array_equal(one, other) for other in queries] for one in queries]
    groups = GROUPS[family]
    assert same == [[one == other for other in groups] for one in groups]
    blocks = {"albert": "1 block,", "albert-groups": "2 blocks,"}[family]
    assert any(f"the 5 layers share the weights of {blocks}" in note for note in notes_on(weights, fold_norm=False))


def test_a_file_has_the_blocks_of_the_groups_alone(tmp_path):
    tiny.model_with_head("albert-groups").save_pretrained(tmp_path)
    model = load_model(tmp_path)
    assert len(model.blocks) == model.dimensions.n_layers == 5
    assert describe_model(load_config(tmp_path))["n_layers"] == 5
