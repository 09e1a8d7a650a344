"""The number of prompts with each hidden unit positive: equal for all batchings, and equal to a count by hand."""

import json

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.hand_made_replicas import replica_of
from support.layouts import FILES
from support.reference_blocks import inputs_of
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite.sites import Site
from theodolite.store.layout import MLP_POSITIVE
from theodolite.store.records import record_key
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_model, wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.weights import Weights

SITES = (Site.RESID_PRE, Site.RESID_FINAL)
LAYERS = [0, 2, 4]
POSITIONS = (-3, -1)
LENGTHS = [12, 19, 14, 12, 17]
COUNTED = [family for family in FILES if known_anatomy(CONFIGS[family]).mlp_units]
BATCHED = {"shard_prompts": 5, "batch_tokens": 60}  # padded, behind a shared prefix where the family can share one
ALONE = {"shard_prompts": 1, "batch_tokens": 1}


def capture(model, tokens, units, shard_prompts, batch_tokens, layers=LAYERS, share_prefix=True):
    plan = plan_set(
        "set",
        tokens,
        POSITIONS,
        shard_prompts=shard_prompts,
        batch_tokens=batch_tokens,
        share_prefix=share_prefix and can_share_prefix(model.config, model.anatomy),
        length_class=length_class_of(model.config),
    )
    engine = Engine(model, SITES, layers)
    return [engine.capture(plan.task(shard, tokens, units)) for shard in plan.shards]


def counted(model, tokens, units, **options):
    """Return the counts over all prompts, shards added up."""
    return sum(shard.positive_counts for shard in capture(model, tokens, units, **options))


def positive_by_hand(model, weights, tokens):
    """Return the counts from weights read from files, and from the MLPs' inputs when each prompt runs alone."""
    counts = 0
    for ids in tokens:
        inputs = inputs_of(model, "mlp", ids)
        of_layers = []
        for layer in LAYERS:
            mlp = weights.mlp(layer)
            matrix, bias = (mlp.up, mlp.up_bias) if mlp.gate is None else (mlp.gate, mlp.gate_bias)
            before = inputs[layer][list(POSITIONS)] @ matrix + (0 if bias is None else bias)
            of_layers.append(before > 0)
        counts = counts + torch.stack(of_layers, dim=1).int()
    return counts.numpy()


@torch.inference_mode()
@each("family", COUNTED)
def test_counts_equal_the_signs_computed_from_the_files(family, tmp_path):
    tokens = tiny.random_tokens(LENGTHS[:3], prefix=9)
    module = tiny.tiny_model(family)
    module.save_pretrained(tmp_path)
    units = mlp_width(module.config)
    ours = counted(wrap(module), tokens, units, **BATCHED)
    model = wrap(AutoModel.from_pretrained(tmp_path, dtype=torch.float64))
    by_hand = positive_by_hand(model, Weights(tmp_path, model.config, torch.float64), tokens)
    np.testing.assert_array_equal(ours, by_hand)
    assert 0.2 < ours.mean() / len(tokens) < 0.8
    assert ours.dtype == np.int32


def test_counting_is_refused_if_the_record_names_no_mlp_units():
    model = wrap(tiny.tiny_model("mixtral"))
    assert mlp_width(model.config) is None
    with pytest.raises(ValueError, match="cannot count hidden units: the record of 'mixtral' names no `mlp_units`"):
        capture(model, tiny.random_tokens([5]), 80, **ALONE)


def test_zero_units_are_not_counted():
    (captured,) = capture(wrap(tiny.tiny_model("llama")), tiny.random_tokens([5, 6]), 0, **BATCHED)
    assert captured.positive_counts is None


@each("family", ["bert", "falcon-heads", "llama", "opt", "phi3-longrope"])
def test_counts_do_not_depend_on_padding_prefix_batches_or_shards(family):
    tokens = tiny.random_tokens([*LENGTHS, 25], prefix=9)
    model = wrap(tiny.tiny_model(family))
    units = mlp_width(model.config)
    alone = counted(model, tokens, units, **ALONE, share_prefix=False)
    for shard_prompts, batch_tokens in ((6, 200), (6, 30), (4, 60)):
        options = {"shard_prompts": shard_prompts, "batch_tokens": batch_tokens}
        np.testing.assert_array_equal(counted(model, tokens, units, **options), alone)


