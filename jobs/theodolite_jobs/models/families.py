"""The table of families: one record each, by `config.model_type`, proven against Hugging Face in tests/jobs/models.

Module paths are those of transformers; names on disk are those of published checkpoints, which may differ.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models.anatomy import Anatomy, Files, MergedExperts, Tap, text_config_of

_STREAM = {Site.RESID_PRE: Tap("", "input"), Site.RESID_POST: Tap("", "output")}


def _in_parallel(attention: str, mlp: str, scale: float = 1.0) -> dict[Site, Tap]:
    """Return the taps of a block whose attention and MLP both read the block's input; `scale` multiplies both."""
    return {**_STREAM, Site.ATTN_OUT: Tap(attention, "output", scale), Site.MLP_OUT: Tap(mlp, "output", scale)}


def _sequential(mid: str, attention: str, mlp: str, scale: float = 1.0) -> dict[Site, Tap]:
    """Return the taps of a block that adds attention, then the MLP; the input of `mid` is the sum in between."""
    return {**_in_parallel(attention, mlp, scale), Site.RESID_MID: Tap(mid, "input")}


def _after_sum(norm: str, attention: str, mlp: str) -> dict[Site, Tap]:
    """Return the taps of a post-norm block: `norm` maps the sum of stream and attention to the next stream."""
    sums = {Site.RESID_MID: Tap(norm, "output"), Site.RESID_MID_SUM: Tap(norm, "input")}
    return {**_in_parallel(attention, mlp), **sums}


def _reading(attention: str, mlp: str) -> dict[str, str]:
    """Return the norms on the input of attention and of the MLP."""
    return {"attention": attention, "mlp": mlp}


def _writing(attention: str, mlp: str) -> dict[str, str]:
    """Return the norms on the output of attention and of the MLP, or on its sum with the stream."""
    return {"attention_output": attention, "mlp_output": mlp}


