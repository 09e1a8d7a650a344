"""Prompts whose vectors depend on the longest prompt of a batch share a batch only with prompts of their class."""

from typing import Any

import numpy as np
from support import tiny
from support.each import each
from support.tiny_sizes import GROUPED, PLAIN, SLIDING
from transformers import (
    AutoModel,
    BertConfig,
    DeepseekV32Config,
    Gemma3TextConfig,
    GlmMoeDsaConfig,
    LlamaConfig,
    MiniMaxM3VLTextConfig,
    MistralConfig,
)

from theodolite.sites import Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.reference import read_sites, relative_errors

LENGTHS = (14, 15, 17, 22, 30, 39)
LATENT: dict[str, Any] = {"q_lora_rank": 20, "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4}
LATENT |= {"v_head_dim": 12, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2}
LATENT |= {"n_group": 1, "topk_group": 1, "moe_intermediate_size": 24}
INDEXER: dict[str, Any] = {"index_topk": 3, "index_n_heads": 1, "index_head_dim": 8}


def errors(model: LoadedModel, **options: Any) -> list[float]:
    """Return the error of each prompt's stream in batches, against the prompt alone."""
    tokens = tiny.random_tokens(list(LENGTHS))
    options = {"batch_tokens": 400, "share_prefix": False} | options
    plan = plan_set("set", tokens, (-1,), shard_prompts=len(tokens), **options)
    captured = Engine(model, [Site.RESID_POST], range(5)).capture(plan.task(plan.shards[0], tokens))
    alone = [read_sites(model, ids, [-1])[Site.RESID_POST] for ids in tokens]
    ours = captured.activations[Site.RESID_POST]
    return [float(relative_errors(one, theirs).max()) for one, theirs in zip(ours, alone, strict=True)]


@each(
    "config, shared",
    [
        (LlamaConfig(**GROUPED), True),
        (MistralConfig(**GROUPED, sliding_window=None), True),
        (MistralConfig(**GROUPED, sliding_window=4), False),
        (Gemma3TextConfig(**GROUPED, layer_types=["full_attention"] * 5), True),
        (Gemma3TextConfig(**GROUPED, layer_types=["full_attention"] * 4 + ["sliding_attention"]), False),
        (BertConfig(**PLAIN), False),
    ],
)
def test_a_prefix_is_shared_only_where_all_tokens_attend_to_it(config, shared):
    assert can_share_prefix(config, known_anatomy(config)) == shared
    assert not can_share_prefix(config, None)


@each("config", [DeepseekV32Config, GlmMoeDsaConfig])
def test_equal_scores_of_an_indexer_select_the_same_tokens_in_a_batch(config):
    # Many scores of the indexer are zero. Padding changes which of them it selects, also in plain transformers.
    model = wrap(tiny.random_model(config(**PLAIN, **LATENT, **INDEXER), AutoModel))
    assert max(errors(model)) > 1e-3
    assert max(errors(model, length_class=length_class_of(model.config))) < 1e-5


def test_prompts_from_which_an_indexer_selects_all_tokens_share_batches():
    class_of = length_class_of(DeepseekV32Config(**PLAIN, **LATENT, index_topk=17))
    assert [class_of(length) for length in LENGTHS] == [0, 0, 0, 22, 30, 39]


def test_blocks_that_an_indexer_selects_do_not_depend_on_padding():
    config = MiniMaxM3VLTextConfig(
        **GROUPED,
        head_dim=16,
        num_local_experts=4,
        num_experts_per_tok=2,
        moe_intermediate_size=24,
        index_n_heads=1,
        index_head_dim=8,
        index_block_size=4,
        index_topk_blocks=1,
        layer_types=["minimax_m3_sparse"] * 5,
    )
    assert {length_class_of(config)(length) for length in LENGTHS} == {0}
    assert max(errors(wrap(tiny.random_model(config, AutoModel)))) < 1e-5


LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 8,
    "long_factor": [1.0, 3.0, 5.0, 7.0, 9.0, 11.0, 13.0, 15.0],
    "factor": 4.0,
    "original_max_position_embeddings": 16,
}
DYNAMIC = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}


def test_layers_of_two_kinds_have_two_boundaries():
    config = Gemma3TextConfig(
        **GROUPED | {"max_position_embeddings": 20},
        head_dim=16,
        sliding_window=6,
        layer_types=SLIDING,
        rope_parameters={"full_attention": LONGROPE, "sliding_attention": DYNAMIC},
    )
    model, class_of = wrap(tiny.random_model(config, AutoModel)), length_class_of(config)
    assert len({class_of(length) for length in (12, 14, 16)}) == 1
    assert len(np.unique([class_of(length) for length in (16, 17, 21, 22)])) == 4
    assert max(errors(model, length_class=class_of)) < 1e-5
    assert max(errors(model)) > 1e-3
