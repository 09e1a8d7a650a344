"""A block's own submodules, called one after the other, for every family.

The hand-runs are written from the architectures (papers and transformers' sources); they do not use records or taps.
"""

from collections.abc import Sequence
from typing import Any

import torch
from support.hand_calls import Call, HandRun, Stream
from support.hand_encoders import albert, bart, bert, mbart, megatron_bert, mpnet, post_norm, rotary_encoder

from theodolite.sites import Site

# Kinds of block. `x` enters, `call(module, input)` runs a module of the block on another input.


def sequential(norm1: str, attention: str, norm2: str, mlp: str, multiplier: float = 1.0) -> HandRun:
    """Pre-norm: x + attention(norm(x)), then the same with the MLP; Granite multiplies what each adds."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        attn = call(attention, call(norm1, x)) * multiplier
        mid = x + attn
        normed = call(norm2, mid)
        added = sum((call(one, normed) for one in mlp.split(" + ")), start=torch.zeros(())) * multiplier
        return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}

    return run


def hybrid(norm1: str, mixers: Sequence[str], norm2: str, mlp: str, multiplier: float = 1.0) -> HandRun:
    """As `sequential`, with the one of these mixers that the block has; the first one is attention."""

    def run(x: Stream, call: Call) -> dict[Site, Stream]:
        (mixer,) = (path for path in mixers if call.has(path))
        mixed = call(mixer, call(norm1, x)) * multiplier
        mid = x + mixed
        normed = call(norm2, mid)
        added = sum((call(one, normed) for one in mlp.split(" + ")), start=torch.zeros(())) * multiplier
        attention = {Site.ATTN_OUT: mixed} if mixer == mixers[0] else {}
        return {**attention, Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}

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


def gemma4(x: Stream, call: Call) -> dict[Site, Stream]:
    """Gemma 4: as in Gemma-2, perhaps with experts beside the MLP, then a per-layer input, and a factor of the sum."""
    block: Any = call.block
    attn = call("post_attention_layernorm", call("self_attn", call("input_layernorm", x)))
    mid = x + attn
    added = call("mlp", call("pre_feedforward_layernorm", mid))
    if hasattr(block, "experts"):
        flat = mid.flatten(0, 1)
        _, shares, chosen = block.router(flat)
        experts = block.experts(block.pre_feedforward_layernorm_2(flat), chosen, shares).view(mid.shape)
        added = block.post_feedforward_layernorm_1(added) + block.post_feedforward_layernorm_2(experts)
    after = mid + call("post_feedforward_layernorm", added)
    if hasattr(block, "per_layer_input_gate"):
        gated = call("act_fn", call("per_layer_input_gate", after)) * call.further_input
        after = after + call("post_per_layer_input_norm", call("per_layer_projection", gated))
    return {Site.ATTN_OUT: attn, Site.RESID_MID: mid, Site.RESID_POST: after * block.layer_scalar}


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


llama = sequential("input_layernorm", "self_attn", "post_attention_layernorm", "mlp")
qwen_hybrid = hybrid("input_layernorm", ("self_attn", "linear_attn"), "post_attention_layernorm", "mlp")
bamba = hybrid("input_layernorm", ("self_attn", "mamba"), "pre_ff_layernorm", "feed_forward")
lfm2 = hybrid("operator_norm", ("self_attn", "conv"), "ffn_norm", "feed_forward")
llama_parallel = parallel("input_layernorm", "self_attn", "input_layernorm", "mlp")
GRANITE = ("input_layernorm", "self_attn", "post_attention_layernorm")


def granite_hybrid(mlp: str) -> HandRun:
    """Attention or a state space, then the MLP."""
    return hybrid("input_layernorm", ("self_attn", "mamba"), "post_attention_layernorm", mlp, multiplier=0.4)


def falcon_h1(x: Stream, call: Call) -> dict[Site, Stream]:
    """Attention and a state space read the same input; both are multiplied, as are the inputs of attention."""
    normed = call("input_layernorm", x)
    mid = x + call("mamba", normed) * 0.3 + call("self_attn", normed * 0.7) * 0.6
    added = call("feed_forward", call("pre_ff_layernorm", mid))
    return {Site.RESID_MID: mid, Site.MLP_OUT: added, Site.RESID_POST: mid + added}


def nemotron_h(x: Stream, call: Call) -> dict[Site, Stream]:
    """One module: attention, a state space, or an MLP."""
    added = call("mixer", call("norm", x))
    branch = {Site.ATTN_OUT: added} if call.has("mixer.q_proj") else {}
    if call.has("mixer.up_proj") or call.has("mixer.experts"):
        branch = {Site.MLP_OUT: added}
    return {**branch, Site.RESID_POST: x + added}


t5 = sequential("layer.0.layer_norm", "layer.0.SelfAttention", "layer.1.layer_norm", "layer.1.DenseReluDense")


HAND_RUNS: dict[str, HandRun] = {
    "albert": albert,
    "albert-groups": albert,
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
    "gemma4": gemma4,
    "gemma4_text": gemma4,
    "gemma4_text-experts": gemma4,
    "gemma4_unified_text": gemma4,
    "gpt2": sequential("ln_1", "attn", "ln_2", "mlp"),
    "gpt2-scaled-by-layer": sequential("ln_1", "attn", "ln_2", "mlp"),
    "gpt_neox": parallel("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
    "gpt_neox-sequential": sequential("input_layernorm", "attention", "post_attention_layernorm", "mlp"),
    "gpt_oss": llama,
    "gptj": parallel("ln_1", "attn", "ln_1", "mlp"),
    "granite": sequential(*GRANITE, "mlp", multiplier=0.4),
    "granitemoe": sequential(*GRANITE, "block_sparse_moe", multiplier=0.4),
    "granitemoehybrid": granite_hybrid("block_sparse_moe + shared_mlp"),
    "granitemoehybrid-attention": sequential(*GRANITE, "block_sparse_moe + shared_mlp", multiplier=0.4),
    "granitemoehybrid-dense": granite_hybrid("shared_mlp"),
    "granitemoeshared": sequential(*GRANITE, "block_sparse_moe + shared_mlp", multiplier=0.4),
    "granitemoeshared-none": sequential(*GRANITE, "block_sparse_moe", multiplier=0.4),
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
    "diffllama": llama,
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
    "qwen3_5": qwen_hybrid,
    "qwen3_5_moe_text": qwen_hybrid,
    "qwen3_5_text": qwen_hybrid,
    "qwen3_5_text-attention": llama,
    "qwen3_moe": llama,
    "qwen3_next": qwen_hybrid,
    "bamba": bamba,
    "falcon_h1": falcon_h1,
    "jamba": bamba,
    "lfm2": lfm2,
    "lfm2_moe": lfm2,
    "nemotron_h": nemotron_h,
    "nemotron_h-dense": nemotron_h,
    "flex_olmo": norms_after_the_branch,
    "camembert": bert,
    "distilbert": post_norm("attention", "sa_layer_norm", "ffn", "output_layer_norm"),
    "electra": bert,
    "electra-projected": bert,
    "eurobert": llama,
    "modernbert": sequential("attn_norm", "attn", "mlp_norm", "mlp"),
    "bert-generation": bert,
    "data2vec-text": bert,
    "deberta": bert,
    "deberta-learned": bert,
    "deberta-v2": bert,
    "deberta-v2-buckets": bert,
    "ernie": bert,
    "gte": rotary_encoder,
    "jina_embeddings_v3": rotary_encoder,
    "megatron-bert": megatron_bert,
    **dict.fromkeys(("bart", "bart-scaled", "marian", "marian-own", "plbart"), bart),
    **dict.fromkeys(("m2m_100", "mbart", "pegasus"), mbart),
    "mt5": t5,
    "nomic_bert": rotary_encoder,
    "t5": t5,
    "t5-gated": t5,
    "umt5": t5,
    "umt5-plain": t5,
    "vaultgemma": sequential("input_layernorm", "self_attn", "pre_feedforward_layernorm", "mlp"),
}
"""A new family is one line here, and one in `CONFIGS`."""


HYBRIDS = {"bamba", "jamba", "lfm2", "lfm2_moe"}
HYBRIDS |= {"granitemoehybrid", "granitemoehybrid-dense", "nemotron_h", "nemotron_h-dense", "qwen3_5"}
HYBRIDS |= {"qwen3_5_moe_text", "qwen3_5_text", "qwen3_next"}
"""The families of `CONFIGS` of which some blocks have another mixer than attention."""
