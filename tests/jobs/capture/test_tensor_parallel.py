"""Two ranks that share a model capture the same activations as one process, and the certificate checks this."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.nightly import at_night
from support.rank_group import SECONDS, Group
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED
from transformers import LlamaConfig

from theodolite.errors import ParityError
from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.parity import FLOAT32_EXPECTED, certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.facts import mlp_width
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.reference import relative_errors
from theodolite_jobs.models.routers import experts_of

# Cohere has a norm scale per head, and some layers of this Gemma 4 have one key-value head.
NOT_SHARDED = {"cohere", "gemma4_text-experts"}
PLANS = {family: config.get_text_config().base_model_tp_plan for family, config in CONFIGS.items()}
SHARDED = {repr(plan): family for family, plan in PLANS.items() if plan and family not in NOT_SHARDED}.values()
"""A family with each plan of sharded matrices."""

LAYERS = (0, 2, 4)
POSITIONS = (-3, -1)
TOKENS = tiny.random_tokens([12, 19, 14, 12, 17], prefix=9)


@pytest.fixture(scope="module")
def group():
    group = Group(2)
    yield group
    group.close()


@pytest.fixture(scope="module")
def llama(tmp_path_factory):
    return saved("llama", tmp_path_factory.mktemp("llama"))


def saved(family, folder, dtype=torch.float32):
    tiny.tiny_model(family).to(dtype).save_pretrained(folder)
    return folder


def plan_of(model):
    return plan_set(
        "set",
        TOKENS,
        POSITIONS,
        shard_prompts=len(TOKENS),
        batch_tokens=60,
        share_prefix=can_share_prefix(model.config, model.anatomy),
        length_class=length_class_of(model.config),
    )


def capture(folder, ranks):
    """Return all sites, captured in padded batches, behind a shared prefix where the family can share one."""
    model = load_model(folder, ranks=ranks)
    plan, experts = plan_of(model), experts_of(model.config)
    task = plan.task(plan.shards[0], TOKENS, mlp_width(model.config) or 0, experts.n_choices if experts else 0)
    return Engine(model, (*model.anatomy.sites, Site.RESID_FINAL), LAYERS).capture(task)


def capture_sharded(rank, folder):
    return capture(folder, rank.size)


@each("family", SHARDED)
def test_two_ranks_capture_the_same_as_one_process(family, group, tmp_path):
    folder = saved(family, tmp_path)
    whole = capture(folder, 1)
    first, second = group.run(capture_sharded, folder)
    assert {*known_anatomy(CONFIGS[family]).taps, "resid_final"} <= set(whole.activations)
    for site, values in whole.activations.items():
        assert relative_errors(first.activations[site], values).max() < FLOAT32_EXPECTED, site
        np.testing.assert_array_equal(first.activations[site], second.activations[site])
    assert first.batches == whole.batches
    for sharded in (first, second):
        np.testing.assert_array_equal(sharded.positive_counts, whole.positive_counts)
        np.testing.assert_array_equal(sharded.experts, whole.experts)


def test_shards_may_have_different_sizes(group, tmp_path):
    sizes = {**GROUPED, "vocab_size": 67, "intermediate_size": 81}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(CONFIGS, "uneven", LlamaConfig(**sizes))
        folder = saved("uneven", tmp_path)
    whole, (first, _) = capture(folder, 1), group.run(capture_sharded, folder)
    assert first.positive_counts.shape[-1] == 81
    np.testing.assert_array_equal(first.positive_counts, whole.positive_counts)
    assert relative_errors(first.activations[Site.RESID_FINAL], whole.activations[Site.RESID_FINAL]).max() < 5e-6


# The certificate.


def certify_sharded(rank, folder, rule=None):
    """Return the certificate; `rule` replaces a rule of the family's sharding plan, to simulate a mistake in it."""
    with pytest.MonkeyPatch.context() as patch:
        if rule is not None:
            config = type(load_config(folder))
            patch.setattr(config, "base_model_tp_plan", {**config.base_model_tp_plan, **rule})
        model = load_model(folder, ranks=rank.size)
        plan = plan_of(model)
        probes = {"set": probe_prompts(TOKENS)}
        return certify(model, (*model.anatomy.sites, Site.RESID_FINAL), LAYERS, {"set": plan.layout}, probes)


@pytest.mark.parametrize(
    ("family", "dtype"),
    [("llama", torch.float32), ("mixtral", torch.bfloat16), *at_night([("gemma2", torch.bfloat16)])],
)
def test_the_certificate_compares_sharded_with_unsharded_blocks_in_float32(family, dtype, group, tmp_path):
    first, second = group.run(certify_sharded, saved(family, tmp_path, dtype))
    assert first == second
    assert first.ranks == 2
    assert first.dtype == str(dtype).removeprefix("torch.")
    assert first.float32_blocks_max_error < FLOAT32_EXPECTED
    assert first.warning is None


def test_a_sharding_plan_that_adds_twice_is_refused_although_all_ranks_agree(group, llama):
    futures = group.submit(certify_sharded, llama, {"layers.*.mlp": "all_reduce"})
    for future in futures:
        with pytest.raises(ParityError, match=r"first blocks in float32 1\..* set THEODOLITE_PARALLELISM to pipeline"):
            future.result(SECONDS)
