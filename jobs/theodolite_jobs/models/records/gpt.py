"""Older decoders: GPT-2, GPT-J, GPT-NeoX, Falcon, BLOOM and OPT."""

from dataclasses import replace

from theodolite_jobs.models.anatomy import Anatomy, Files
from theodolite_jobs.models.records.llama import LLAMA
from theodolite_jobs.models.records.taps import in_parallel, reading, sequential

GPT2_FILES = Files(
    embedding="wte",
    block="h.{}.",
    qkv=("attn.c_attn",),
    qkv_layout="concatenated",
    output="attn.c_proj",
    gate=None,
    up="mlp.c_fc",
    down="mlp.c_proj",
    transposed=True,
)
GPT_BIGCODE_FILES = replace(GPT2_FILES, transposed=False)
GPT2 = Anatomy(
    blocks="h",
    taps=sequential("ln_2", "attn", "mlp"),
    norms=reading("ln_1", "ln_2"),
    final_norm="ln_f",
    norm_kind="layer",
    positions="learned",
    files=GPT2_FILES,
)
GPTJ = replace(
    GPT2,
    taps=in_parallel("attn", "mlp"),
    norms=reading("ln_1", "ln_1"),
    positions="rotary, interleaved",
    files=Files(
        embedding="wte",
        block="h.{}.",
        qkv=("attn.q_proj", "attn.k_proj", "attn.v_proj"),
        output="attn.out_proj",
        gate=None,
        up="mlp.fc_in",
        down="mlp.fc_out",
    ),
)
GPT_NEOX_FILES = Files(
    embedding="embed_in",
    unembedding="embed_out",
    qkv=("attention.query_key_value",),
    qkv_layout="grouped",
    output="attention.dense",
    gate=None,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
GPT_NEOX = replace(
    LLAMA,
    taps=sequential("post_attention_layernorm", "attention", "mlp"),
    final_norm="final_layer_norm",
    norm_kind="layer",
    files=GPT_NEOX_FILES,
)
FALCON = replace(
    GPT_NEOX,
    blocks="h",
    taps=sequential("post_attention_layernorm", "self_attention", "mlp"),
    final_norm="ln_f",
    files=replace(
        GPT_NEOX_FILES,
        embedding="word_embeddings",
        unembedding="lm_head",
        block="h.{}.",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
    ),
)
BLOOM = replace(
    FALCON,
    # Both modules add the residual themselves; the outputs of their last projections do not include it.
    taps=sequential("post_attention_layernorm", "self_attention.dense", "mlp.dense_4h_to_h"),
    embedding_norm="word_embeddings_layernorm",
    positions="ALiBi",
)
OPT = Anatomy(
    blocks="decoder.layers",
    taps=sequential("final_layer_norm", "self_attn", "fc2"),
    norms=reading("self_attn_layer_norm", "final_layer_norm"),
    final_norm="decoder.final_layer_norm",
    norm_kind="layer",
    positions="learned",
    files=Files(output="self_attn.out_proj", gate=None, up="fc1", down="fc2"),
)
