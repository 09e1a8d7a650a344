"""While a survey runs, a few prompts are compared with plain runs; rounding passes, and a mistake stops the survey."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.tiny_sizes import GROUPED
from transformers import AutoModel, OlmoeConfig

from theodolite.errors import ParityError
from theodolite.shard_counts import ShardCounts
from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import certify_with_limits
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.capture.spot_checks import CheckedEngine
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.load import wrap

TOKENS = tiny.random_tokens(range(11, 35), 9)


def checked_engine(model, share=1.0, shard_prompts=24):
    """Return an engine whose parity check has passed, and the plan of the prompts."""
    plan = plan_set(
        "set",
        TOKENS,
        (-3, -1),
        shard_prompts=shard_prompts,
        batch_tokens=128,
        share_prefix=can_share_prefix(model.config, model.anatomy),
        length_class=length_class_of(model.config),
    )
    engine = Engine(model, (*model.anatomy.taps, Site.RESID_FINAL), (0, 2, 4))
    probes = {"set": probe_prompts(TOKENS, 32)}
    _, limits = certify_with_limits(model, engine.sites, engine.layers, {"set": plan.layout}, probes)
    return engine, CheckedEngine(engine, share, limits), plan


def tiny_experts(dtype):
    config = OlmoeConfig(**GROUPED, num_experts=8, num_experts_per_tok=2)
    return wrap(tiny.random_model(config, AutoModel).to(dtype))


@each("dtype", [torch.float32, torch.bfloat16])
@each("family", ["llama", "phi3-longrope", "bert"])
def test_all_prompts_pass_and_the_activations_are_those_without_checks(family, dtype):
    engine, checked, plan = checked_engine(wrap(tiny.tiny_model(family).to(dtype)))
    expected = engine.capture(plan.task(plan.shards[0], TOKENS))
    captured = checked.capture(plan.task(plan.shards[0], TOKENS))
    for site, values in expected.activations.items():
        np.testing.assert_array_equal(captured.activations[site], values)
    assert expected.counts.spot_checks == 0
    assert captured.counts.spot_checks == len(TOKENS)
    assert captured.counts.spot_checks_rerouted == 0
    assert captured.counts.spot_check_error < (1e-5 if dtype == torch.float32 else 0.1)


def test_prompts_of_a_later_shard_are_compared_with_their_own_runs():
    _, checked, plan = checked_engine(wrap(tiny.tiny_model("llama")), shard_prompts=16)
    last = plan.shards[1]
    assert checked.capture(plan.task(last, TOKENS)).counts.spot_checks == last.stop - last.start == 8


def test_tokens_that_rounding_routes_to_other_experts_are_counted():
    _, checked, plan = checked_engine(tiny_experts(torch.bfloat16))
    counts = checked.capture(plan.task(plan.shards[0], TOKENS)).counts
    assert counts.spot_checks == len(TOKENS)
    assert 0 < counts.spot_checks_rerouted < len(TOKENS)


@each("dtype", [torch.float32, torch.bfloat16])
@each("make", [lambda dtype: wrap(tiny.tiny_model("llama").to(dtype)), tiny_experts])
def test_a_mistake_in_one_prompt_stops_the_survey(monkeypatch, make, dtype):
    _, checked, plan = checked_engine(make(dtype))
    launch = Engine.launch

    def mistaken(self, *arguments, **options):
        finish = launch(self, *arguments, **options)

        def finish_mistaken():
            captured = finish()
            if len(captured.activations[Site.ATTN_OUT]) == len(TOKENS):  # not if its batch runs again
                captured.activations[Site.ATTN_OUT][7, 1, 0] *= 1.2  # before the first experts
            return captured

        return finish_mistaken

    monkeypatch.setattr(Engine, "launch", mistaken)
    with pytest.raises(ParityError, match=r"sample 7 of set differs .* at attn_out, layer 0, allowed"):
        checked.capture(plan.task(plan.shards[0], TOKENS))


def test_the_same_share_of_prompts_is_compared_each_time(monkeypatch):
    _, checked, plan = checked_engine(wrap(tiny.tiny_model("llama")), share=0.1)
    chosen = [checked._chosen(plan.task(plan.shards[0], TOKENS)) for _ in range(2)]
    assert chosen[0] == chosen[1]
    assert len(chosen[0]) in (2, 3)
    _, none, _ = checked_engine(wrap(tiny.tiny_model("llama")), share=0.0)
    assert none.capture(plan.task(plan.shards[0], TOKENS)).counts.spot_checks == 0


def test_only_prompts_that_run_are_compared():
    _, checked, plan = checked_engine(wrap(tiny.tiny_model("llama")))
    probe = plan.task(plan.shards[0], TOKENS).part(2, 12, [(3, 9)])
    assert checked.capture(probe).counts.spot_checks == 2


def test_quarantined_and_very_long_prompts_are_not_compared():
    _, checked, plan = checked_engine(wrap(tiny.tiny_model("llama")))
    long = [(3,) * 5000, *TOKENS[1:]]
    assert checked._chosen(plan.task(plan.shards[0], long)) == list(range(1, 24))


def test_counts_of_parts_add_up_except_the_largest_error():
    one = ShardCounts(tokens=3, spot_checks=2, spot_check_error=0.5)
    two = ShardCounts(tokens=4, spot_checks=1, spot_checks_rerouted=1, spot_check_error=0.25)
    assert one.merged(two) == ShardCounts(tokens=7, spot_checks=3, spot_checks_rerouted=1, spot_check_error=0.5)
