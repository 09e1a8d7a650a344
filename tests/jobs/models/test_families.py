"""Every family's record against a hand-run: the block's own submodules, called one after the other in float64."""

import copy
from dataclasses import replace
from functools import cache
from itertools import permutations, product
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from support.each import each
from support.hand_calls import run_by_hand
from support.hand_runs import HAND_RUNS, HYBRIDS
from support.layouts import TAPS
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED, SLIDING
from transformers import BloomConfig, Qwen2MoeConfig

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import BLOCK_SITES, STREAM_SITES, Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.anatomy import Anatomy, Tap, check_sites
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.families import FAMILIES, known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

IDS = tiny.random_tokens([11])[0]
POSITIONS = [-3, -1]


def eager_float64(family: str) -> LoadedModel:
    module = copy.deepcopy(tiny.tiny_model(family)).double()  # a copy, because its configuration changes
    module.set_attn_implementation("eager")
    if hasattr(module.config, "_experts_implementation"):
        module.set_experts_implementation("eager")  # the only one that computes in float64
    return wrap(module)


# The sites of each family.

PARALLEL = {"cohere", "cohere2", "falcon-groups", "falcon-multi-query", "gpt_neox", "gptj", "phi", "phi-qk-norm"}
PARALLEL |= {"stablelm-parallel"}
NORMS_AFTER_THE_SUM = {"camembert", "distilbert", "electra", "electra-projected", "nomic_bert"}
NORMS_AFTER_THE_SUM |= {"albert", "albert-groups"}
NORMS_AFTER_THE_SUM |= {"bart", "bart-scaled", "marian", "marian-own", "plbart"}
NORMS_AFTER_THE_SUM |= {"deberta", "deberta-learned", "deberta-v2", "deberta-v2-buckets"}
NORMS_AFTER_THE_SUM |= {"bert-generation", "data2vec-text", "ernie", "gte", "jina_embeddings_v3"}
NORMS_AFTER_THE_SUM |= {"bert", "mpnet", "opt-post-norm", "roberta", "xlm-roberta"}


def sites_of(family: str) -> set[Site]:
    """Return the sites of the stream that all blocks of a family have."""
    if family.startswith("gemma4"):
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.MLP_OUT}
    if family.startswith("nemotron_h"):
        return {Site.RESID_PRE, Site.RESID_POST}
    if family in HYBRIDS | {"falcon_h1"}:
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.ATTN_OUT}
    if family in NORMS_AFTER_THE_SUM:
        return set(STREAM_SITES)
    if family in PARALLEL:
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.RESID_MID}
    return set(STREAM_SITES) - {Site.RESID_MID_SUM}


def test_every_family_of_the_table_has_a_hand_run():
    assert set(HAND_RUNS) == set(CONFIGS)
    assert set(FAMILIES) - {config.get_text_config().model_type for config in CONFIGS.values()} == set()


@torch.inference_mode()
@pytest.mark.parametrize("family", HAND_RUNS)
def test_sites_equal_a_hand_run(family, subtests):
    model = eager_float64(family)
    read = read_sites(model, IDS, POSITIONS)
    with subtests.test("identities"):
        check_identities(model, read)
    with subtests.test("norms"):
        check_norms(model)
    by_hand = run_by_hand(model.module, IDS, HAND_RUNS[family])
    assert sites_of(family) == set.intersection(*(set(streams) for streams in by_hand))
    assert {site for site in read if site in STREAM_SITES} == set.union(*(set(streams) for streams in by_hand))
    for site, (layer, streams) in product(set(read) & set(STREAM_SITES), enumerate(by_hand)):
        if site in streams:
            values = streams[site].view(len(IDS), -1)[POSITIONS].numpy()
            assert relative_errors(read[site][:, layer], values).max() <= 1e-12, site
        else:
            assert np.isnan(read[site][:, layer]).all(), site
    final = by_hand[-1][Site.RESID_POST].view(len(IDS), -1)[POSITIONS]
    assert relative_errors(read[Site.RESID_FINAL], final.numpy()).max() <= 1e-12


