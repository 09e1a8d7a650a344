"""Every family's record against a hand-run: the block's own submodules, called one after the other in float64.

The hand-runs are written from the architectures (papers and transformers' sources); they do not use records or taps.
"""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from support import tiny
from transformers import BloomConfig, Qwen2MoeConfig

from theodolite.errors import SiteNotFoundError, UnsupportedModelError
from theodolite.sites import BLOCK_SITES, STREAM_SITES, Site
from theodolite_jobs.capture.engine import Engine
from theodolite_jobs.capture.plan import plan_set
from theodolite_jobs.models.anatomy import Anatomy, check_sites
from theodolite_jobs.models.batching import length_class_of
from theodolite_jobs.models.families import FAMILIES, known_anatomy
from theodolite_jobs.models.load import LoadedModel, wrap
from theodolite_jobs.models.reference import identity_errors, read_sites, relative_errors

IDS = tiny.random_tokens([11])[0]
POSITIONS = [-3, -1]

Stream = torch.Tensor
Call = Callable[..., torch.Tensor]
HandRun = Callable[[Stream, Call], dict[Site, Stream]]


# Kinds of block. `x` enters, `call(module, input)` runs a module of the block on another input.


def sequential(norm1: str, attention: str, norm2: str, mlp: str, multiplier: float = 1.0) -> HandRun:
    """Pre-norm: x + attention(norm(x)), then the same with the MLP; Granite multiplies what each adds."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = call(attention, call(norm1, x)) * multiplier
        mid = x + attn
        added = call(mlp, call(norm2, mid)) * multiplier
        return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}

    return run


def parallel(norm1: str, attention: str, norm2: str, mlp: str) -> HandRun:
    """x + attention(norm1(x)) + mlp(norm2(x)); many families use one norm for both."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn, added = call(attention, call(norm1, x)), call(mlp, call(norm2, x))
        return {Site.ATTN_OUT: attn, Site.MLP_OUT: added, Site.RESID_POST: x + attn + added}

    return run


def norms_on_both_sides(x: Stream, call: Call) -> dict[Site, Stream]:
    """Gemma-2 and 3: each branch is normalised before it reads and again before it is added."""
    attn = call("post_attention_layernorm", call("self_attn", call("input_layernorm", x)))
    mid = x + attn
    added = call("post_feedforward_layernorm", call("mlp", call("pre_feedforward_layernorm", mid)))
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def norms_on_both_sides_of_glm(x: Stream, call: Call) -> dict[Site, Stream]:
    """GLM-4: as in Gemma-2, with other names."""
    attn = call("post_self_attn_layernorm", call("self_attn", call("input_layernorm", x)))
    mid = x + attn
    added = call("post_mlp_layernorm", call("mlp", call("post_attention_layernorm", mid)))
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def norms_after_the_branch(x: Stream, call: Call) -> dict[Site, Stream]:
    """OLMo-2: branches read the stream itself, and what they add is normalised."""
    attn = call("post_attention_layernorm", call("self_attn", x))
    mid = x + attn
    added = call("post_feedforward_layernorm", call("mlp", mid))
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def residual_passed_in(x: Stream, call: Call) -> dict[Site, Stream]:
    """BLOOM: each branch adds the residual it is given; given zeros, it puts out what it adds."""
    nothing = torch.zeros_like(x)
    attn = call("self_attention", call("input_layernorm", x), nothing)
    mid = x + attn
    added = call("mlp", call("post_attention_layernorm", mid), nothing)
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def opt(x: Stream, call: Call) -> dict[Site, Stream]:
    attn = call("self_attn", call("self_attn_layer_norm", x))
    mid = x + attn
    added = call("fc2", call("fc1", call("final_layer_norm", mid)).relu())
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def opt_norms_after_the_sum(x: Stream, call: Call) -> dict[Site, Stream]:
    attn = call("self_attn", x)
    mid = call("self_attn_layer_norm", x + attn)
    added = call("fc2", call("fc1", mid).relu())
    return {
        Site.ATTN_OUT: attn,
        Site.RESID_MID_SUM: x + attn,
        Site.RESID_MID: mid,
        Site.MLP_OUT: added,
        Site.RESID_POST: call("final_layer_norm", mid + added),
    }


