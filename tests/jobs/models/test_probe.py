"""The structural probe: it finds the sites of the records without reading them, and refuses unproven models."""

from typing import Any

import pytest
import torch
import transformers
from support import tiny
from support.each import each
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED, PLAIN, SLIDING

from theodolite.errors import ModelError, SiteNotFoundError, UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.anatomy import Tap, check_sites, dimensions_of
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.probe import _adds_scaled, _Recording, probe_anatomy
from theodolite_jobs.models.text_part import text_part

STREAM = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output")}

# Only a norm reads the sum of stream and attention output, and the block passes on its normalised value.
NOT_PROBED = {"opt-post-norm"}
# Blocks that multiply the stream, after they added a third vector to it.
NOT_PROBED |= {"gemma4", "gemma4_text", "gemma4_text-experts", "gemma4_unified_text"}
ENCODERS = {family for family in CONFIGS if not known_anatomy(CONFIGS[family]).causal}
SHARED_BLOCKS = {"albert", "albert-groups"}  # a list of fewer blocks than layers


def probed(family: str) -> Any:
    return probe_anatomy(text_part(tiny.tiny_model(family)), dimensions_of(CONFIGS[family]))


@each("family", sorted(set(CONFIGS) - NOT_PROBED - ENCODERS))
def test_the_probe_finds_the_taps_of_the_record(family):
    found, record = probed(family), known_anatomy(CONFIGS[family])
    of_stream = {site: tap for site, tap in record.taps.items() if site is not Site.HEAD_OUT and tap.plus is None}
    assert (found.blocks, found.taps) == (record.blocks, of_stream)
    assert (found.known_by, record.known_by) == ("probe", "record")


def test_a_site_that_the_probe_did_not_find_is_refused_with_a_list_of_its_sites():
    with pytest.raises(SiteNotFoundError, match=r"no resid_mid: .*; it has resid_pre, resid_post, attn_out, mlp_out$"):
        check_sites(probed("gptj"), [Site.RESID_PRE, Site.RESID_MID])


@each("family", sorted(NOT_PROBED))
def test_blocks_that_do_not_add_to_one_stream_are_refused(family):
    with pytest.raises(UnsupportedModelError, match="no modules of a block add up to its output"):
        probed(family)


@each("family", sorted(ENCODERS - SHARED_BLOCKS))
def test_encoders_are_refused(family):
    with pytest.raises(UnsupportedModelError, match="a token's stream depends on the tokens after it"):
        probed(family)


def sequential(mid: str, attention: str, mlp: str) -> dict[Site, Tap]:
    return {
        Site.RESID_MID: Tap(mid, "input"),
        Site.ATTN_OUT: Tap(attention, "output"),
        Site.MLP_OUT: Tap(mlp, "output"),
    }


LLAMA_LIKE = sequential("post_attention_layernorm", "self_attn", "mlp")

MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
LATENT: dict[str, Any] = {"q_lora_rank": 20, "kv_lora_rank": 14, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8}
LATENT |= {"v_head_dim": 12, "num_key_value_heads": 4}

# Families that are not in the table, and the taps of their architectures; the stream's own taps are left out.
UNKNOWN: dict[str, tuple[Any, dict[Site, Tap]]] = {
    "codegen": (
        transformers.CodeGenConfig(vocab_size=64, n_embd=48, n_layer=5, n_head=4, n_positions=128, rotary_dim=8),
        {Site.ATTN_OUT: Tap("attn", "output"), Site.MLP_OUT: Tap("mlp", "output")},
    ),
    "exaone_moe": (  # some blocks have a dense MLP
        transformers.ExaoneMoeConfig(
            **GROUPED,
            num_experts=4,
            num_experts_per_tok=2,
            moe_intermediate_size=16,
            first_k_dense_replace=1,
            sliding_window=6,
            layer_types=SLIDING,
        ),
        LLAMA_LIKE,
    ),
    "minicpm3": (
        transformers.MiniCPM3Config(**PLAIN, **LATENT, scale_depth=1.4),
        {
            Site.RESID_MID: Tap("post_attention_layernorm", "input"),
            Site.ATTN_OUT: Tap("self_attn", "output", 1.4 / 5**0.5),
            Site.MLP_OUT: Tap("mlp", "output", 1.4 / 5**0.5),
        },
    ),
    "xglm": (
        transformers.XGLMConfig(
            vocab_size=64, d_model=48, ffn_dim=80, num_layers=5, attention_heads=4, max_position_embeddings=128
        ),
        sequential("final_layer_norm", "self_attn", "fc2"),
    ),
}


