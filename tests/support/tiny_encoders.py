"""Configurations of tiny encoders, one for each family and each kind of block in it."""

from typing import Any

from support.tiny_sizes import (
    BUCKETS,
    ENCODER,
    FEW_BUCKETS,
    PLAIN,
    RELATIVE,
    ROTARY,
    SLIDING,
    T5,
    WIDE,
    WIDE_HEADS,
)
from transformers import (
    AlbertConfig,
    BertConfig,
    BertGenerationConfig,
    CamembertConfig,
    Data2VecTextConfig,
    DebertaConfig,
    DebertaV2Config,
    DistilBertConfig,
    ElectraConfig,
    ErnieConfig,
    EuroBertConfig,
    GteConfig,
    JinaEmbeddingsV3Config,
    MegatronBertConfig,
    ModernBertConfig,
    MPNetConfig,
    MT5Config,
    NomicBertConfig,
    RobertaConfig,
    T5Config,
    UMT5Config,
    XLMRobertaConfig,
)

ENCODERS: dict[str, Any] = {
    "albert": AlbertConfig(**PLAIN, embedding_size=32),
    "albert-groups": AlbertConfig(**PLAIN, embedding_size=48, num_hidden_groups=2),
    "bert": BertConfig(**PLAIN),
    "bert-generation": BertGenerationConfig(**PLAIN),
    "camembert": CamembertConfig(**ENCODER),
    "data2vec-text": Data2VecTextConfig(**ENCODER),
    "deberta": DebertaConfig(**PLAIN, **RELATIVE, position_biased_input=False),
    "deberta-learned": DebertaConfig(**PLAIN, type_vocab_size=2),
    "deberta-v2": DebertaV2Config(**PLAIN, **RELATIVE),
    "deberta-v2-buckets": DebertaV2Config(
        **PLAIN,
        **RELATIVE,
        **BUCKETS,
        position_biased_input=False,
    ),
    "distilbert": DistilBertConfig(
        vocab_size=64, dim=48, hidden_dim=80, n_layers=5, n_heads=4, max_position_embeddings=128, pad_token_id=0
    ),
    "electra": ElectraConfig(**PLAIN, embedding_size=48),
    "electra-projected": ElectraConfig(**PLAIN, embedding_size=32),
    "ernie": ErnieConfig(**PLAIN, use_task_id=True),
    "eurobert": EuroBertConfig(**WIDE, attention_bias=True, mlp_bias=True, rope_parameters=ROTARY),
    "gte": GteConfig(**ENCODER, rope_parameters=ROTARY),
    "jina_embeddings_v3": JinaEmbeddingsV3Config(**ENCODER, rope_parameters=ROTARY),
    "megatron-bert": MegatronBertConfig(**PLAIN),
    "modernbert": ModernBertConfig(
        **PLAIN, norm_bias=True, attention_bias=True, mlp_bias=True, layer_types=SLIDING, local_attention=16
    ),
    "mpnet": MPNetConfig(**ENCODER),
    "mt5": MT5Config(**T5, feed_forward_proj="gated-gelu"),
    "nomic_bert": NomicBertConfig(**PLAIN, rope_parameters=ROTARY),
    "roberta": RobertaConfig(**ENCODER),
    "t5": T5Config(**T5),
    "t5-gated": T5Config(**T5 | WIDE_HEADS | FEW_BUCKETS, feed_forward_proj="gated-silu"),
    "umt5": UMT5Config(**T5 | WIDE_HEADS | FEW_BUCKETS),
    "umt5-plain": UMT5Config(**T5, feed_forward_proj="relu"),
    "xlm-roberta": XLMRobertaConfig(**ENCODER),
}
