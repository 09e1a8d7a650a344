from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tiny
from support.each import each
from support.layouts import TAPS
from support.tiny_configs import CONFIGS

from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import pieces, plan_set
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.reference import read_sites, relative_errors

SITES = (Site.RESID_PRE, Site.RESID_MID, Site.RESID_POST, Site.RESID_FINAL)
LAYERS = [0, 2, 4]
LENGTHS = [12, 30, 17, 12, 25, 31, 14, 20, 13, 16]


def capture_all(
    model, tokens, positions=(-1,), shard_prompts=4, batch_tokens=64, share_prefix=False, layers=LAYERS, sites=SITES
):
    """Return each site's activations of all prompts, shards put together."""
    plan = plan_set(
        "set",
        tokens,
        positions,
        shard_prompts=shard_prompts,
        batch_tokens=batch_tokens,
        share_prefix=share_prefix,
        length_class=length_class_of(model.config),
    )
    engine = Engine(model, sites, layers)
    shards = [engine.capture(plan.task(shard, tokens)) for shard in plan.shards]
    return {site: np.concatenate([shard.activations[site] for shard in shards]) for site in sites}


def sites_equal_a_float64_hugging_face_run_of_each_prompt_alone(family):
    tokens = tiny.random_tokens(LENGTHS, prefix=9)
    model = wrap(tiny.tiny_model(family))
    partial = [site for site in model.anatomy.partial if model.anatomy.layers_with(site, LAYERS)]
    sites = (*model.anatomy.taps, *partial, Site.RESID_FINAL)
    ours = capture_all(model, tokens, (-3, -1), share_prefix=can_share_prefix(model.config, model.anatomy), sites=sites)
    in_float64 = wrap(tiny.tiny_model(family).double())
    for sample, ids in enumerate(tokens):
        reference = read_sites(in_float64, ids, [-3, -1])
        for site in ours:
            at_layers = reference[site] if site is Site.RESID_FINAL else reference[site][:, LAYERS]
            found = ours[site][sample].reshape(at_layers.shape)
            # NaN at the same layers, those of a hybrid without the site
            np.testing.assert_array_equal(np.isnan(found), np.isnan(at_layers))
            # float32 rounding through five blocks; a wrong site is off by more than a tenth
            assert np.nanmax(relative_errors(found, at_layers)) < 1e-5, site


# By day, test_parity.py compares the other families with runs of each prompt alone.
test_sites_of_each_kind = each("family", TAPS)(sites_equal_a_float64_hugging_face_run_of_each_prompt_alone)
test_sites_of_the_others = pytest.mark.nightly(
    each("family", sorted(CONFIGS.keys() - TAPS))(sites_equal_a_float64_hugging_face_run_of_each_prompt_alone)
)


@each("units, choices", [(0, 0), (80, 2)])
def test_the_bytes_of_a_shard_are_those_of_its_arrays(units, choices):
    model, tokens = wrap(tiny.tiny_model("mixtral")), tiny.random_tokens(LENGTHS)
    plan = plan_set("set", tokens, (-2, -1), shard_prompts=4, batch_tokens=64, share_prefix=False)
    engine = Engine(model, (*SITES, Site.HEAD_OUT), LAYERS)
    task = plan.task(plan.shards[1], tokens, units, choices)
    captured = engine.capture(replace(task, units=0))
    arrays = sum(values.astype(np.float32).nbytes for values in captured.activations.values())
    counts, experts = 2 * len(LAYERS) * units * 4, 4 * 2 * len(LAYERS) * choices * 2  # int32; int16 of each prompt
    assert engine.shard_bytes(task) == arrays + counts + experts