_LLAMA = Anatomy(
    blocks="layers",
    taps=_sequential("post_attention_layernorm", "self_attn", "mlp"),
    norms=_reading("input_layernorm", "post_attention_layernorm"),
    final_norm="norm",
    files=Files(),
)
_QWEN3_FILES = Files(qk_norm=("self_attn.q_norm", "self_attn.k_norm"))
_QWEN3 = replace(_LLAMA, files=_QWEN3_FILES)
_MIXTRAL_FILES = Files(experts="block_sparse_moe.experts.{}.", gate="w1", up="w3", down="w2")
_MIXTRAL = replace(_LLAMA, files=_MIXTRAL_FILES)
_QWEN2_MOE = replace(_LLAMA, files=Files(experts="mlp.experts.{}.", shared_expert="mlp.shared_expert."))
_QWEN3_MOE_FILES = replace(_QWEN3_FILES, experts="mlp.experts.{}.")
_QWEN3_MOE = replace(_LLAMA, files=_QWEN3_MOE_FILES)
_GLM4_MOE = replace(_LLAMA, files=replace(_QWEN3_MOE_FILES, shared_expert="mlp.shared_experts."))
_ERNIE_MOE = replace(
    _LLAMA,
    positions="rotary, interleaved",
    files=Files(experts="mlp.experts.{}.", shared_expert="mlp.shared_experts."),
)
_DEEPSEEK = replace(
    _LLAMA,
    positions="rotary, interleaved",
    files=Files(qkv=(), latent=True, experts="mlp.experts.{}.", shared_expert="mlp.shared_experts."),
    no_words="multi-head latent attention divides the values of each token by a norm that its circuits leave out",
)
_GPT_OSS = replace(
    _LLAMA,
    files=Files(
        sinks="self_attn.sinks",
        experts=MergedExperts(
            "mlp.experts.gate_up_proj", "mlp.experts.down_proj", "expert, in, out", interleaved=True, bias="_bias"
        ),
    ),
)
_GRANITE_MOE = replace(
    _LLAMA,
    files=Files(
        experts=MergedExperts(
            "block_sparse_moe.input_linear.weight", "block_sparse_moe.output_linear.weight", "expert, out, in"
        )
    ),
)
_LLAMA4 = replace(
    _LLAMA,
    taps=_sequential("post_attention_layernorm", "self_attn", "feed_forward"),
    positions="rotary, interleaved",
    files=Files(
        gate="feed_forward.gate_proj",
        up="feed_forward.up_proj",
        down="feed_forward.down_proj",
        experts=MergedExperts("feed_forward.experts.gate_up_proj", "feed_forward.experts.down_proj", "expert, in, out"),
        shared_expert="feed_forward.shared_expert.",
    ),
)
_PHI3 = replace(
    _LLAMA,
    files=Files(
        qkv=("self_attn.qkv_proj",), qkv_layout="concatenated", gate=None, up="mlp.gate_up_proj", gate_up_fused=True
    ),
)
_GEMMA = replace(_LLAMA, norm_offset=1.0)
_GEMMA2 = replace(
    _GEMMA,
    taps=_sequential("pre_feedforward_layernorm", "post_attention_layernorm", "post_feedforward_layernorm"),
    norms={
        "attention": "input_layernorm",
        "attention_output": "post_attention_layernorm",
        "mlp": "pre_feedforward_layernorm",
        "mlp_output": "post_feedforward_layernorm",
    },
)
_GEMMA3 = replace(_GEMMA2, files=_QWEN3_FILES)
_OLMO2 = replace(
    _QWEN3,
    taps=_sequential("mlp", "post_attention_layernorm", "post_feedforward_layernorm"),
    norms=_writing("post_attention_layernorm", "post_feedforward_layernorm"),
)
_COHERE = replace(
    _QWEN3,
    taps=_in_parallel("self_attn", "mlp"),
    norms=_reading("input_layernorm", "input_layernorm"),
    norm_kind="layer",
    positions="rotary, interleaved",
)
_PHI = replace(
    _COHERE,
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
_ARCEE = replace(_LLAMA, files=Files(gate=None))
_APERTUS = replace(
    _LLAMA,
    taps=_sequential("feedforward_layernorm", "self_attn", "mlp"),
    norms=_reading("attention_layernorm", "feedforward_layernorm"),
    files=replace(_QWEN3_FILES, gate=None),
)
_GLM = replace(
    _LLAMA,
    positions="rotary, interleaved",
    files=Files(gate=None, up="mlp.gate_up_proj", gate_up_fused=True),
)
_GLM4 = replace(
    _GLM,
    taps=_sequential("post_attention_layernorm", "post_self_attn_layernorm", "post_mlp_layernorm"),
    norms={**_GLM.norms, **_writing("post_self_attn_layernorm", "post_mlp_layernorm")},
)
_HUNYUAN_FILES = Files(qk_norm=("self_attn.query_layernorm", "self_attn.key_layernorm"))
_HUNYUAN = replace(
    _LLAMA,
    files=_HUNYUAN_FILES,
    no_circuits="it normalises queries and keys after their rotation, so QK depends on both positions, not on the "
    "offset between them",
)
_STABLELM = replace(
    _LLAMA, norm_kind="layer", files=Files(qk_norm=("self_attn.q_layernorm.norms.{}", "self_attn.k_layernorm.norms.{}"))
)
_GPT2_FILES = Files(
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
_GPT_BIGCODE_FILES = replace(_GPT2_FILES, transposed=False)
_GPT2 = Anatomy(
    blocks="h",
    taps=_sequential("ln_2", "attn", "mlp"),
    norms=_reading("ln_1", "ln_2"),
    final_norm="ln_f",
    norm_kind="layer",
    positions="learned",
    files=_GPT2_FILES,
)
_GPTJ = replace(
    _GPT2,
    taps=_in_parallel("attn", "mlp"),
    norms=_reading("ln_1", "ln_1"),
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
_GPT_NEOX_FILES = Files(
    embedding="embed_in",
    unembedding="embed_out",
    qkv=("attention.query_key_value",),
    qkv_layout="grouped",
    output="attention.dense",
    gate=None,
    up="mlp.dense_h_to_4h",
    down="mlp.dense_4h_to_h",
)
_GPT_NEOX = replace(
    _LLAMA,
    taps=_sequential("post_attention_layernorm", "attention", "mlp"),
    final_norm="final_layer_norm",
    norm_kind="layer",
    files=_GPT_NEOX_FILES,
)
_FALCON = replace(
    _GPT_NEOX,
    blocks="h",
    taps=_sequential("post_attention_layernorm", "self_attention", "mlp"),
    final_norm="ln_f",
    files=replace(
        _GPT_NEOX_FILES,
        embedding="word_embeddings",
        unembedding="lm_head",
        block="h.{}.",
        qkv=("self_attention.query_key_value",),
        output="self_attention.dense",
    ),
)
_BLOOM = replace(
    _FALCON,
    # Both modules add the residual themselves; the outputs of their last projections do not include it.
    taps=_sequential("post_attention_layernorm", "self_attention.dense", "mlp.dense_4h_to_h"),
    embedding_norm="word_embeddings_layernorm",
    positions="ALiBi",
)
_OPT = Anatomy(
    blocks="decoder.layers",
    taps=_sequential("final_layer_norm", "self_attn", "fc2"),
    norms=_reading("self_attn_layer_norm", "final_layer_norm"),
    final_norm="decoder.final_layer_norm",
    norm_kind="layer",
    positions="learned",
    files=Files(output="self_attn.out_proj", gate=None, up="fc1", down="fc2"),
)
_BERT_FILES = Files(
    embedding="embeddings.word_embeddings",
    unembedding="cls.predictions.decoder",
    block="encoder.layer.{}.",
    qkv=("attention.self.query", "attention.self.key", "attention.self.value"),
    output="attention.output.dense",
    gate=None,
    up="intermediate.dense",
    down="output.dense",
)
_BERT = Anatomy(
    blocks="encoder.layer",
    taps=_after_sum("attention.output.LayerNorm", "attention.output.dense", "output.dense"),
    norms=_writing("attention.output.LayerNorm", "output.LayerNorm"),
    embedding_norm="embeddings.LayerNorm",
    norm_kind="layer",
    positions="learned",
    post_norm=True,
    causal=False,
    load_options={"add_pooling_layer": False},
    files=_BERT_FILES,
)
_ROBERTA = replace(_BERT, files=replace(_BERT_FILES, unembedding="lm_head.decoder"))
_MPNET = replace(
    _BERT,
    taps=_after_sum("attention.LayerNorm", "attention.attn", "output.dense"),
    norms=_writing("attention.LayerNorm", "output.LayerNorm"),
    positions="learned and relative",
    files=replace(
        _BERT_FILES,
        unembedding="lm_head.decoder",
        qkv=("attention.attn.q", "attention.attn.k", "attention.attn.v"),
        output="attention.attn.o",
    ),
)
_ELECTRA = replace(_BERT, load_options={}, files=replace(_BERT_FILES, unembedding="generator_lm_head"))
_DISTILBERT = replace(
    _BERT,
    blocks="transformer.layer",
    taps=_after_sum("sa_layer_norm", "attention", "ffn"),
    norms=_writing("sa_layer_norm", "output_layer_norm"),
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
_MODERNBERT = Anatomy(
    blocks="layers",
    taps=_sequential("mlp_norm", "attn", "mlp"),
    norms=_reading("attn_norm", "mlp_norm"),
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
_NOMIC_BERT = replace(
    _BERT,
    blocks="layers",
    taps=_after_sum("post_attention_layernorm", "self_attn", "mlp"),
    norms=_writing("post_attention_layernorm", "post_mlp_layernorm"),
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


FAMILIES: dict[str, Anatomy] = {
    "apertus": _APERTUS,
    "arcee": _ARCEE,
    "bert": _BERT,
    "bloom": _BLOOM,
    "camembert": _ROBERTA,
    "cohere": _COHERE,
    "cohere2": _COHERE,
    "cwm": _LLAMA,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "distilbert": _DISTILBERT,
    "dots1": _GLM4_MOE,
    "electra": _ELECTRA,
    "ernie4_5": replace(_LLAMA, positions="rotary, interleaved"),
    "ernie4_5_moe": _ERNIE_MOE,
    "eurobert": replace(_LLAMA, causal=False),
    "exaone4": _OLMO2,
    "falcon": _FALCON,
    "flex_olmo": replace(_OLMO2, files=_QWEN3_MOE_FILES),
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "glm": _GLM,
    "glm4": _GLM4,
    "glm4_moe": _GLM4_MOE,
    "glm4_moe_lite": _DEEPSEEK,
    "gpt2": _GPT2,
    "gpt_bigcode": replace(_GPT2, files=_GPT_BIGCODE_FILES),
    "gpt_neox": _GPT_NEOX,
    "gpt_oss": _GPT_OSS,
    "gptj": _GPTJ,
    "granite": _LLAMA,
    "granitemoe": _GRANITE_MOE,
    "helium": replace(_LLAMA, positions="rotary, interleaved"),
    "hunyuan_v1_dense": _HUNYUAN,
    "hunyuan_v1_moe": replace(
        _HUNYUAN, files=replace(_HUNYUAN_FILES, experts="mlp.experts.{}.", shared_expert="mlp.shared_mlp.")
    ),
    "jais2": replace(_ARCEE, norm_kind="layer"),
    "llama": _LLAMA,
    "llama4_text": _LLAMA4,
    "minimax_m2": replace(_MIXTRAL, files=replace(_MIXTRAL_FILES, qk_norm=_QWEN3_FILES.qk_norm)),
    "ministral": _LLAMA,
    "ministral3": _LLAMA,
    "mistral": _LLAMA,
    "mixtral": _MIXTRAL,
    "modernbert": _MODERNBERT,
    "mpnet": _MPNET,
    "nemotron": replace(_ARCEE, norm_kind="layer", norm_offset=1.0),
    "nomic_bert": _NOMIC_BERT,
    "olmo": replace(_LLAMA, norm_kind="layer"),
    "olmo2": _OLMO2,
    "olmo3": _OLMO2,
    "olmoe": _QWEN3_MOE,
    "opt": _OPT,
    "phi": _PHI,
    "phi3": _PHI3,
    "phimoe": replace(_MIXTRAL, norm_kind="layer"),
    "qwen2": _LLAMA,
    "qwen2_5_vl_text": _LLAMA,
    "qwen2_moe": _QWEN2_MOE,
    "qwen2_vl_text": _LLAMA,
    "qwen3": _QWEN3,
    "qwen3_moe": _QWEN3_MOE,
    "qwen3_vl_text": _QWEN3,
    "roberta": _ROBERTA,
    "seed_oss": _LLAMA,
    "smollm3": _LLAMA,
    "stablelm": _STABLELM,
    "starcoder2": replace(_LLAMA, norm_kind="layer", files=Files(gate=None, up="mlp.c_fc", down="mlp.c_proj")),
    "vaultgemma": replace(
        _GEMMA,
        taps=_sequential("pre_feedforward_layernorm", "self_attn", "mlp"),
        norms=_reading("input_layernorm", "pre_feedforward_layernorm"),
    ),
    "xlm-roberta": _ROBERTA,
}
"""The records, by the `model_type` of the text configuration."""


def _bloom(record: Anatomy, config: Any) -> Anatomy:
    if config.apply_residual_connection_post_layernorm:
        raise UnsupportedModelError(
            "BLOOM with apply_residual_connection_post_layernorm adds each branch to a normalised stream, "
            "so it has no residual stream; use another model"
        )
    if config.pretraining_tp > 1 and config.slow_but_exact:
        raise UnsupportedModelError("BLOOM with slow_but_exact sums its projections in slices; set it to false")
    return record


def _cohere2(record: Anatomy, config: Any) -> Anatomy:
    full = [layer for layer, kind in enumerate(config.layer_types) if kind == "full_attention"]
    return replace(record, layers_without_rotary=tuple(full))


def _dense_first(record: Anatomy, config: Any) -> Anatomy:
    if kinds := getattr(config, "mlp_layer_types", None):
        return replace(record, dense_layers=tuple(layer for layer, kind in enumerate(kinds) if kind == "dense"))
    return replace(record, dense_layers=tuple(range(min(config.first_k_dense_replace, config.num_hidden_layers))))


def _deepseek(record: Anatomy, config: Any) -> Anatomy:
    record = _dense_first(record, config)
    if config.qk_nope_head_dim > config.v_head_dim:
        return replace(record, no_circuits="the keys of a head are wider than its values")
    return record


def _ernie_moe(record: Anatomy, config: Any) -> Anatomy:
    first, last, interval = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    layers = range(config.num_hidden_layers)
    dense = tuple(layer for layer in layers if (layer + 1) % interval or not first <= layer <= last)
    shared = "mlp.shared_experts." if config.moe_num_shared_experts else None
    return replace(record, dense_layers=dense, files=Files(experts="mlp.experts.{}.", shared_expert=shared))


def _qwen_moe(record: Anatomy, config: Any) -> Anatomy:
    layers = range(config.num_hidden_layers)
    dense = (one for one in layers if one in config.mlp_only_layers or (one + 1) % config.decoder_sparse_step)
    return replace(record, dense_layers=tuple(dense))


def _exaone4(record: Anatomy, config: Any) -> Anatomy:
    return record if config.sliding_window is None else _cohere2(record, config)


def _falcon(record: Anatomy, config: Any) -> Anatomy:
    if config.alibi and config._attn_implementation == "eager":
        raise UnsupportedModelError(
            "transformers' eager attention adds Falcon's ALiBi twice; set model.attention to sdpa"
        )
    record = replace(record, positions="ALiBi" if config.alibi else "rotary")
    if not (config.parallel_attn or config.new_decoder_architecture):
        return record
    two = config.new_decoder_architecture and config.num_ln_in_parallel_attn in (None, 2)
    norms = _reading("ln_attn", "ln_mlp") if two else _reading("input_layernorm", "input_layernorm")
    return replace(record, taps=_in_parallel("self_attention", "mlp"), norms=norms)


def _gemma(record: Anatomy, config: Any) -> Anatomy:
    if config.use_bidirectional_attention:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot be surveyed with use_bidirectional_attention, as in PaliGemma: in "
            "transformers, its tokens attend to later tokens with sdpa, and do not with eager; use another model"
        )
    return record


def _gpt_bigcode(record: Anatomy, config: Any) -> Anatomy:
    layout: Literal["concatenated", "grouped"] = "concatenated" if config.multi_query else "grouped"
    return replace(record, files=replace(_GPT_BIGCODE_FILES, qkv_layout=layout))


def _gpt_neox(record: Anatomy, config: Any) -> Anatomy:
    return replace(record, taps=_in_parallel("attention", "mlp")) if config.use_parallel_residual else record


def _granite(record: Anatomy, config: Any) -> Anatomy:
    mlp = "block_sparse_moe" if config.model_type == "granitemoe" else "mlp"
    return replace(record, taps=_sequential("post_attention_layernorm", "self_attn", mlp, config.residual_multiplier))


def _llama4(record: Anatomy, config: Any) -> Anatomy:
    layers = range(config.num_hidden_layers)
    record = replace(_smollm3(record, config), dense_layers=tuple(set(layers) - set(config.moe_layers)))
    # The norm follows the rotation, which does not change it, because it has no scale.
    normed = set(layers) - set(record.layers_without_rotary) if config.use_qk_norm else ()
    return replace(record, unscaled_qk_norm=tuple(normed))


def _opt(record: Anatomy, config: Any) -> Anatomy:
    if config.do_layer_norm_before:
        return replace(record, final_norm=None) if config._remove_final_layer_norm else record
    return replace(
        record,
        taps=_after_sum("self_attn_layer_norm", "self_attn", "fc2"),
        norms=_writing("self_attn_layer_norm", "final_layer_norm"),
        final_norm=None,
        post_norm=True,
    )


def _smollm3(record: Anatomy, config: Any) -> Anatomy:
    # The list has a 1 for each layer with rotary positions.
    rotates = config.no_rope_layers[: config.num_hidden_layers]
    without = [layer for layer, one in enumerate(rotates) if not one]
    return replace(record, layers_without_rotary=tuple(without))


def _stablelm(record: Anatomy, config: Any) -> Anatomy:
    if not config.use_parallel_residual:
        return record
    return replace(record, taps=_in_parallel("self_attn", "mlp"), norms=_reading("input_layernorm", "input_layernorm"))


def _bert(record: Anatomy, config: Any) -> Anatomy:
    if config.chunk_size_feed_forward:
        raise UnsupportedModelError(
            "chunk_size_feed_forward runs the MLP on chunks of a prompt; set it to 0 in config.json"
        )
    return record


def _after_padding(record: Anatomy, config: Any) -> Anatomy:
    return replace(_bert(record, config), reserved_positions=config.pad_token_id + 1)


_VARIANTS: dict[str, Callable[[Anatomy, Any], Anatomy]] = {
    "bert": _bert,
    "bloom": _bloom,
    "camembert": _after_padding,
    "cohere2": _cohere2,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "distilbert": _bert,
    "dots1": _dense_first,
    "electra": _bert,
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "gemma": _gemma,
    "gemma2": _gemma,
    "glm4_moe": _dense_first,
    "glm4_moe_lite": _deepseek,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "granite": _granite,
    "granitemoe": _granite,
    "llama4_text": _llama4,
    "mpnet": _after_padding,
    "opt": _opt,
    "qwen2_moe": _qwen_moe,
    "qwen3_moe": _qwen_moe,
    "roberta": _after_padding,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "xlm-roberta": _after_padding,
}
"""Families whose blocks depend on their configuration."""


REFUSED = {
    "albert": "all its layers run the same block, and a survey needs a block of its own for each layer",
    "gemma3n_text": "its blocks pass on several streams (AltUp), and a survey needs a model with one",
    "minimax": "its blocks replace the stream by its norm before they add to it, so it has no residual stream",
}
"""The reasons why families cannot be surveyed, where a probe would not find them."""


def with_head_site(record: Anatomy) -> Anatomy:
    """Return a record with the site `head_out`, if the family's output projection is known."""
    if record.files is None:
        return record
    return replace(record, taps={**record.taps, Site.HEAD_OUT: Tap(record.files.output, "input")})


def known_anatomy(config: Any) -> Anatomy | None:
    """Return a family's record, adapted to the configuration; None for a family that is not in the table.

    A multimodal model has the record of its text part.

    Raises:
        UnsupportedModelError: an option of the configuration makes blocks whose sites cannot be read, or the family
            has no such blocks.
    """
    text = text_config_of(config)
    family = text.model_type
    if family in REFUSED:
        raise UnsupportedModelError(f"{family!r} cannot be surveyed: {REFUSED[family]}")
    if "sliding_attention" in (getattr(text, "layer_types", None) or ()) and getattr(text, "sliding_window", None) == 0:
        raise UnsupportedModelError(
            f"{family!r} has layers with a sliding window of 0 tokens, in which no token attends to any; in "
            "config.json, set use_sliding_window to true, or each of layer_types to full_attention"
        )
    record = FAMILIES.get(family)
    if record is None:
        return None
    vary = _VARIANTS.get(family)
    record = with_head_site(vary(record, text) if vary else record)
    if getattr(text, "use_bidirectional_attention", False) or getattr(text, "is_causal", True) is False:
        return replace(record, causal=False)  # a decoder that was made an encoder
    return record
