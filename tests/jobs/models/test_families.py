"""Sites that a family lacks are refused, and long and short prompts do not change each other."""

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from families.sites import IDS, PARALLEL, POSITIONS, eager_float64
from support import tiny
from support.each import each
from support.hand_runs import HYBRIDS
from support.layouts import TAPS
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED, SLIDING
from transformers import BloomConfig, Qwen2MoeConfig

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import BLOCK_SITES, Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.anatomy import Tap, check_sites
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

# The sites of each family.


@each("family", sorted(HYBRIDS))
def test_the_identities_fail_if_a_site_of_some_blocks_is_another_vector(family):
    model = eager_float64(tiny.tiny_model(family))
    read = read_sites(model, IDS, POSITIONS)
    for site, partial in model.anatomy.partial.items():
        misread = {**read, site: read[site].copy()}
        misread[site][:, partial.layers[-1]] *= 1.01
        assert max(identity_errors(model, misread).values()) > 1e-5, site


@each("family", sorted(HYBRIDS))
def test_a_site_of_some_blocks_is_refused_for_other_layers_alone(family):
    anatomy = known_anatomy(CONFIGS[family])
    check_sites(anatomy, list(anatomy.partial), range(5))
    for site in (Site.ATTN_OUT, Site.HEAD_OUT):
        check_sites(anatomy, [site], [1, 4])
        with pytest.raises(SiteNotFoundError) as caught:
            check_sites(anatomy, [site], [1, 2, 3])
        assert_says(str(caught.value), f"capture.sites: … {site}, because {anatomy.hybrid} … 0, 4")


@each("family", sorted(set(TAPS) - HYBRIDS - {"falcon_h1"}))
def test_the_identities_fail_if_attention_is_read_from_the_mlp(family):
    model = eager_float64(tiny.tiny_model(family))
    of_mlp = model.anatomy.taps.get(Site.MLP_OUT, Tap("mlp", "output"))  # it is no site of Gemma 4
    taps = {**model.anatomy.taps, Site.ATTN_OUT: of_mlp}
    wrong = replace(model, anatomy=replace(model.anatomy, taps=taps))
    assert max(identity_errors(wrong, read_sites(wrong, IDS, POSITIONS)).values()) > 1e-3


@each("family", sorted(PARALLEL))
def test_resid_mid_of_a_parallel_block_is_refused_with_the_reason(family):
    anatomy = known_anatomy(CONFIGS[family])
    for site in (Site.RESID_MID, Site.RESID_MID_SUM):
        with pytest.raises(SiteNotFoundError) as caught:
            check_sites(anatomy, [Site.RESID_PRE, site])
        assert_says(str(caught.value), f"capture.sites: … {site}: … in parallel … resid_pre, resid_post, head_out")


def test_only_post_norm_blocks_have_resid_mid_sum():
    with pytest.raises(SiteNotFoundError, match="no resid_mid_sum: only a model whose norms follow the sums has it"):
        check_sites(known_anatomy(CONFIGS["llama"]), [Site.RESID_MID_SUM])
    check_sites(known_anatomy(CONFIGS["bert"]), list(BLOCK_SITES))


@each("options", [{"apply_residual_connection_post_layernorm": True}, {"pretraining_tp": 2, "slow_but_exact": True}])
def test_a_bloom_without_a_residual_stream_is_refused(options):
    with pytest.raises(UnsupportedModelError, match=next(reversed(options))):
        known_anatomy(BloomConfig(**options))


def test_a_sliding_window_of_no_tokens_is_refused():
    # transformers sets the window of Qwen2-MoE to 0 if use_sliding_window is false; then sdpa and eager differ.
    config = Qwen2MoeConfig(**GROUPED, layer_types=SLIDING, use_sliding_window=False)
    with pytest.raises(UnsupportedModelError, match=r"sliding window of 0 tokens.*set use_sliding_window to true"):
        known_anatomy(config)


# The length of a prompt.


@each("family", ["bert", "gpt2", "mpnet", "opt", "roberta"])
def test_the_context_length_is_the_number_of_learned_positions(family):
    model = eager_float64(tiny.tiny_model(family))
    longest = model.dimensions.context_length
    read_sites(model, [5] * longest, [-1])
    with pytest.raises((IndexError, RuntimeError)):
        read_sites(model, [5] * (longest + 1), [-1])


# Rotary positions that depend on the longest prompt of a batch; both kinds change beyond 20 tokens here.


def capture(model: LoadedModel, lengths: list[int], **options: Any) -> list[np.ndarray]:
    """Return each prompt's stream at the last token, captured in this order; all prompts have the same first tokens."""
    tokens = [tiny.random_tokens([length])[0] for length in lengths]
    options = {"batch_tokens": 400, "share_prefix": True, "length_class": length_class_of(model.config)} | options
    plan = plan_set("set", tokens, (-1,), shard_prompts=len(tokens), **options)
    captured = Engine(model, [Site.RESID_POST], [0, 2, 4]).capture(plan.task(plan.shards[0], tokens))
    return list(captured.activations[Site.RESID_POST])


@cache
def alone(family: str, length: int) -> np.ndarray:
    """Return the same for one prompt, from a new model that has run no other prompt."""
    ids = tiny.random_tokens([length])[0]
    return read_sites(wrap(tiny.tiny_model(family)), ids, [-1])[Site.RESID_POST][:, [0, 2, 4]]


@each("family", ["llama-dynamic", "phi3-longrope"])
def test_a_long_prompt_does_not_change_the_rotation_of_a_short_one(family):
    lengths = [12, 30]
    model = wrap(tiny.tiny_model(family))
    mixed = capture(model, lengths, length_class=lambda _: 0, share_prefix=False)
    for length, ours in zip(lengths, capture(model, lengths), strict=True):
        assert relative_errors(ours, alone(family, length)).max() < 1e-5
    assert relative_errors(mixed[0], alone(family, 12)).max() > 1e-2


@each("family", ["llama-dynamic", "phi3-longrope"])
@each("batch_tokens", [1, 400])
def test_activations_do_not_depend_on_the_order_of_long_and_short_prompts(family, batch_tokens):
    model = wrap(tiny.tiny_model(family))
    for lengths in ([40, 12, 20, 30, 25], [12, 20, 25, 30, 40], [25, 40, 20, 12, 30]):
        for length, ours in zip(lengths, capture(model, lengths, batch_tokens=batch_tokens), strict=True):
            assert relative_errors(ours, alone(family, length)).max() < 1e-5, (lengths, length)


@torch.inference_mode()
def test_run_resets_dynamic_rotary_positions_after_a_longer_prompt():
    ids = {length: torch.tensor([tiny.random_tokens([length])[0]]) for length in (25, 40)}
    module = tiny.tiny_model("llama-dynamic")
    fresh = module(input_ids=ids[25]).last_hidden_state
    module(input_ids=ids[40])
    remembering = module(input_ids=ids[25]).last_hidden_state
    assert relative_errors(remembering.numpy(), fresh.numpy()).max() > 1e-2
    forgetting = wrap(module).run(input_ids=ids[25]).last_hidden_state
    assert relative_errors(forgetting.numpy(), fresh.numpy()).max() < 1e-5