@each("family", UNKNOWN)
def test_an_unknown_family_is_found_and_certified(family, monkeypatch):
    config, taps = UNKNOWN[family]
    assert known_anatomy(config) is None
    monkeypatch.setitem(CONFIGS, family, config)
    model = wrap(tiny.tiny_model(family))
    assert model.anatomy.taps == STREAM | taps
    tokens = tiny.random_tokens([12, 30, 17, 25], prefix=9)
    options = {"shard_prompts": 4, "batch_tokens": 64, "share_prefix": False}
    plan = plan_set("set", tokens, (-1,), **options, length_class=length_class_of(config))
    certificate = certify(
        model, (*model.anatomy.taps, Site.RESID_FINAL), range(5), {"set": plan.layout}, {"set": probe_prompts(tokens)}
    )
    assert certificate.sites_known_by == "probe"
    assert certificate.max_error < 1e-5
    assert certificate.identity_error < 1e-6


def overflowing(dtype: torch.dtype) -> Any:
    model = tiny.random_model(UNKNOWN["xglm"][0], transformers.AutoModel).to(dtype)
    with torch.no_grad():
        model.layers[1].fc2.weight.fill_(6e4)
    return model


def test_an_unknown_model_that_overflows_is_not_refused_for_its_sites():
    with pytest.raises(ModelError, match=r"'xglm' .* NaN or infinity in float16 .* set model\.dtype to bfloat16"):
        wrap(overflowing(torch.float16))
    assert wrap(overflowing(torch.bfloat16)).anatomy.known_by == "probe"


def test_an_unknown_model_with_weights_that_are_not_numbers_is_not_refused_for_its_sites():
    model = overflowing(torch.float32)
    with torch.no_grad():
        model.layers[4].fc2.bias[0] = float("nan")
    with pytest.raises(
        ModelError, match=r"the weight layers\.4\.fc2\.bias has NaN or infinity in float32 in 1 of 48 values"
    ):
        wrap(model)


REFUSED: dict[str, tuple[Any, str]] = {
    "gemma3n_text": (
        transformers.Gemma3nTextConfig(
            **GROUPED,
            head_dim=12,
            vocab_size_per_layer_input=64,
            hidden_size_per_layer_input=8,
            num_kv_shared_layers=0,
            layer_types=SLIDING,
            activation_sparsity_pattern=[0.0] * 5,
            laurel_rank=8,
        ),
        "its blocks pass on several streams (AltUp), and a survey needs a model with one",
    ),
    "minimax": (
        transformers.MiniMaxConfig(**GROUPED, num_local_experts=4, num_experts_per_tok=2),
        "its blocks replace the stream by its norm before they add to it, so it has no residual stream",
    ),
    "mamba": (
        transformers.MambaConfig(vocab_size=64, hidden_size=48, num_hidden_layers=5, state_size=8),
        "its configuration lacks a size",
    ),
    "albert": (
        transformers.AlbertConfig(**PLAIN, embedding_size=32, inner_group_num=2),
        "cannot be surveyed if inner_group_num is not 1",
    ),
    "deberta-v2": (
        transformers.DebertaV2Config(**PLAIN, **{"conv_kernel_size": 3}),
        "a convolution changes the stream between its first two blocks",
    ),
    "roformer": (transformers.RoFormerConfig(**PLAIN), "a token's stream depends on the tokens after it"),
    "longt5": (
        transformers.LongT5Config(vocab_size=64, d_model=48, d_kv=12, d_ff=80, num_layers=5, num_heads=4),
        "two residual streams (encoder and decoder)",
    ),
}


def test_the_probe_refuses_blocks_that_add_to_a_normalised_stream(monkeypatch):
    monkeypatch.setitem(CONFIGS, "minimax", REFUSED["minimax"][0])
    with pytest.raises(UnsupportedModelError, match="no modules of a block add up to its output"):
        probed("minimax")


@each("family", REFUSED)
def test_a_model_without_a_single_causal_stream_is_refused_in_one_line(family, monkeypatch):
    config, reason = REFUSED[family]
    monkeypatch.setitem(CONFIGS, family, config)
    with pytest.raises(UnsupportedModelError) as caught:
        wrap(tiny.tiny_model(family))
    assert reason in str(caught.value)
    assert repr(family) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_scaled_sum_is_proven_only_if_rounding_is_small_beside_it():
    generator = torch.Generator().manual_seed(0)
    pre, first, second, other = (torch.randn(1, 2, 48, generator=generator) for _ in range(4))
    pre[:, 0] *= 100  # an attention sink
    recorded = _Recording(outputs={"attention": first, "mamba": second})
    assert _adds_scaled(recorded, pre, pre + 0.6 * first + 0.3 * second)
    assert not _adds_scaled(recorded, pre, pre + other)
    assert not _adds_scaled(recorded, pre.bfloat16(), (pre + other).bfloat16())