def encoder(attend: Callable[[Stream, Call], Stream], norm: str) -> HandRun:
    """Post-norm: norm(x + attention(x)), then the same with the MLP."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = attend(x, call)
        mid = call(norm, x + attn)
        added = call("output.dense", call("intermediate", mid))
        return {
            Site.ATTN_OUT: attn,
            Site.RESID_MID_SUM: x + attn,
            Site.RESID_MID: mid,
            Site.MLP_OUT: added,
            Site.RESID_POST: call("output.LayerNorm", mid + added),
        }

    return run


llama = sequential("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
llama_parallel = parallel("input_layernorm", "self_attn", "input_layernorm", "mlp")
bert = encoder(
    lambda x, call: call("attention.output.dense", call("attention.self", x)), norm="attention.output.LayerNorm"
)
mpnet = encoder(lambda x, call: call("attention.attn", x), norm="attention.LayerNorm")


def post_norm(attention: str, norm1: str, mlp: str, norm2: str) -> HandRun:
    """As in BERT, with attention and MLP as one module each."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = call(attention, x)
        mid = call(norm1, x + attn)
        added = call(mlp, mid)
        return {
            Site.ATTN_OUT: attn,
            Site.RESID_MID_SUM: x + attn,
            Site.RESID_MID: mid,
            Site.MLP_OUT: added,
            Site.RESID_POST: call(norm2, mid + added),
        }

    return run