@settings(max_examples=15, deadline=None)
@given(
    order=st.permutations(range(len(LENGTHS))),
    shard_prompts=st.integers(1, 10),
    batch_tokens=st.integers(16, 200),
    share_prefix=st.booleans(),
)
def test_activations_do_not_depend_on_order_shards_batches_or_prefix(order, shard_prompts, batch_tokens, share_prefix):
    tokens = tiny.random_tokens(LENGTHS, prefix=9)
    model = wrap(tiny.tiny_model("llama"))
    plain = capture_all(model, tokens, batch_tokens=1)
    shuffled = capture_all(
        model,
        [tokens[index] for index in order],
        shard_prompts=shard_prompts,
        batch_tokens=batch_tokens,
        share_prefix=share_prefix,
    )
    for site in plain:
        assert relative_errors(shuffled[site], plain[site][list(order)]).max() < 5e-6


def test_all_positions_are_captured_with_nan_before_the_first_token():
    tokens = tiny.random_tokens([3, 5])
    model = wrap(tiny.tiny_model("llama"))
    ours = capture_all(model, tokens, tuple(range(-5, 0)))[Site.RESID_MID]
    assert np.isnan(ours[0, :2]).all()
    reference = read_sites(model, tokens[0], [-3, -2, -1])[Site.RESID_MID]
    assert relative_errors(ours[0, 2:], reference[:, LAYERS]).max() < 5e-6
    assert np.isfinite(ours[1]).all()


@each("family", ["llama", "bert", "mixtral"])
def test_means_over_spans_equal_those_of_each_prompt_alone_in_plain_transformers(family):
    tokens, model = tiny.random_tokens(LENGTHS, prefix=9), wrap(tiny.tiny_model(family))
    spans = [
        ((9, len(ids)), (9 + n % 3, 10 + n % 3), (10, 12), (len(ids) - 1, len(ids))) for n, ids in enumerate(tokens)
    ]
    options = {"shard_prompts": 4, "batch_tokens": 64, "share_prefix": can_share_prefix(model.config, model.anatomy)}
    plan = plan_set("set", tokens, ("behind", "word", "two", "-1"), spans=spans, n_kept=0, **options)
    assert plan.layout.shared_prefix == 9 * options["share_prefix"]
    earlier = [((3, 5), *of_prompt[1:]) for of_prompt in spans]
    assert plan_set("set", tokens, plan.layout.positions, spans=earlier, **options).layout.shared_prefix == 0
    engine = Engine(model, (Site.RESID_PRE, Site.HEAD_OUT), LAYERS)
    choices = 2 if family == "mixtral" else 0
    pieces_of_shards = [part for one in plan.shards for part in pieces(plan.task(one, tokens, 0, choices), 4)]
    shards = [engine.capture(task) for task in pieces_of_shards]
    ours = np.concatenate([shard.activations[Site.RESID_PRE] for shard in shards])
    heads = np.concatenate([shard.activations[Site.HEAD_OUT] for shard in shards])
    for sample, (ids, own) in enumerate(zip(tokens, spans, strict=True)):
        with torch.inference_mode():
            streams = model.module(torch.tensor([ids]), output_hidden_states=True).hidden_states
        expected = [[streams[layer][0, start:stop].mean(dim=0).numpy() for layer in LAYERS] for start, stop in own]
        assert relative_errors(ours[sample], np.array(expected)).max() < 1e-5
        read = read_sites(model, ids, own)
        assert relative_errors(ours[sample], read[Site.RESID_PRE][:, LAYERS]).max() < 1e-5
        assert relative_errors(heads[sample].reshape(4, 3, -1), read[Site.HEAD_OUT][:, LAYERS]).max() < 1e-5
    if choices:
        experts = np.concatenate([shard.experts for shard in shards])
        assert (experts[:, [0, 2]] == -1).all()
        assert (experts[:, [1, 3]] >= 0).all()


def test_shared_tokens_give_exactly_equal_first_activations():
    tokens = [(*ids, 7) for ids in tiny.random_tokens(LENGTHS)]  # all end with the same token
    ours = capture_all(wrap(tiny.tiny_model("llama")), tokens)
    assert (ours[Site.RESID_PRE][:, 0, 0] == ours[Site.RESID_PRE][0, 0, 0]).all()


