"""How the blocks of some families depend on their configuration."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.models import encoder_variants
from theodolite_jobs.models.anatomy import Anatomy, Files, MergedExperts
from theodolite_jobs.models.records.gpt import GPT_BIGCODE_FILES
from theodolite_jobs.models.records.hybrids import with_layers, with_some
from theodolite_jobs.models.records.llama import GRANITE_MOE, MERGED, QWEN3_FILES
from theodolite_jobs.models.records.taps import after_sum, in_parallel, reading, writing

Variant = Callable[[Anatomy, Any], Anatomy]
"""Returns a family's record, adapted to a configuration."""


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
    # The code of DeepSeek-V2 does not read this setting.
    if config.model_type != "deepseek_v2" and not getattr(config, "rope_interleave", True):
        record = replace(record, positions="rotary")
    if config.qk_nope_head_dim > config.v_head_dim:
        return replace(record, no_circuits="the keys of a head are wider than its values")
    return record


def _ernie_moe(record: Anatomy, config: Any) -> Anatomy:
    first, last, interval = config.moe_layer_start_index, config.moe_layer_end_index, config.moe_layer_interval
    layers = range(config.num_hidden_layers)
    dense = tuple(layer for layer in layers if (layer + 1) % interval or not first <= layer <= last)
    shared = "mlp.shared_experts." if config.moe_num_shared_experts else None
    return replace(
        record, dense_layers=dense, files=Files(experts="mlp.experts.{}.", merged=MERGED, shared_expert=shared)
    )


def _qwen_moe(record: Anatomy, config: Any) -> Anatomy:
    layers = range(config.num_hidden_layers)
    dense = (one for one in layers if one in config.mlp_only_layers or (one + 1) % config.decoder_sparse_step)
    return replace(record, dense_layers=tuple(dense))


def _qwen3_next(record: Anatomy, config: Any) -> Anatomy:
    return _hybrid(_qwen_moe(record, config), config)


def _hybrid(record: Anatomy, config: Any) -> Anatomy:
    return with_layers(record, config.layer_types[: config.num_hidden_layers])


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
    norms = reading("ln_attn", "ln_mlp") if two else reading("input_layernorm", "input_layernorm")
    return replace(record, taps=in_parallel("self_attention", "mlp"), norms=norms)


def _gemma(record: Anatomy, config: Any) -> Anatomy:
    if config.use_bidirectional_attention:
        raise UnsupportedModelError(
            f"{config.model_type!r} cannot be surveyed with use_bidirectional_attention, as in PaliGemma: in "
            "transformers, its tokens attend to later tokens with sdpa, and do not with eager; use another model"
        )
    return record


def _gemma4(record: Anatomy, config: Any) -> Anatomy:
    kinds, first = config.layer_types, config.num_hidden_layers - config.num_kv_shared_layers
    own = {kind: layer for layer, kind in enumerate(kinds[:first])}  # the last layer of each kind with its own keys
    shared = {layer: own[kinds[layer]] for layer in range(first, config.num_hidden_layers)}
    full = tuple(layer for layer, kind in enumerate(kinds) if kind == "full_attention")
    record = replace(
        record,
        keys_of=shared,
        keys_as_values=full if config.attention_k_eq_v else (),
        wide_mlp_layers=tuple(shared) if config.use_double_wide_mlp else (),
    )
    if not getattr(config, "enable_moe_block", False):
        return record
    # Each token has an MLP and experts, with norms of their own before their sum is normalised.
    norms = {which: path for which, path in record.norms.items() if which.startswith("attention")}
    merged = MergedExperts("experts.gate_up_proj", "experts.down_proj", "expert, out, in")
    return replace(record, norms=norms, files=replace(QWEN3_FILES, experts=merged, shared_expert="mlp."))


def _gpt_bigcode(record: Anatomy, config: Any) -> Anatomy:
    layout: Literal["concatenated", "grouped"] = "concatenated" if config.multi_query else "grouped"
    return replace(record, files=replace(GPT_BIGCODE_FILES, qkv_layout=layout))


def _gpt_neox(record: Anatomy, config: Any) -> Anatomy:
    return replace(record, taps=in_parallel("attention", "mlp")) if config.use_parallel_residual else record


def _granite(record: Anatomy, config: Any) -> Anatomy:
    scale, branches = float(config.residual_multiplier), (Site.ATTN_OUT, Site.MLP_OUT)
    taps = {site: replace(tap, scale=scale) if site in branches else tap for site, tap in record.taps.items()}
    return replace(record, taps=taps, attention_scale=scale)