def test_counting_changes_no_activation():
    tokens = tiny.random_tokens(LENGTHS, prefix=9)
    model = wrap(tiny.tiny_model("llama"))
    (without,), (with_counts,) = capture(model, tokens, 0, **BATCHED), capture(model, tokens, 80, **BATCHED)
    for site, values in without.activations.items():
        np.testing.assert_array_equal(with_counts.activations[site], values)


def test_a_halved_batch_is_counted_once(monkeypatch):
    tokens = tiny.random_tokens([12] * 10)
    model = wrap(tiny.tiny_model("llama"))
    whole = counted(model, tokens, 80, shard_prompts=10, batch_tokens=400)
    run = LoadedModel.run

    def run_few(self, **inputs):
        """Run first: memory may also run out after hooks have copied their tensors."""
        try:
            return run(self, **inputs)
        finally:
            if len(inputs["input_ids"]) > 3:
                raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(LoadedModel, "run", run_few)
    (captured,) = capture(model, tokens, 80, shard_prompts=10, batch_tokens=400)
    assert captured.counts.oom_backoffs == 3
    np.testing.assert_array_equal(captured.positive_counts, whole)


def test_quarantined_prompts_are_not_counted():
    model = wrap(tiny.tiny_model("llama"))
    tokens = [(5, 6, 7), (5, 60, 7), (8, 9, 10), (11, 12, 13)]
    with torch.no_grad():
        model.module.embed_tokens.weight[60] = torch.inf
    (captured,) = capture(model, tokens, 80, shard_prompts=4, batch_tokens=400)
    assert list(captured.quarantined) == [1]
    usable = [ids for ids in tokens if 60 not in ids]
    np.testing.assert_array_equal(captured.positive_counts, counted(model, usable, 80, **ALONE))


def test_prompts_that_never_fit_into_memory_are_not_counted(monkeypatch):
    def run_nothing(self, **inputs):
        raise torch.OutOfMemoryError("no memory left")

    monkeypatch.setattr(LoadedModel, "run", run_nothing)
    (captured,) = capture(wrap(tiny.tiny_model("llama")), tiny.random_tokens([4, 5]), 80, **BATCHED)
    assert len(captured.quarantined) == 2
    assert not captured.positive_counts.any()


def test_a_position_that_some_prompt_does_not_have_is_refused():
    with pytest.raises(ValueError, match="a prompt of set has 2 tokens, but all prompts must have the position -3"):
        capture(wrap(tiny.tiny_model("gpt2")), tiny.random_tokens([2, 5]), 192, **BATCHED)


@pytest.mark.nightly
def test_the_real_model_gives_equal_counts_in_batches_and_alone(chat_model_folder, chat_tokenizer):
    texts = ["Rain.", "How do I bake a loaf of rye bread?", "Name three rivers of Asia, and where they end."]
    chats = [[{"role": "user", "content": text}] for text in texts]
    tokens = [tuple(ids) for ids in chat_tokenizer.apply_chat_template(chats, add_generation_prompt=True).input_ids]
    model = load_model(chat_model_folder)
    units = mlp_width(model.config)
    assert units == 1536
    batched = counted(model, tokens, units, shard_prompts=3, batch_tokens=200)
    alone = counted(model, tokens, units, **ALONE, share_prefix=False)
    # Batching changes the rounding, which may change the sign of a unit within 1e-5 of zero; currently none changes.
    assert np.abs(batched - alone).sum() <= 3
    assert 0.2 < batched.mean() / 3 < 0.8


# A replica counts if its task says so.


@each("units", [80, 0])
def test_a_replica_counts_only_if_its_task_says_so(tmp_path, units):
    tokens = tiny.random_tokens([5, 6, 7, 8])
    plan = plan_set("set", tokens, POSITIONS, shard_prompts=2, batch_tokens=100, share_prefix=False)
    working = replica_of("llama", tmp_path, SITES, LAYERS)
    for shard in plan.shards:
        working.capture(shard.index, plan.task(shard, tokens, units=units))
        working.written(shard.index)
        record = json.loads((tmp_path / record_key("set", shard.index)).read_bytes())
        assert set(record["checksums"]) == {"resid_pre", "resid_final", *([MLP_POSITIVE.name] if units else [])}
    assert (tmp_path / "activations.zarr/set/mlp_positive/c/1/0/0/0").exists() == bool(units)