def check_identities(model, read):
    """Check that the identities hold, and fail for swapped taps."""
    assert max(identity_errors(model, read).values()) <= 1e-13
    for site, other in permutations(model.anatomy.taps, 2):
        if read[site].shape != read[other].shape:  # heads wider than the stream
            continue
        misread = {**read, site: read[other]}
        assert max(identity_errors(model, misread).values()) > 1e-3, (site, other)


@each("family", sorted(HYBRIDS))
def test_the_identities_fail_if_a_site_of_some_blocks_is_another_vector(family):
    model = eager_float64(family)
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
        assert str(caught.value) == (
            f"capture.sites: none of capture.layers has {site}, because {anatomy.hybrid}; "
            f"the layers with {site} are 0, 4"
        )


@each("family", sorted(set(TAPS) - HYBRIDS - {"falcon_h1"}))
def test_the_identities_fail_if_attention_is_read_from_the_mlp(family):
    model = eager_float64(family)
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
        assert str(caught.value) == (
            f"capture.sites: this model has no {site}: attention and MLP run in parallel, both read resid_pre; "
            "it has resid_pre, resid_post, head_out, attn_out, mlp_out"
        )


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


# Norms.


def check_norms(model):
    """Check that the norms of a block, and the last one, are those of the record."""
    anatomy = model.anatomy
    layer = model.blocks[2]
    paths = {role: layer.get_submodule(path) for role, path in anatomy.norms.items()}
    if anatomy.final_norm:
        paths["final"] = model.module.get_submodule(anatomy.final_norm)
    ran: dict[torch.nn.Module, tuple[torch.Tensor, torch.Tensor]] = {}
    for norm in paths.values():
        norm.register_forward_hook(lambda norm, args, output: ran.update({norm: (args[0], output)}))
    read = read_sites(model, IDS, POSITIONS)
    mid = Site.RESID_MID if Site.RESID_MID in read else Site.RESID_PRE
    attention, mlp = (Site.RESID_MID, Site.RESID_POST) if anatomy.post_norm else (Site.ATTN_OUT, Site.MLP_OUT)
    site_of_norm = {  # the side of the norm (0 input, 1 output) and its site
        "attention": (0, Site.RESID_PRE),
        "mlp": (0, mid),
        "attention_output": (1, attention),
        "mlp_output": (1, mlp),
        "final": (0, Site.RESID_FINAL),
    }
    for role, norm in paths.items():
        side, site = site_of_norm[role]
        seen = [value.reshape(len(IDS), -1)[POSITIONS].numpy() for value in ran[norm]]
        if site in read:
            expected = read[site] if role == "final" else read[site][:, 2]
            assert relative_errors(seen[side], expected).max() <= 1e-12, role
        assert relative_errors(norm_without_epsilon(anatomy, norm, seen[0]), seen[1]).max() < 1e-2, role


def norm_without_epsilon(anatomy: Anatomy, norm: Any, x: np.ndarray) -> np.ndarray:
    """Return the layer norm or root-mean-square norm of the record; epsilon changes it by less than 1 %."""
    if anatomy.norm_kind == "layer":
        x = x - x.mean(axis=-1, keepdims=True)
    x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True))
    weight, bias = (getattr(norm, name, None) for name in ("weight", "bias"))
    scaled = x if weight is None else x * (weight.numpy() + anatomy.norm_offset)
    return scaled if bias is None else scaled + bias.numpy()


# The length of a prompt.


@each("family", ["bert", "gpt2", "mpnet", "opt", "roberta"])
def test_the_context_length_is_the_number_of_learned_positions(family):
    model = eager_float64(family)
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
    captured = Engine(model, [Site.RESID_POST], [0, 2, 4]).capture(plan, plan.shards[0], tokens)
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