class RunsOutOfMemory(torch.nn.Module):
    """A model that runs out of memory for more than `capacity` prompts, as on a small GPU."""

    def __init__(self, inner, capacity):
        super().__init__()
        self.inner, self.capacity = inner, capacity
        self.config = inner.config

    def get_submodule(self, target):
        return self.inner.get_submodule(target)

    def get_input_embeddings(self):
        return self.inner.get_input_embeddings()

    def forward(self, input_ids, **options):
        if len(input_ids) > self.capacity:
            raise torch.OutOfMemoryError("no memory left")
        return self.inner(input_ids=input_ids, **options)


def test_a_batch_that_does_not_fit_into_memory_is_halved_and_recorded():
    tokens = tiny.random_tokens([12] * 10)
    model = wrap(tiny.tiny_model("llama"))
    small = replace(model, module=RunsOutOfMemory(model.module, capacity=3))
    plan = plan_set("set", tokens, (-1,), shard_prompts=10, batch_tokens=400, share_prefix=False)
    captured = Engine(small, SITES, LAYERS).capture(plan.task(plan.shards[0], tokens))
    assert captured.counts.oom_backoffs == 3
    assert sorted(map(len, captured.batches)) == [2, 2, 3, 3]
    whole = capture_all(model, tokens)
    for site, values in captured.activations.items():
        assert relative_errors(values, whole[site]).max() < 5e-6


def test_a_prompt_that_never_fits_into_memory_is_quarantined_with_nan():
    tokens = tiny.random_tokens([4, 5])
    model = wrap(tiny.tiny_model("llama"))
    none_fits = replace(model, module=RunsOutOfMemory(model.module, capacity=0))
    plan = plan_set("set", tokens, (-1,), shard_prompts=10, batch_tokens=400, share_prefix=False)
    captured = Engine(none_fits, SITES, LAYERS).capture(plan.task(plan.shards[0], tokens))
    assert set(captured.quarantined) == {0, 1}
    assert "memory" in captured.quarantined[0]
    assert all(np.isnan(values).all() for values in captured.activations.values())


def test_only_the_prompt_with_a_non_finite_activation_is_quarantined():
    model = wrap(tiny.tiny_model("llama"))
    tokens = [(5, 6, 7), (5, 60, 7), (8, 9, 10)]
    with torch.no_grad():
        model.module.embed_tokens.weight[60] = torch.inf
    plan = plan_set("set", tokens, (-1,), shard_prompts=3, batch_tokens=400, share_prefix=False)
    captured = Engine(model, SITES, LAYERS).capture(plan.task(plan.shards[0], tokens))
    assert list(captured.quarantined) == [1]
    assert "not finite at resid_pre, layer 2" in captured.quarantined[1]
    for values in captured.activations.values():
        assert np.isnan(values[1]).all()
        assert np.isfinite(values[[0, 2]]).all()


def test_a_wrong_number_of_token_lists_is_refused():
    tokens = tiny.random_tokens([4, 5])
    plan = plan_set("set", tokens, (-1,), shard_prompts=2, batch_tokens=400, share_prefix=False)
    with pytest.raises(ValueError, match="2 samples, not 1"):
        Engine(wrap(tiny.tiny_model("gpt2")), SITES, LAYERS).capture(plan.task(plan.shards[0], tokens[:1]))


@each("family", TAPS)
def test_no_block_runs_after_the_last_site_and_the_bits_are_the_same(family):
    tokens, model, layers = tiny.random_tokens(LENGTHS, prefix=9), wrap(tiny.tiny_model(family)), [0, 2]
    run = []
    for index, block in enumerate(model.blocks):
        block.register_forward_hook(lambda *_, index=index: run.append(index))
    whole = capture_all(model, tokens, layers=layers, sites=(Site.RESID_PRE, Site.RESID_FINAL))
    assert max(run) == len(model.blocks) - 1
    run.clear()
    part = capture_all(model, tokens, layers=layers, sites=(Site.RESID_PRE,))
    assert max(run) == 1  # block 2 ends at its input
    np.testing.assert_array_equal(part[Site.RESID_PRE], whole[Site.RESID_PRE])
