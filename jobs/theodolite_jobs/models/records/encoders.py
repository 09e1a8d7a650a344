"""Encoders: BERT and its relatives, ModernBERT, and encoders with rotary positions."""

from dataclasses import replace

from theodolite_jobs.models.anatomy import Anatomy, Files
from theodolite_jobs.models.records.taps import after_sum, reading, sequential, writing

BERT_FILES = Files(
    embedding="embeddings.word_embeddings",
    unembedding="cls.predictions.decoder",
    block="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    gate=None,
    up="intermediate.dense",
    down="output.dense",
)
BERT = Anatomy(
    blocks="encoder.layer",
    taps=after_sum("attention.output.LayerNorm", "attention.output.dense", "output.dense"),
    norms=writing("attention.output.LayerNorm", "output.LayerNorm"),
    embedding_norm="embeddings.LayerNorm",
    norm_kind="layer",
    positions="learned",
    post_norm=True,
    causal=False,
    load_options={"add_pooling_layer": False},
    files=BERT_FILES,
)
ROBERTA = replace(BERT, files=replace(BERT_FILES, unembedding="lm_head.decoder"))
BERT_GENERATION = replace(ROBERTA, load_options={})
MEGATRON_BERT = replace(
    BERT,
    taps=sequential("ln", "attention.output.dense", "output.dense"),
    norms=reading("attention.ln", "ln"),
    final_norm="encoder.ln",
    embedding_norm=None,
    post_norm=False,
    files=replace(BERT_FILES, stored={"encoder.ln": "encoder.ln"}),
)
MPNET = replace(
    BERT,
    taps=after_sum("attention.LayerNorm", "attention.attn", "output.dense"),
    norms=writing("attention.LayerNorm", "output.LayerNorm"),
    positions="learned and relative",
    files=replace(
        BERT_FILES,
        unembedding="lm_head.decoder",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        output="attention.attn.o",
    ),
)
ELECTRA = replace(BERT, load_options={}, files=replace(BERT_FILES, unembedding="generator_lm_head"))
DISTILBERT = replace(
    BERT,
    blocks="transformer.layer",
    taps=after_sum("sa_layer_norm", "attention", "ffn"),
    norms=writing("sa_layer_norm", "output_layer_norm"),
    load_options={},
    files=Files(
        embedding="embeddings.word_embeddings",
        unembedding="vocab_projector",
        block="transformer.layer.{}.",
        qkv=("attention.q_lin", "attention.k_lin", "attention.v_lin"),
        output="attention.out_lin",
        gate=None,
        up="ffn.lin1",
        down="ffn.lin2",
    ),
)
ALBERT = replace(
    BERT,
    blocks="encoder.albert_layer_groups",
    taps=after_sum(
        "albert_layers.0.attention.LayerNorm", "albert_layers.0.attention.dense", "albert_layers.0.ffn_output"
    ),
    norms=writing("albert_layers.0.attention.LayerNorm", "albert_layers.0.full_layer_layer_norm"),
    projects_embeddings=True,
    no_words="a matrix maps its embeddings into the stream, so vectors cannot be decoded",
    files=Files(
        embedding="embeddings.word_embeddings",
        unembedding="predictions.decoder",
        block="encoder.albert_layer_groups.{}.",
        qkv=tuple(f"albert_layers.0.attention.{name}" for name in ("query", "key", "value")),
        output="albert_layers.0.attention.dense",
        gate=None,
        up="albert_layers.0.ffn",
        down="albert_layers.0.ffn_output",
    ),
)
DEBERTA_V2 = replace(
    BERT,
    load_options={},
    files=replace(
        BERT_FILES, qkv=("attention.self.query_proj", "attention.self.key_proj", "attention.self.value_proj")
    ),
)
DEBERTA = replace(
    DEBERTA_V2,
    files=replace(
        BERT_FILES,
        qkv=("attention.self.in_proj",),
        qkv_layout="grouped",
        query_and_value_bias=("attention.self.q_bias", "attention.self.v_bias"),
    ),
)
MODERNBERT = Anatomy(
    blocks="layers",
    taps=sequential("mlp_norm", "attn", "mlp"),
    norms=reading("attn_norm", "mlp_norm"),
    final_norm="final_norm",
    embedding_norm="embeddings.norm",
    norm_kind="layer",
    unnormed_layers=(0,),
    causal=False,
    files=Files(
        embedding="embeddings.tok_embeddings",
        unembedding="decoder",
        qkv=("attn.Wqkv",),
        qkv_layout="concatenated",
        output="attn.Wo",
        gate=None,
        up="mlp.Wi",
        down="mlp.Wo",
        gate_up_fused=True,
    ),
)
NOMIC_BERT = replace(
    BERT,
    blocks="layers",
    taps=after_sum("post_attention_layernorm", "self_attn", "mlp"),
    norms=writing("post_attention_layernorm", "post_mlp_layernorm"),
    positions="rotary",
    files=Files(
        embedding="embeddings.word_embeddings",
        unembedding="cls.predictions.decoder",
        block="encoder.layers.{}.",
        qkv=("attn.Wqkv",),
        qkv_layout="concatenated",
        stored={
            "embeddings.LayerNorm": "emb_ln",
            "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
            "self_attn.o_proj": "attn.out_proj",
            "mlp.gate_proj": "mlp.fc12",
            "mlp.up_proj": "mlp.fc11",
            "mlp.down_proj": "mlp.fc2",
        },
    ),
)
GTE = replace(
    NOMIC_BERT,
    files=Files(
        embedding="embeddings.word_embeddings",
        unembedding="lm_head.decoder",
        block="encoder.layer.{}.",
        qkv=("attention.qkv_proj",),
        qkv_layout="concatenated",
        output="self_attn.o_proj",
        up_and_gate="mlp.up_gate_proj",
        stored={
            "post_attention_layernorm": "attn_ln",
            "post_mlp_layernorm": "mlp_ln",
            "self_attn.o_proj": "attention.o_proj",
        },
    ),
)
JINA_EMBEDDINGS_V3 = replace(
    NOMIC_BERT,
    files=Files(
        embedding="embeddings.word_embeddings",
        unembedding="lm_head.decoder",
        block="encoder.layers.{}.",
        qkv=("mixer.Wqkv",),
        qkv_layout="concatenated",
        gate=None,
        up="mlp.fc1",
        down="mlp.fc2",
        stored={
            "embeddings.LayerNorm": "emb_ln",
            "post_attention_layernorm": "norm1",
            "post_mlp_layernorm": "norm2",
            "self_attn.o_proj": "mixer.out_proj",
        },
    ),
)
