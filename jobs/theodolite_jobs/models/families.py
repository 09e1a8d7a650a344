"""The table of families: one record each, by `config.model_type`, proven against Hugging Face in tests/jobs/models.

Module paths are those of transformers; names on disk are those of published checkpoints, which may differ.
"""

from dataclasses import replace
from typing import Any

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Files, Tap, text_config_of
from theodolite_jobs.models.family_variants import VARIANTS
from theodolite_jobs.models.records.encoder_decoders import BART, MARIAN, MBART, PEGASUS, T5, UMT5
from theodolite_jobs.models.records.encoders import (
    ALBERT,
    BERT,
    BERT_GENERATION,
    DEBERTA,
    DEBERTA_V2,
    DISTILBERT,
    ELECTRA,
    GTE,
    JINA_EMBEDDINGS_V3,
    MEGATRON_BERT,
    MODERNBERT,
    MPNET,
    NOMIC_BERT,
    ROBERTA,
)
from theodolite_jobs.models.records.gpt import BLOOM, FALCON, GPT2, GPT_BIGCODE_FILES, GPT_NEOX, GPTJ, OPT
from theodolite_jobs.models.records.hybrids import (
    BAMBA,
    FALCON_H1,
    GRANITE_HYBRID,
    JAMBA,
    LFM2,
    LFM2_MOE,
    NEMOTRON_H,
    QWEN3_5,
    QWEN3_NEXT,
)
from theodolite_jobs.models.records.llama import (
    APERTUS,
    ARCEE,
    COHERE,
    DEEPSEEK,
    DIFFLLAMA,
    ERNIE_MOE,
    GEMMA,
    GEMMA2,
    GEMMA3,
    GEMMA4,
    GLM,
    GLM4,
    GLM4_MOE,
    GPT_OSS,
    GRANITE_MOE,
    GRANITE_SHARED,
    HUNYUAN,
    HUNYUAN_FILES,
    LLAMA,
    LLAMA4,
    MERGED,
    MIXTRAL,
    MIXTRAL_FILES,
    OLMO2,
    PHI,
    PHI3,
    QWEN2_MOE,
    QWEN3,
    QWEN3_FILES,
    QWEN3_MOE,
    QWEN3_MOE_FILES,
    STABLELM,
)
from theodolite_jobs.models.records.taps import reading, sequential

FAMILIES: dict[str, Anatomy] = {
    "albert": ALBERT,
    "apertus": APERTUS,
    "arcee": ARCEE,
    "bamba": BAMBA,
    "bart": BART,
    "bert": BERT,
    "bert-generation": BERT_GENERATION,
    "bloom": BLOOM,
    "camembert": ROBERTA,
    "cohere": COHERE,
    "cohere2": COHERE,
    "cwm": LLAMA,
    "data2vec-text": ROBERTA,
    "deberta": DEBERTA,
    "deberta-v2": DEBERTA_V2,
    "deepseek_v2": DEEPSEEK,
    "deepseek_v3": DEEPSEEK,
    "diffllama": DIFFLLAMA,
    "distilbert": DISTILBERT,
    "dots1": GLM4_MOE,
    "electra": ELECTRA,
    "ernie": BERT,
    "ernie4_5": replace(LLAMA, positions="rotary, interleaved"),
    "ernie4_5_moe": ERNIE_MOE,
    "eurobert": replace(LLAMA, causal=False),
    "exaone4": OLMO2,
    "falcon": FALCON,
    "falcon_h1": FALCON_H1,
    "flex_olmo": replace(OLMO2, files=QWEN3_MOE_FILES),
    "gemma": GEMMA,
    "gemma2": GEMMA2,
    "gemma3_text": GEMMA3,
    "gemma4_text": GEMMA4,
    "gemma4_unified_text": GEMMA4,
    "glm": GLM,
    "glm4": GLM4,
    "glm4_moe": GLM4_MOE,
    "glm4_moe_lite": DEEPSEEK,
    "gpt2": GPT2,
    "gpt_bigcode": replace(GPT2, files=GPT_BIGCODE_FILES),
    "gpt_neox": GPT_NEOX,
    "gpt_oss": GPT_OSS,
    "gptj": GPTJ,
    "granite": LLAMA,
    "granitemoe": GRANITE_MOE,
    "granitemoehybrid": GRANITE_HYBRID,
    "granitemoeshared": GRANITE_SHARED,
    "gte": GTE,
    "helium": replace(LLAMA, positions="rotary, interleaved"),
    "hunyuan_v1_dense": HUNYUAN,
    "hunyuan_v1_moe": replace(
        HUNYUAN, files=replace(HUNYUAN_FILES, experts="mlp.experts.{}.", merged=MERGED, shared_expert="mlp.shared_mlp.")
    ),
    "jais2": replace(ARCEE, norm_kind="layer"),
    "jamba": JAMBA,
    "jina_embeddings_v3": JINA_EMBEDDINGS_V3,
    "lfm2": LFM2,
    "lfm2_moe": LFM2_MOE,
    "llama": LLAMA,
    "llama4_text": LLAMA4,
    "m2m_100": PEGASUS,
    "marian": MARIAN,
    "mbart": MBART,
    "megatron-bert": MEGATRON_BERT,
    "minimax_m2": replace(MIXTRAL, files=replace(MIXTRAL_FILES, qk_norm=QWEN3_FILES.qk_norm)),
    "ministral": LLAMA,
    "ministral3": LLAMA,
    "mistral": LLAMA,
    "mixtral": MIXTRAL,
    "modernbert": MODERNBERT,
    "mpnet": MPNET,
    "mt5": T5,
    "nemotron": replace(ARCEE, norm_kind="layer", norm_offset=1.0),
    "nemotron_h": NEMOTRON_H,
    "nomic_bert": NOMIC_BERT,
    "olmo": replace(LLAMA, norm_kind="layer"),
    "olmo2": OLMO2,
    "olmo3": OLMO2,
    "olmoe": QWEN3_MOE,
    "opt": OPT,
    "pegasus": PEGASUS,
    "phi": PHI,
    "phi3": PHI3,
    "phimoe": replace(MIXTRAL, norm_kind="layer"),
    "plbart": BART,
    "qwen2": LLAMA,
    "qwen2_5_vl_text": LLAMA,
    "qwen2_moe": QWEN2_MOE,
    "qwen2_vl_text": LLAMA,
    "qwen3": QWEN3,
    "qwen3_5_moe_text": QWEN3_NEXT,
    "qwen3_5_text": QWEN3_5,
    "qwen3_moe": QWEN3_MOE,
    "qwen3_next": QWEN3_NEXT,
    "qwen3_vl_text": QWEN3,
    "roberta": ROBERTA,
    "seed_oss": LLAMA,
    "smollm3": LLAMA,
    "stablelm": STABLELM,
    "starcoder2": replace(LLAMA, norm_kind="layer", files=Files(gate=None, up="mlp.c_fc", down="mlp.c_proj")),
    "t5": T5,
    "umt5": UMT5,
    "vaultgemma": replace(
        GEMMA,
        taps=sequential("pre_feedforward_layernorm", "self_attn", "mlp"),
        norms=reading("input_layernorm", "pre_feedforward_layernorm"),
    ),
    "xlm-roberta": ROBERTA,
}
"""The records, by the `model_type` of the text configuration."""