def _granite_shared(record: Anatomy, config: Any) -> Anatomy:
    return _granite(record if config.shared_intermediate_size else GRANITE_MOE, config)


def _granite_hybrid(record: Anatomy, config: Any) -> Anatomy:
    if not config.num_local_experts and record.files is not None:  # one dense MLP
        taps = {**record.taps, Site.MLP_OUT: replace(record.taps[Site.MLP_OUT], plus=None)}
        record = replace(record, taps=taps, files=replace(record.files, experts=None, shared_expert=None))
    record = record if config.position_embedding_type == "rope" else replace(record, positions="none")
    return _hybrid(_granite(record, config), config)


def _jamba(record: Anatomy, config: Any) -> Anatomy:
    dense = (layer for layer, count in enumerate(config.layers_num_experts) if count == 1)
    return _hybrid(replace(record, dense_layers=tuple(dense)), config)


def _lfm2_moe(record: Anatomy, config: Any) -> Anatomy:
    dense = range(min(config.num_dense_layers, config.num_hidden_layers))
    return _hybrid(replace(record, dense_layers=tuple(dense)), config)


def _nemotron_h(record: Anatomy, config: Any) -> Anatomy:
    kinds = config.layers_block_type[: config.num_hidden_layers]

    def layers(*names: str) -> tuple[int, ...]:
        return tuple(layer for layer, kind in enumerate(kinds) if kind in names)

    others = layers("linear_attention", "mlp", "moe")
    for site, names in {Site.ATTN_OUT: ("full_attention",), Site.MLP_OUT: ("mlp", "moe")}.items():
        record = with_some(record, site, record.partial[site].tap, layers(*names))
    return replace(
        record,
        dense_layers=layers("mlp"),
        layers_without_attention=others,
        layers_without_mlp=layers("linear_attention", "full_attention"),
        no_circuits="none of its blocks has attention" if len(others) == len(kinds) else "",
    )


def _falcon_h1(record: Anatomy, config: Any) -> Anatomy:
    return replace(record, attention_scale=float(config.attention_out_multiplier))


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
        taps=after_sum("self_attn_layer_norm", "self_attn", "fc2"),
        norms=writing("self_attn_layer_norm", "final_layer_norm"),
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
    return replace(record, taps=in_parallel("self_attn", "mlp"), norms=reading("input_layernorm", "input_layernorm"))


VARIANTS: dict[str, Variant] = {
    "albert": encoder_variants.albert,
    "bamba": _hybrid,
    "bert": encoder_variants.bert,
    "bert-generation": encoder_variants.bert,
    "bloom": _bloom,
    "camembert": encoder_variants.after_padding,
    "cohere2": _cohere2,
    "data2vec-text": encoder_variants.after_padding,
    "deberta": encoder_variants.deberta,
    "deberta-v2": encoder_variants.deberta,
    "deepseek_v2": _deepseek,
    "deepseek_v3": _deepseek,
    "distilbert": encoder_variants.bert,
    "dots1": _dense_first,
    "electra": encoder_variants.bert,
    "ernie": encoder_variants.bert,
    "ernie4_5_moe": _ernie_moe,
    "exaone4": _exaone4,
    "falcon": _falcon,
    "falcon_h1": _falcon_h1,
    "gemma": _gemma,
    "gemma2": _gemma,
    "gemma4_text": _gemma4,
    "gemma4_unified_text": _gemma4,
    "glm4_moe": _dense_first,
    "glm4_moe_lite": _deepseek,
    "gpt_bigcode": _gpt_bigcode,
    "gpt_neox": _gpt_neox,
    "granite": _granite,
    "granitemoe": _granite,
    "granitemoehybrid": _granite_hybrid,
    "granitemoeshared": _granite_shared,
    "jamba": _jamba,
    "lfm2": _hybrid,
    "lfm2_moe": _lfm2_moe,
    "llama4_text": _llama4,
    "megatron-bert": encoder_variants.bert,
    "mpnet": encoder_variants.after_padding,
    "mt5": encoder_variants.t5,
    "nemotron_h": _nemotron_h,
    "opt": _opt,
    "qwen2_moe": _qwen_moe,
    "qwen3_5_moe_text": _hybrid,
    "qwen3_5_text": _hybrid,
    "qwen3_moe": _qwen_moe,
    "qwen3_next": _qwen3_next,
    "roberta": encoder_variants.after_padding,
    "smollm3": _smollm3,
    "stablelm": _stablelm,
    "t5": encoder_variants.t5,
    "umt5": encoder_variants.t5,
    "xlm-roberta": encoder_variants.after_padding,
}
"""Families whose blocks depend on their configuration."""
