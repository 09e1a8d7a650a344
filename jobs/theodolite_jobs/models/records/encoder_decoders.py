"""The encoders of models that also have a decoder: T5 and its relatives."""

from dataclasses import replace

from theodolite_jobs.models.anatomy import Anatomy, Files
from theodolite_jobs.models.records.taps import reading, sequential

T5_FILES = Files(
    embedding="shared",
    own_embedding="encoder.embed_tokens",
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