HAND_RUNS: dict[str, HandRun] = {
    "bert": bert,
    "bloom": residual_passed_in,
    "cohere": llama_parallel,
    "cohere2": llama_parallel,
    "falcon-groups": parallel("ln_attn", "self_attention", "ln_mlp", "mlp"),
    "falcon-heads": sequential("input_layernorm", "self_attention", "post_attention_layernorm", "mlp"),
    "falcon-multi-query": parallel("input_layernorm", "self_attention", "input_layernorm", "mlp"),
    "gemma": llama,
    "gemma2": norms_on_both_sides,
    "gemma3": norms_on_both_sides,
    "gemma3_text": norms_on_both_sides,
    "gpt2": sequential("ln_1", "attn", "ln_2", "mlp"),
    "gpt2-scaled-by-layer": sequential("ln_1", "attn", "ln_2", "mlp"),
    "gpt_neox": parallel("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
    "gpt_neox-sequential": sequential("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
    "gpt_oss": llama,
    "gptj": parallel("ln_1", "attn", "ln_1", "mlp"),
    "granite": sequential("input_layernorm", "self_attn", "post_attention_layernorm", "mlp", multiplier=0.4),
    "granitemoe": sequential(
        "input_layernorm", "self_attn", "post_attention_layernorm", "block_sparse_moe", multiplier=0.4
    ),
    "llama": llama,
    "llama4": sequential("input_layernorm", "self_attn", "post_attention_layernorm", "feed_forward"),
    "llama4_text": sequential("input_layernorm", "self_attn", "post_attention_layernorm", "feed_forward"),
    "llama-dynamic": llama,
    "llama-yarn": llama,
    "llava": llama,
    "qwen2_5_vl": llama,
    "qwen2_vl": llama,
    "qwen3_vl": llama,
    "smolvlm": llama,
    "mistral": llama,
    "mistral-nemo": llama,
    "mixtral": llama,
    "mpnet": mpnet,
    "olmo": llama,
    "olmo2": norms_after_the_branch,
    "opt": opt,
    "opt-post-norm": opt_norms_after_the_sum,
    "phi": llama_parallel,
    "phi-qk-norm": llama_parallel,
    "phi3": llama,
    "phi3-longrope": llama,
    "qwen2": llama,
    "qwen3": llama,
    "roberta": bert,
    "llama-3": llama,
    "olmo-clipped": llama,
    "xlm-roberta": bert,
    "stablelm": llama,
    "stablelm-parallel": llama_parallel,
    "arcee": llama,
    "cwm": llama,
    "ernie4_5": llama,
    "glm": llama,
    "helium": llama,
    "hunyuan_v1_dense": llama,
    "jais2": llama,
    "ministral": llama,
    "ministral3": llama,
    "mistral3": llama,
    "nemotron": llama,
    "phi3-partial": llama,
    "seed_oss": llama,
    "smollm3": llama,
    "starcoder2": llama,
    "exaone4": norms_after_the_branch,
    "exaone4-without-window": norms_after_the_branch,
    "olmo3": norms_after_the_branch,
    "apertus": sequential("attention_layernorm", "self_attn", "feedforward_layernorm", "mlp"),
    "glm4": norms_on_both_sides_of_glm,
    "gpt_bigcode": sequential("ln_1", "attn", "ln_2", "mlp"),
    "gpt_bigcode-heads": sequential("ln_1", "attn", "ln_2", "mlp"),
    "deepseek_v2": llama,
    "deepseek_v3": llama,
    "dots1": llama,
    "ernie4_5_moe": llama,
    "glm4_moe": llama,
    "glm4_moe_lite": llama,
    "hunyuan_v1_moe": llama,
    "minimax_m2": llama,
    "olmoe": llama,
    "olmoe-clipped": llama,
    "phimoe": llama,
    "phimoe-longrope": llama,
    "qwen2_moe": llama,
    "qwen3_moe": llama,
    "flex_olmo": norms_after_the_branch,
    "camembert": bert,
    "distilbert": post_norm("attention", "sa_layer_norm", "ffn", "output_layer_norm"),
    "electra": bert,
    "electra-projected": bert,
    "eurobert": llama,
    "modernbert": sequential("attn_norm", "attn", "mlp_norm", "mlp"),
    "nomic_bert": post_norm("self_attn", "post_attention_layernorm", "mlp", "post_mlp_layernorm"),
    "vaultgemma": sequential("input_layernorm", "self_attn", "pre_feedforward_layernorm", "mlp"),
}
"""A new family is one line here, and one in `tiny.CONFIGS`."""


def run_by_hand(module: Any, ids: tuple[int, ...], hand_run: HandRun) -> list[dict[Site, Stream]]:
    """Record one run, then compute every block again from the input of the first block."""
    blocks = next(child for child in module.modules() if isinstance(child, torch.nn.ModuleList) and len(child) == 5)
    entered: list[Stream] = []
    given: dict[torch.nn.Module, tuple[Any, dict[str, Any]]] = {}  # all but the hidden states: masks, positions

    def record(child: torch.nn.Module, args: Any, kwargs: dict[str, Any]) -> None:
        if child is blocks[0]:
            entered.append(args[0] if args else kwargs["hidden_states"])
        given[child] = (args[1:], {name: value for name, value in kwargs.items() if name != "hidden_states"})

    handles = [child.register_forward_pre_hook(record, with_kwargs=True) for child in blocks.modules()]
    module(input_ids=torch.tensor([ids]), use_cache=False)
    for handle in handles:
        handle.remove()

    def caller(block: torch.nn.Module) -> Call:
        def call(path: str, x: Stream, *others: Stream) -> Stream:
            child = block.get_submodule(path)
            args, kwargs = given[child]
            output = child(x, *(others or args), **kwargs)
            return output[0] if isinstance(output, tuple) else output

        return call

    streams, x = [], entered[0]
    for block in blocks:
        streams.append({Site.RESID_PRE: x, **hand_run(x, caller(block))})
        x = streams[-1][Site.RESID_POST]
    return streams


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
NORMS_AFTER_THE_SUM |= {"bert", "mpnet", "opt-post-norm", "roberta", "xlm-roberta"}


def sites_of(family: str) -> set[Site]:
    if family in NORMS_AFTER_THE_SUM:
        return set(STREAM_SITES)
    if family in PARALLEL:
        return set(STREAM_SITES) - {Site.RESID_MID_SUM, Site.RESID_MID}
    return set(STREAM_SITES) - {Site.RESID_MID_SUM}


def test_every_family_of_the_table_has_a_hand_run():
    assert set(HAND_RUNS) == set(tiny.CONFIGS)
    assert set(FAMILIES) - {config.get_text_config().model_type for config in tiny.CONFIGS.values()} == set()


@torch.inference_mode()
@pytest.mark.parametrize("family", HAND_RUNS)
def test_sites_equal_a_hand_run(family):
    model = eager_float64(family)
    read = read_sites(model, IDS, POSITIONS)
    by_hand = run_by_hand(model.module, IDS, HAND_RUNS[family])
    assert {site for site in read if site in STREAM_SITES} == sites_of(family) == set(by_hand[0])
    for site in sites_of(family):
        values = torch.stack([streams[site].view(len(IDS), -1)[POSITIONS] for streams in by_hand], dim=1)
        assert relative_errors(read[site], values.numpy()).max() <= 1e-12, site
    final = by_hand[-1][Site.RESID_POST].view(len(IDS), -1)[POSITIONS]
    assert relative_errors(read[Site.RESID_FINAL], final.numpy()).max() <= 1e-12


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_the_identities_hold_and_fail_for_swapped_taps(family):
    model = eager_float64(family)
    read = read_sites(model, IDS, POSITIONS)
    assert max(identity_errors(model, read).values()) <= 1e-13
    for site, other in permutations(model.anatomy.taps, 2):
        if read[site].shape != read[other].shape:  # heads wider than the stream
            continue
        misread = {**read, site: read[other]}
        assert max(identity_errors(model, misread).values()) > 1e-3, (site, other)


@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_the_identities_fail_if_attention_is_read_from_the_mlp(family):
    model = eager_float64(family)
    taps = {**model.anatomy.taps, Site.ATTN_OUT: model.anatomy.taps[Site.MLP_OUT]}
    wrong = replace(model, anatomy=replace(model.anatomy, taps=taps))
    assert max(identity_errors(wrong, read_sites(wrong, IDS, POSITIONS)).values()) > 1e-3


@pytest.mark.parametrize("family", sorted(PARALLEL))
def test_resid_mid_of_a_parallel_block_is_refused_with_the_reason(family):
    anatomy = known_anatomy(tiny.CONFIGS[family])
    for site in (Site.RESID_MID, Site.RESID_MID_SUM):
        with pytest.raises(SiteNotFoundError) as caught:
            check_sites(anatomy, [Site.RESID_PRE, site])
        assert str(caught.value) == (
            f"capture.sites: this model has no {site}: attention and MLP run in parallel, both read resid_pre; "
            "it has resid_pre, resid_post, head_out, attn_out, mlp_out"
        )


def test_only_post_norm_blocks_have_resid_mid_sum():
    with pytest.raises(SiteNotFoundError, match="no resid_mid_sum: only a model whose norms follow the sums has it"):
        check_sites(known_anatomy(tiny.CONFIGS["llama"]), [Site.RESID_MID_SUM])
    check_sites(known_anatomy(tiny.CONFIGS["bert"]), list(BLOCK_SITES))


@pytest.mark.parametrize(
    "options",
    [{"apply_residual_connection_post_layernorm": True}, {"pretraining_tp": 2, "slow_but_exact": True}],
)
def test_a_bloom_without_a_residual_stream_is_refused(options):
    with pytest.raises(UnsupportedModelError, match=next(reversed(options))):
        known_anatomy(BloomConfig(**options))


def test_a_sliding_window_of_no_tokens_is_refused():
    # transformers sets the window of Qwen2-MoE to 0 if use_sliding_window is false; then sdpa and eager differ.
    config = Qwen2MoeConfig(**tiny.GROUPED, layer_types=tiny.SLIDING, use_sliding_window=False)
    with pytest.raises(UnsupportedModelError, match=r"sliding window of 0 tokens.*set use_sliding_window to true"):
        known_anatomy(config)


# Norms.


@torch.inference_mode()
@pytest.mark.parametrize("family", tiny.CONFIGS)
def test_norms_match_the_record(family):
    model = eager_float64(family)
    anatomy = model.anatomy
    layer = model.blocks[2]
    paths = {role: layer.get_submodule(path) for role, path in anatomy.norms.items()}
    if anatomy.final_norm:
        paths["final"] = model.module.get_submodule(anatomy.final_norm)
    ran: dict[torch.nn.Module, tuple[Stream, Stream]] = {}
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


@pytest.mark.parametrize("family", ["bert", "gpt2", "mpnet", "opt", "roberta"])
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


@pytest.mark.parametrize("family", ["llama-dynamic", "phi3-longrope"])
def test_a_long_prompt_does_not_change_the_rotation_of_a_short_one(family):
    lengths = [12, 30]
    model = wrap(tiny.tiny_model(family))
    mixed = capture(model, lengths, length_class=lambda _: 0, share_prefix=False)
    for length, ours in zip(lengths, capture(model, lengths), strict=True):
        assert relative_errors(ours, alone(family, length)).max() < 1e-5
    assert relative_errors(mixed[0], alone(family, 12)).max() > 1e-2


@pytest.mark.parametrize("family", ["llama-dynamic", "phi3-longrope"])
@pytest.mark.parametrize("batch_tokens", [1, 400])
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
