"""The encoders of models that also have a decoder: T5, BART and their relatives."""

from dataclasses import replace

from theodolite_jobs.models.anatomy import Anatomy, Files
from theodolite_jobs.models.records.taps import after_sum, reading, sequential, writing

_TABLES = ("encoder.embed_tokens", "shared", "decoder.embed_tokens")

T5_FILES = Files(
    embedding="shared",
    own_embeddings=_TABLES,
    unembedding="shared",  # the head reads the decoder
    block="encoder.block.{}.",
    qkv=tuple(f"layer.0.SelfAttention.{name}" for name in "qkv"),
    output="layer.0.SelfAttention.o",
    gate="layer.1.DenseReluDense.wi_0",
    up="layer.1.DenseReluDense.wi_1",
    down="layer.1.DenseReluDense.wo",
    stored={"final_layer_norm": "encoder.final_layer_norm"},
    in_first_block="layer.0.SelfAttention.relative_attention_bias",
)
T5 = Anatomy(
    blocks="block",
    taps=sequential("layer.1.layer_norm", "layer.0.SelfAttention", "layer.1.DenseReluDense"),
    norms=reading("layer.0.layer_norm", "layer.1.layer_norm"),
    final_norm="final_layer_norm",
    positions="relative",
    causal=False,
    encoder_alone=True,
    files=T5_FILES,
)
UMT5 = replace(T5, files=replace(T5_FILES, in_first_block=None))
BART_FILES = Files(
    embedding="shared",
    own_embeddings=_TABLES,
    unembedding="shared",  # the head reads the decoder
    block="encoder.layers.{}.",
    output="self_attn.out_proj",
    gate=None,
    up="fc1",
    down="fc2",
    stored={"layernorm_embedding": "encoder.layernorm_embedding", "layer_norm": "encoder.layer_norm"},
)
BART = Anatomy(
    blocks="layers",
    taps=after_sum("self_attn_layer_norm", "self_attn", "fc2"),
    norms=writing("self_attn_layer_norm", "final_layer_norm"),
    embedding_norm="layernorm_embedding",
    norm_kind="layer",
    positions="learned",
    post_norm=True,
    causal=False,
    encoder_alone=True,
    files=BART_FILES,
)
MARIAN = replace(BART, embedding_norm=None, positions="sinusoidal")
MBART = replace(
    BART,
    taps=sequential("final_layer_norm", "self_attn", "fc2"),
    norms=reading("self_attn_layer_norm", "final_layer_norm"),
    final_norm="layer_norm",
    post_norm=False,
)
PEGASUS = replace(MBART, embedding_norm=None, positions="sinusoidal")