REFUSED = {
    "gemma3n_text": "its blocks pass on several streams (AltUp), and a survey needs a model with one",
    "minimax": "its blocks replace the stream by its norm before they add to it, so it has no residual stream",
}
"""The reasons why families cannot be surveyed, where a probe would not find them."""


def with_head_site(record: Anatomy) -> Anatomy:
    """Return a record with the site `head_out` in the blocks with `attn_out`, if the output projection is known."""
    if record.files is None or record.no_head_site:
        return record
    tap = Tap(record.files.output, "input")
    if Site.ATTN_OUT in record.partial:
        return replace(
            record,
            partial={**record.partial, Site.HEAD_OUT: replace(record.partial[Site.ATTN_OUT], tap=tap)},
        )
    if Site.ATTN_OUT not in record.taps:
        return record
    return replace(record, taps={**record.taps, Site.HEAD_OUT: tap})


def is_encoder_alone(config: Any) -> bool:
    """Return whether a model is surveyed as its encoder, because its family has a decoder too."""
    record = FAMILIES.get(config.model_type)
    return record is not None and record.encoder_alone


def text_model_of(config: Any) -> str | None:
    """Return the surveyed part of a model: `encoder`, or the family of a multimodal model's text part, or None."""
    if is_encoder_alone(config):
        return "encoder"
    text = text_config_of(config)
    return None if text is config else str(text.model_type)


def known_anatomy(config: Any) -> Anatomy | None:
    """Return a family's record, adapted to the configuration; None for a family that is not in the table.

    A multimodal model has the record of its text part, and an encoder with a decoder that of the encoder.

    Raises:
        UnsupportedModelError: an option of the configuration makes blocks whose sites cannot be read, or the family
            has no such blocks; or a model with a decoder has no record of its encoder.
    """
    text = text_config_of(config)
    family = text.model_type
    with_decoder = any(is_encoder_alone(one) or getattr(one, "is_encoder_decoder", False) for one in (config, text))
    if with_decoder and not (text is config and is_encoder_alone(config)):
        surveyed = ", ".join(name for name, record in FAMILIES.items() if record.encoder_alone)
        raise UnsupportedModelError(
            f"{config.model_type!r} has two residual streams (encoder and decoder), and no record of its encoder; use "
            f"a model of a family whose encoder is surveyed: {surveyed}"
        )
    if is_encoder_alone(config) and getattr(config, "is_decoder", False) and not config.is_encoder_decoder:
        raise UnsupportedModelError(
            f"{config.model_type!r} with is_decoder is a decoder alone; its family is surveyed as its encoder, so use "
            "a checkpoint with the encoder"
        )
    if family in REFUSED:
        raise UnsupportedModelError(f"{family!r} cannot be surveyed: {REFUSED[family]}")
    of_layers = getattr(text, "per_layer_attributes", None) or ()  # settings that only single layers have
    windows = "sliding_attention" in (getattr(text, "layer_types", None) or ()) and "sliding_window" not in of_layers
    if windows and getattr(text, "sliding_window", None) == 0:
        raise UnsupportedModelError(
            f"{family!r} has layers with a sliding window of 0 tokens, in which no token attends to any; in "
            "config.json, set use_sliding_window to true, or each of layer_types to full_attention"
        )
    record = FAMILIES.get(family)
    if record is None:
        return None
    vary = VARIANTS.get(family)
    record = with_head_site(vary(record, text) if vary else record)
    # Gemma 4 says `vision` if only the tokens of images attend to later tokens, and prompts contain none.
    to_later = getattr(text, "use_bidirectional_attention", None) in (True, "all")
    if to_later or getattr(text, "is_causal", True) is False:
        return replace(record, causal=False)  # a decoder that was made an encoder
    return record
