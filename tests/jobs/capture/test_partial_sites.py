"""Sites that only some blocks of a hybrid have, against plain runs of the ordinary model, one prompt at a time."""

import copy

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.hand_runs import HYBRIDS
from support.tiny_configs import CONFIGS

from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import certify, certify_with_limits
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.capture.rounding import Rounding, excess
from theodolite_jobs.capture.spot_checks import CheckedEngine
from theodolite_jobs.models.batching import can_share_prefix
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.reference import relative_errors

TOKENS = tiny.random_tokens([12, 9, 17, 10, 14], prefix=6)
POSITIONS = (-2, -1)
WITH_ATTENTION = [0, 4]  # of the tiny configurations
OUTPUTS = {"lfm2": "out_proj", "lfm2_moe": "out_proj"}  # of attention; the others have o_proj
SCALES = {"granitemoehybrid": 0.4, "granitemoehybrid-dense": 0.4}  # of what attention adds


def plan_of(model):
    shared = can_share_prefix(model.config, model.anatomy)
    return plan_set("set", TOKENS, POSITIONS, shard_prompts=5, batch_tokens=40, share_prefix=shared)


def captured(model, sites, layers=range(5)):
    plan = plan_of(model)
    return Engine(model, sites, list(layers)).capture(plan.task(plan.shards[0], TOKENS))


@torch.inference_mode()
def run_alone(family):
    """Return `attn_out` and `head_out` of each layer with attention, (sample, position, feature), from hooks."""
    module = copy.deepcopy(tiny.tiny_model(family))
    module.set_attn_implementation("eager")
    found = {(site, layer): [] for site in (Site.ATTN_OUT, Site.HEAD_OUT) for layer in WITH_ATTENTION}
    for layer in WITH_ATTENTION:
        block = module.layers[layer]
        attention = block.mixer if family.startswith("nemotron_h") else block.self_attn

        def keep(_, args, output, layer=layer):
            found[Site.HEAD_OUT, layer].append(args[0][0, list(POSITIONS)])
            found[Site.ATTN_OUT, layer].append(output[0, list(POSITIONS)] * SCALES.get(family, 1.0))

        getattr(attention, OUTPUTS.get(family, "o_proj")).register_forward_hook(keep)
    for ids in TOKENS:
        module(input_ids=torch.tensor([ids]), use_cache=False)
    return {place: torch.stack(rows).numpy() for place, rows in found.items()}


@each("family", sorted(HYBRIDS))
def test_blocks_with_attention_have_its_vectors_and_the_others_nan(family):
    shard = captured(wrap(tiny.tiny_model(family)), [Site.RESID_PRE, Site.ATTN_OUT, Site.HEAD_OUT])
    for (site, layer), expected in run_alone(family).items():
        found = shard.activations[site][:, :, layer].reshape(expected.shape)
        assert relative_errors(found, expected).max() <= 5e-5, (site, layer)
    for site in (Site.ATTN_OUT, Site.HEAD_OUT):
        assert np.isnan(shard.activations[site][:, :, [1, 2, 3]]).all()
    assert np.isfinite(shard.activations[Site.RESID_PRE]).all()
    assert shard.quarantined == {}


@torch.inference_mode()
@pytest.mark.parametrize(("family", "layers"), [("nemotron_h", [2, 3]), ("nemotron_h-dense", [1, 3])])
def test_blocks_that_are_an_mlp_alone_have_its_output(family, layers):
    model = wrap(tiny.tiny_model(family))
    values = captured(model, [Site.RESID_PRE, Site.RESID_POST, Site.MLP_OUT]).activations
    added = values[Site.RESID_POST] - values[Site.RESID_PRE]
    others = sorted(set(range(5)) - set(layers))
    assert relative_errors(values[Site.MLP_OUT][:, :, layers], added[:, :, layers]).max() <= 5e-5
    assert np.isnan(values[Site.MLP_OUT][:, :, others]).all()


def test_captured_layers_may_be_some_of_those_with_the_site():
    model = wrap(tiny.tiny_model("jamba"))
    whole, some = (captured(model, [Site.ATTN_OUT], layers).activations[Site.ATTN_OUT] for layers in (range(5), [3, 4]))
    np.testing.assert_array_equal(some, whole[:, :, [3, 4]])


def test_a_vector_that_is_not_finite_is_still_quarantined_with_its_layer():
    module = tiny.tiny_model("jamba")
    with torch.no_grad():
        module.layers[4].self_attn.o_proj.weight[0] = torch.inf
    shard = captured(wrap(module), [Site.RESID_PRE, Site.ATTN_OUT], [1, 3, 4])
    assert shard.quarantined == dict.fromkeys(range(5), "activation is not finite at attn_out, layer 4")


@each("family", ["qwen3_next", "nemotron_h", "jamba"])
@each("dtype", [torch.float32, torch.bfloat16])
def test_the_parity_check_compares_the_blocks_with_the_site(family, dtype):
    model = wrap(tiny.tiny_model(family).to(dtype))
    sites = (*model.anatomy.taps, *model.anatomy.partial, Site.RESID_FINAL)
    certificate = certify(model, sites, range(5), {"set": plan_of(model).layout}, {"set": TOKENS})
    assert set(certificate.max_error_by_site) == set(map(str, sites))
    assert np.isfinite(list(certificate.max_error_by_site.values())).all()
    assert np.isfinite(certificate.identity_error)


@each("family", ["qwen3_next", "nemotron_h", "jamba"])
def test_spot_checks_compare_the_blocks_with_the_site(family):
    model = wrap(tiny.tiny_model(family))
    sites, plan = (*model.anatomy.partial, Site.RESID_PRE), plan_of(model)
    _, limits = certify_with_limits(model, sites, range(5), {"set": plan.layout}, {"set": TOKENS})
    engine = CheckedEngine(Engine(model, sites, range(5)), 1.0, limits)
    shard = engine.capture(plan.task(plan.shards[0], TOKENS))
    assert shard.counts.spot_checks == len(TOKENS)
    assert 0 < shard.counts.spot_check_error < 5e-5


def test_a_distance_is_named_by_the_layer_of_its_site():
    near, far = np.full((20, 2), 1e-3), np.array([[1e-3, 1.0]] * 20)
    layers = {Site.ATTN_OUT: [3, 7]}
    rounding = Rounding(layers, {Site.ATTN_OUT: far}, {Site.ATTN_OUT: near}, np.full(20, np.inf), "compared", 0, 1)
    assert "at attn_out, layer 7" in excess(rounding, 2.0**-8)


def test_a_family_in_which_no_block_has_attention_has_no_such_site():
    config = copy.deepcopy(CONFIGS["qwen3_5_text"])
    config.layer_types = ["linear_attention"] * 5
    anatomy = wrap(tiny.random_model(config, tiny.AutoModel)).anatomy
    assert anatomy.partial == {}
    assert {Site.ATTN_OUT, Site.HEAD_OUT} <= set(anatomy.absent)
