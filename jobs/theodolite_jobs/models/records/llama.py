"""Families whose blocks and files have the names of Llama, with what differs."""

from dataclasses import replace

from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Files, MergedExperts
from theodolite_jobs.models.records.taps import in_parallel, reading, sequential, writing

LLAMA = Anatomy(
    blocks="layers",
    taps=sequential("post_attention_layernorm", "self_attn", "mlp"),
    norms=reading("input_layernorm", "post_attention_layernorm"),
    final_norm="norm",
    files=Files(),
)
QWEN3_FILES = Files(qk_norm=("self_attn.q_norm", "self_attn.k_norm"))
QWEN3 = replace(LLAMA, files=QWEN3_FILES)
MERGED = MergedExperts("mlp.experts.gate_up_proj", "mlp.experts.down_proj", "expert, out, in")
MIXTRAL_FILES = Files(experts="block_sparse_moe.experts.{}.", merged=MERGED, gate="w1", up="w3", down="w2")
MIXTRAL = replace(LLAMA, files=MIXTRAL_FILES)
QWEN2_MOE = replace(LLAMA, files=Files(experts="mlp.experts.{}.", merged=MERGED, shared_expert="mlp.shared_expert."))
QWEN3_MOE_FILES = replace(QWEN3_FILES, experts="mlp.experts.{}.", merged=MERGED)
QWEN3_MOE = replace(LLAMA, files=QWEN3_MOE_FILES)
GLM4_MOE = replace(LLAMA, files=replace(QWEN3_MOE_FILES, shared_expert="mlp.shared_experts."))
ERNIE_MOE = replace(
    LLAMA,
    positions="rotary, interleaved",
    files=Files(experts="mlp.experts.{}.", merged=MERGED, shared_expert="mlp.shared_experts."),
)
DEEPSEEK = replace(
    LLAMA,
    positions="rotary, interleaved",
    files=Files(qkv=(), latent=True, experts="mlp.experts.{}.", merged=MERGED, shared_expert="mlp.shared_experts."),
    no_words="multi-head latent attention divides the values of each token by a norm that its circuits leave out",
)
GPT_OSS = replace(
    LLAMA,
    files=Files(
        sinks="self_attn.sinks",
        experts=MergedExperts(
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "expert, in, out", interleaved=True, bias="_bias"
        ),
    ),
)
GRANITE_EXPERTS = MergedExperts(
    "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight", "expert, out, in"
)
GRANITE_MERGED = MergedExperts(
    "block_sparse_moe.experts.gate_up_proj", "block_sparse_moe.experts.down_proj", "expert, out, in"
)
GRANITE_MOE = replace(
    LLAMA,
    taps=sequential("post_attention_layernorm", "self_attn", "block_sparse_moe"),
    files=Files(experts=GRANITE_EXPERTS, merged=GRANITE_MERGED),
)
GRANITE_SHARED = replace(
    LLAMA,
    taps=sequential("post_attention_layernorm", "self_attn", "shared_mlp", plus="block_sparse_moe"),
    files=Files(
        gate=None,
        up="shared_mlp.input_linear",
        down="shared_mlp.output_linear",
        gate_up_fused=True,
        experts=GRANITE_EXPERTS,
        merged=GRANITE_MERGED,
        shared_expert="shared_mlp.",
    ),
)
LLAMA4 = replace(
    LLAMA,
    taps=sequential("post_attention_layernorm", "self_attn", "feed_forward"),
    positions="rotary, interleaved",
    files=Files(
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        experts=MergedExperts("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", "expert, in, out"),
        shared_expert="feed_forward.shared_expert.",
    ),
)
PHI3 = replace(
    LLAMA,
    files=Files(
        qkv=("self_attn.qkv_proj",), qkv_layout="concatenated", gate=None, up="mlp.gate_up_proj", gate_up_fused=True
    ),
)
GEMMA = replace(LLAMA, norm_offset=1.0)
GEMMA2 = replace(
    GEMMA,
    taps=sequential("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"),
    norms={
        "attention": "input_layernorm",
        "attention_output": "post_attention_layernorm",
        "mlp": "pre_feedforward_layernorm",
        "mlp_output": "post_feedforward_layernorm",
    },
)
GEMMA3 = replace(GEMMA2, files=QWEN3_FILES)
GEMMA4 = replace(
    GEMMA3,
    taps={site: tap for site, tap in GEMMA3.taps.items() if site is not Site.MLP_OUT},
    norm_offset=0.0,
    after_mlp="after the MLP, a block may add a vector of its per-layer input, and multiplies the stream, so "
    "resid_post is not resid_mid + mlp_out",
    no_head_site="the heads of its layers have several widths",
    normed_values=True,
    no_words="a norm divides the values of each token, and its circuits leave this norm out",
)
OLMO2 = replace(
    QWEN3,
    taps=sequential("mlp", "post_attention_layernorm", "post_feedforward_layernorm"),
    norms=writing("post_attention_layernorm", "post_feedforward_layernorm"),
)
COHERE = replace(
    QWEN3,
    taps=in_parallel("self_attn", "mlp"),
    norms=reading("input_layernorm", "input_layernorm"),
    norm_kind="layer",
    positions="rotary, interleaved",
)
PHI = replace(
    COHERE,
    final_norm="final_layernorm",
    positions="rotary",
    files=Files(
        output="self_attn.dense",
        qk_norm=("self_attn.q_layernorm", "self_attn.k_layernorm"),
        gate=None,
        up="mlp.fc1",
        down="mlp.fc2",
    ),
)
ARCEE = replace(LLAMA, files=Files(gate=None))
APERTUS = replace(
    LLAMA,
    taps=sequential("feedforward_layernorm", "self_attn", "mlp"),
    norms=reading("attention_layernorm", "feedforward_layernorm"),
    files=replace(QWEN3_FILES, gate=None),
)
GLM = replace(
    LLAMA,
    positions="rotary, interleaved",
    files=Files(gate=None, up="mlp.gate_up_proj", gate_up_fused=True),
)
GLM4 = replace(
    GLM,
    taps=sequential("post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    norms={**GLM.norms, **writing("post_self_attn_layernorm", "post_mlp_layernorm")},
)
HUNYUAN_FILES = Files(qk_norm=("self_attn.query_layernorm", "self_attn.key_layernorm"))
HUNYUAN = replace(
    LLAMA,
    files=HUNYUAN_FILES,
    no_circuits="it normalises queries and keys after their rotation, so QK depends on both positions, not on the "
    "offset between them",
)
DIFFLLAMA = replace(
    LLAMA,
    no_head_site="two heads share what they put out: the difference of their attention patterns, times the values",
    no_circuits="a head subtracts two attention patterns, each with a QK of its own, and a norm divides the difference",
)
STABLELM = replace(
    LLAMA, norm_kind="layer", files=Files(qk_norm=("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}"))
)
