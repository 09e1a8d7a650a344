"""The experts that tokens use: those of each prompt alone, however it is padded, batched and sharded."""

import copy
import json

import numpy as np
import torch
from support import tiny
from support.each import each
from support.hand_made_replicas import replica_of
from support.tiny_configs import CONFIGS

from theodolite.sites import Site
from theodolite.store.layout import EXPERTS
from theodolite.store.records import record_key
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.routers import experts_of
from theodolite_jobs.models.routing import recorded_routing, routing_of_prompt

LAYERS = [0, 1, 2, 3, 4]
POSITIONS = (-3, -1)
TOKENS = tiny.random_tokens([12, 19, 14, 12, 17], prefix=9)
ROUTED = [family for family, config in CONFIGS.items() if experts_of(config)]
BATCHED = {"shard_prompts": 5, "batch_tokens": 60}  # padded, behind a shared prefix where the family can share one
ALONE = {"shard_prompts": 1, "batch_tokens": 1}


def capture(model, choices=2, tokens=TOKENS, layers=LAYERS, sites=(Site.RESID_PRE, Site.RESID_FINAL), **options):
    plan = plan_set(
        "set",
        tokens,
        POSITIONS,
        share_prefix=can_share_prefix(model.config, model.anatomy),
        length_class=length_class_of(model.config),
        **{**BATCHED, **options},
    )
    engine = Engine(model, sites, layers)
    return [engine.capture(plan.task(shard, tokens, choices=choices)) for shard in plan.shards]


def chosen(model, **options):
    """Return the experts of all prompts, (sample, position, layer, choice)."""
    return np.concatenate([shard.experts for shard in capture(model, **options)])


@each("family", ROUTED)
def test_experts_equal_those_of_each_prompt_alone(family):
    model = wrap(tiny.tiny_model(family))
    ours, layers = chosen(model), experts_of(CONFIGS[family]).layers
    for sample, ids in enumerate(TOKENS):
        with recorded_routing(model) as calls, torch.inference_mode():
            model.run(input_ids=torch.tensor([ids]), use_cache=False)
        plain = routing_of_prompt(calls)
        assert set(plain) == set(layers)
        for layer in LAYERS:
            expected = -1
            if layer in plain and CONFIGS[family].model_type.startswith(
                "llama4"
            ):  # the first number says who is chosen
                expected = np.stack([np.flatnonzero(one) for one in plain[layer][list(POSITIONS), :, 0].numpy()])
            elif layer in plain:
                expected = plain[layer][list(POSITIONS), :, 0].numpy()
            np.testing.assert_array_equal(ours[sample, :, layer], np.broadcast_to(expected, (2, 2)))


# Each family's own rule, by hand from the weights of its router and the inputs of its layers of experts.


def largest(scores, count=2):
    return scores.argsort(dim=-1, descending=True)[..., :count]


def of_mixtral(router, hidden):
    return largest(hidden @ router.weight.T)


def of_gpt_oss(router, hidden):
    return largest(hidden @ router.weight.T + router.bias)


def of_deepseek_v3(router, hidden):
    """Of two groups of two experts, take the group with the larger sum; a bias counts for the choice alone."""
    scores = torch.sigmoid(hidden @ router.weight.T) + router.e_score_correction_bias
    groups = scores.unflatten(-1, (2, 2)).sum(dim=-1)
    first = groups[..., 0] > groups[..., 1]
    return torch.where(first[..., None], torch.tensor([0, 1]), torch.tensor([2, 3]))


RULES = {
    "mixtral": of_mixtral,
    "qwen3_moe": of_mixtral,
    "gpt_oss": of_gpt_oss,
    "deepseek_v3": of_deepseek_v3,
}


@torch.inference_mode()
@each("family", RULES)
def test_experts_are_those_of_the_family_s_own_rule(family):
    module = tiny.tiny_model(family)
    routers = {
        layer: getattr(module.layers[layer].mlp, "gate" if family != "gpt_oss" else "router")
        for layer in LAYERS
        if layer in experts_of(CONFIGS[family]).layers
    }
    if family == "deepseek_v3":
        for router in routers.values():
            router.e_score_correction_bias.copy_(torch.tensor([0.3, -0.2, 0.1, 0.0]))
    ours, inputs = chosen(wrap(module)), {}
    for layer, router in routers.items():
        router.register_forward_pre_hook(lambda _, args, layer=layer: inputs.__setitem__(layer, args[0].flatten(0, -2)))
    for sample, ids in enumerate(TOKENS):
        module(input_ids=torch.tensor([ids]), use_cache=False)
        for layer, router in routers.items():
            by_hand = RULES[family](copy.deepcopy(router).double(), inputs[layer][list(POSITIONS)].double())
            np.testing.assert_array_equal(ours[sample, :, layer], np.sort(by_hand.numpy(), axis=-1))
    assert len(np.unique(ours[:, :, list(routers)], axis=0)) > 1  # not always the same experts


@each("family", ["mixtral", "deepseek_v3", "llama4_text"])
def test_experts_do_not_depend_on_shards_or_batches(family):
    model = wrap(tiny.tiny_model(family))
    alone = chosen(model, **ALONE)
    for options in ({"shard_prompts": 3}, {"batch_tokens": 30}, {"shard_prompts": 2, "batch_tokens": 200}):
        np.testing.assert_array_equal(chosen(model, **options), alone)


def test_recording_experts_changes_no_activation():
    model = wrap(tiny.tiny_model("mixtral"))
    (without,), (recorded,) = capture(model, choices=0), capture(model)
    assert without.experts is None
    for site, values in without.activations.items():
        np.testing.assert_array_equal(recorded.activations[site], values)


def test_the_last_captured_layer_is_recorded_though_no_site_follows_its_experts():
    model = wrap(tiny.tiny_model("mixtral"))
    ours = chosen(model, layers=[0, 2], sites=(Site.RESID_PRE, Site.RESID_MID))
    np.testing.assert_array_equal(ours, chosen(model)[:, :, [0, 2]])


@each("shard_prompts", [4, 2])
def test_prompts_without_the_position_and_quarantined_prompts_have_no_experts(shard_prompts):
    model = wrap(tiny.tiny_model("mixtral"))
    tokens = [(5, 6, 7), (8, 9), (11, 12, 13), (5, 60, 7)]
    with torch.no_grad():
        model.module.embed_tokens.weight[60] = torch.inf
    shards = capture(model, tokens=tokens, shard_prompts=shard_prompts)
    assert [sample for shard in shards for sample in shard.quarantined] == [3]
    experts = np.concatenate([shard.experts for shard in shards])
    assert (experts[3] == -1).all()
    assert (experts[1, 0] == -1).all()
    assert (experts[[0, 1, 2], 1] >= 0).all()


# A replica records experts if its task says so.


@each("choices", [2, 0])
def test_a_replica_records_experts_only_if_its_task_says_so(tmp_path, choices):
    sites, tokens = (Site.RESID_PRE, Site.RESID_FINAL), TOKENS
    working = replica_of("mixtral", tmp_path, sites, LAYERS)
    plan = plan_set("set", tokens, POSITIONS, shard_prompts=2, batch_tokens=100, share_prefix=False)
    for shard in plan.shards:
        working.capture(shard.index, plan.task(shard, tokens, choices=choices))
        working.written(shard.index)
        record = json.loads((tmp_path / record_key("set", shard.index)).read_bytes())
        assert set(record["checksums"]) == {"resid_pre", "resid_final", *([EXPERTS.name] if choices else [])}
    assert (tmp_path / "activations.zarr/set/experts/c/2/0/0/0").exists() == bool(choices)
