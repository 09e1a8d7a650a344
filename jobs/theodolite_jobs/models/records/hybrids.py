"""Hybrids: only some blocks have attention; the others have linear attention, a state space or a convolution.

Their mixers are different modules, so only the blocks with attention have `attn_out` and `head_out`. A configuration
may give all blocks attention.
"""

from collections.abc import Sequence
from dataclasses import replace

from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Files, MergedExperts, PartialTap, Tap
from theodolite_jobs.models.records.llama import GRANITE_SHARED, LLAMA, MERGED, QWEN3_FILES
from theodolite_jobs.models.records.taps import STREAM, reading, sequential

_ATTENTION = Tap("self_attn", "output")
_MIXER = Tap("mixer", "output")
_NO_WORDS = "some of its blocks have no attention heads"
_FEED_FORWARD = Files(gate="feed_forward.gate_proj", up="feed_forward.up_proj", down="feed_forward.down_proj")
_MERGED = MergedExperts("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", "expert, out, in")
_GATED = replace(QWEN3_FILES, gated=True)


def hybrid(record: Anatomy, mixer: str) -> Anatomy:
    """Return the record of a family of which some blocks have `mixer` in place of attention."""
    taps: dict[Site, Tap] = {site: tap for site, tap in record.taps.items() if site != Site.ATTN_OUT}
    reason = f"some blocks have {mixer} in place of attention"
    partial = {Site.ATTN_OUT: PartialTap(_ATTENTION)}
    return replace(record, taps=taps, partial=partial, hybrid=reason, no_words=record.no_words or _NO_WORDS)


def with_layers(record: Anatomy, kinds: list[str]) -> Anatomy:
    """Return the record of a hybrid whose layers are of these kinds."""
    without = tuple(layer for layer, kind in enumerate(kinds) if kind != "full_attention")
    attention = replace(_ATTENTION, scale=record.attention_scale)
    if without:
        none = "none of its blocks has attention" if len(without) == len(kinds) else ""
        record = replace(record, layers_without_attention=without, no_circuits=none)
        return with_some(record, Site.ATTN_OUT, attention, record.attention_layers(len(kinds)))
    taps = {**record.taps, Site.ATTN_OUT: attention}
    return replace(record, taps=taps, partial={}, hybrid="", no_words=record.no_words.replace(_NO_WORDS, ""))


def with_some(record: Anatomy, site: Site, tap: Tap, layers: Sequence[int]) -> Anatomy:
    """Return the record with a site that only these layers have; without layers, no block has it."""
    others = {one: partial for one, partial in record.partial.items() if one is not site}
    return replace(record, partial={**others, site: PartialTap(tap, tuple(layers))} if layers else others)


_QWEN3_5 = replace(
    LLAMA,
    norm_offset=1.0,
    files=_GATED,
    no_words="a gate of the token that attends multiplies the output of each head, and circuits leave it out",
)
QWEN3_5 = hybrid(_QWEN3_5, "linear attention")
QWEN3_NEXT = replace(
    QWEN3_5,
    files=replace(_GATED, experts="mlp.experts.{}.", merged=MERGED, shared_expert="mlp.shared_expert."),
)
NEMOTRON_H = Anatomy(
    blocks="layers",
    taps=STREAM,
    partial={Site.ATTN_OUT: PartialTap(_MIXER), Site.MLP_OUT: PartialTap(_MIXER)},
    norms=reading("norm", "norm"),
    final_norm="norm_f",
    positions="none",
    hybrid="each block is attention, a state space or an MLP alone",
    no_words=_NO_WORDS,
    files=Files(
        embedding="embeddings",
        qkv=("mixer.q_proj", "mixer.k_proj", "mixer.v_proj"),
        output="mixer.o_proj",
        gate=None,
        up="mixer.up_proj",
        down="mixer.down_proj",
        experts="mixer.experts.{}.",
        merged=MergedExperts("mixer.experts.up_proj", "mixer.experts.down_proj", "expert, out, in", gated=False),
        shared_expert="mixer.shared_experts.",
    ),
)
_BAMBA = replace(
    LLAMA,
    taps=sequential("pre_ff_layernorm", "self_attn", "feed_forward"),
    norms=reading("input_layernorm", "pre_ff_layernorm"),
    final_norm="final_layernorm",
    files=_FEED_FORWARD,
)
BAMBA = hybrid(_BAMBA, "a state space")
JAMBA = replace(
    BAMBA, positions="none", files=replace(_FEED_FORWARD, experts="feed_forward.experts.{}.", merged=_MERGED)
)
FALCON_H1 = replace(BAMBA, partial={}, hybrid="each block adds attention and a state space in one sum", no_words="")
_LFM2_FILES = Files(
    output="self_attn.out_proj",
    qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
    gate="feed_forward.w1",
    up="feed_forward.w3",
    down="feed_forward.w2",
)
_LFM2 = replace(
    LLAMA,
    taps=sequential("ffn_norm", "self_attn", "feed_forward"),
    norms=reading("operator_norm", "ffn_norm"),
    final_norm="embedding_norm",
    files=_LFM2_FILES,
)
LFM2 = hybrid(_LFM2, "a convolution")
LFM2_MOE = replace(LFM2, files=replace(_LFM2_FILES, experts="feed_forward.experts.{}.", merged=_MERGED))
GRANITE_HYBRID = hybrid(GRANITE_SHARED, "a state space")
