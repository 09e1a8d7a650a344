"""The configurations of architectures without experts. Each function raises like `configuration`."""

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.mixtures import mixtral
from theodolite_jobs.models.gguf.rotary import longrope
from theodolite_jobs.models.gguf.settings import (
    Values,
    block_count,
    dense,
    epsilon,
    family,
    layer_types,
    query_scalar,
    rms_epsilon,
    silu_and_rms,
    sizes,
)
from theodolite_jobs.models.gguf.tensors import read_vector


def llama(metadata: Metadata) -> Values:
    """Return the entries of config.json for llama, or for mixtral, which has the same name in files."""
    if metadata.get("expert_count", int, zero=True):
        return mixtral(metadata)
    return {
        **family(metadata, "llama", "LlamaForCausalLM", dense(metadata)),
        **silu_and_rms(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
    }


def qwen2(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen2."""
    return {
        **family(metadata, "qwen2", "Qwen2ForCausalLM", dense(metadata), d_head=False),
        **silu_and_rms(metadata),
        "use_sliding_window": False,
    }


def qwen3(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen3."""
    return {
        **family(metadata, "qwen3", "Qwen3ForCausalLM", dense(metadata)),
        **silu_and_rms(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "use_sliding_window": False,
    }


def gemma(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma."""
    return {
        **family(metadata, "gemma", "GemmaForCausalLM", dense(metadata)),
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
    }


def gemma2(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma2."""
    values = dense(metadata)
    return {
        **family(metadata, "gemma2", "Gemma2ForCausalLM", values),
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
        "attn_logit_softcapping": metadata.need("attn_logit_softcapping", float),
        "final_logit_softcapping": metadata.need("final_logit_softcapping", float),
        "query_pre_attn_scalar": query_scalar(metadata, values, blocks_of_27b=46),
        "sliding_window": metadata.need("attention.sliding_window", int),
        "layer_types": layer_types(metadata, values["num_hidden_layers"], period=2),
    }


def gemma3(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma3."""
    values, window = dense(metadata), metadata.get("attention.sliding_window", int)
    kinds = layer_types(metadata, values["num_hidden_layers"], period=6 if window else 1)
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", float) or 10000.0}
    entries = family(metadata, "gemma3_text", "Gemma3ForCausalLM", values)
    return {
        **entries,
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.get("final_logit_softcapping", float),
        "query_pre_attn_scalar": query_scalar(metadata, values, blocks_of_27b=62),
        "sliding_window": window or values["max_position_embeddings"],
        "layer_types": kinds,
        # Only the layers with full attention are scaled.
        "rope_parameters": {"full_attention": entries["rope_parameters"], "sliding_attention": local},
    }


def phi2(metadata: Metadata) -> Values:
    """Return the entries of config.json for phi2."""
    return {
        **family(metadata, "phi", "PhiForCausalLM", dense(metadata), d_head=False, partial=True),
        "hidden_act": "gelu_new",
        "layer_norm_eps": epsilon(metadata),
        "qk_layernorm": False,
    }


def phi3(metadata: Metadata) -> Values:
    """Return the entries of config.json for phi3."""
    entries = family(metadata, "phi3", "Phi3ForCausalLM", dense(metadata), d_head=False, partial=True)
    original = metadata.need("rope.scaling.original_context_length", int)
    short, long = (read_vector(metadata.header.tensors, f"rope_factors_{one}.weight") for one in ("short", "long"))
    scale = metadata.get("rope.scaling.attn_factor", float)
    if (short is None) != (long is None) or (short is None and scale not in (None, 1.0)):
        raise UnsupportedModelError(
            f"{metadata.file} must have both tensors rope_factors_short.weight and rope_factors_long.weight, or "
            "neither and no phi3.rope.scaling.attn_factor; use the model's safetensors files"
        )
    if short is not None and long is not None:
        if scale is None:
            raise metadata.lacks("rope.scaling.attn_factor")
        entries["rope_parameters"] |= longrope(original, short, long, scale)
    return {
        **entries,
        **silu_and_rms(metadata),
        "original_max_position_embeddings": original,
        "sliding_window": metadata.need("attention.sliding_window", int, zero=True) or None,
    }


def starcoder2(metadata: Metadata) -> Values:
    """Return the entries of config.json for starcoder2."""
    return {
        **family(metadata, "starcoder2", "Starcoder2ForCausalLM", dense(metadata), d_head=False),
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": epsilon(metadata),
        "use_bias": metadata.has("attn_q.bias"),
        "sliding_window": None,  # no file states one
    }


def stablelm(metadata: Metadata) -> Values:
    """Return the entries of config.json for stablelm."""
    entries = family(metadata, "stablelm", "StableLmForCausalLM", dense(metadata), d_head=False, partial=True)
    if metadata.any("rope.freq_base") is None and entries["max_position_embeddings"] > 4096:
        # StableCode has another base than the other models, which llama.cpp does not write.
        raise metadata.lacks("rope.freq_base")
    return {
        **entries,
        "hidden_act": "silu",
        "layer_norm_eps": epsilon(metadata),
        "use_qkv_bias": metadata.has("attn_q.bias"),
        "qk_layernorm": metadata.has("attn_q_norm.weight"),
        "use_parallel_residual": metadata.need("use_parallel_residual", bool),
    }


def falcon(metadata: Metadata) -> Values:
    """Return the entries of config.json for falcon."""
    entries = family(metadata, "falcon", "FalconForCausalLM", dense(metadata), d_head=False)
    groups, width = entries.pop("num_key_value_heads"), entries.pop("intermediate_size")
    metadata.require("tensor_data_layout", "jploski")
    two_norms = metadata.has("attn_norm_2.weight")
    if groups > 1 and not two_norms and metadata.any("rope.freq_base") is None:
        # Falcon 2 has another base than the first Falcons, which llama.cpp does not write.
        raise metadata.lacks("rope.freq_base")
    return {
        **entries,
        "activation": "gelu",
        "ffn_hidden_size": width,
        "layer_norm_epsilon": epsilon(metadata),
        "num_kv_heads": groups,
        "multi_query": groups == 1,
        "new_decoder_architecture": groups > 1,
        "num_ln_in_parallel_attn": (2 if two_norms else 1) if groups > 1 else None,
        "parallel_attn": True,
        "alibi": False,
        "bias": metadata.has("attn_qkv.bias"),
    }


def gpt2(metadata: Metadata) -> Values:
    """Return the entries of config.json for gpt2, which has no rotary positions."""
    values = dense(metadata)
    metadata.require("attention.head_count_kv", values["num_attention_heads"])
    metadata.require("attention.key_length", values["hidden_size"] // values["num_attention_heads"])
    return {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "activation_function": "gelu_new",
        "vocab_size": values["vocab_size"],
        "n_embd": values["hidden_size"],
        "n_layer": values["num_hidden_layers"],
        "n_head": values["num_attention_heads"],
        "n_positions": values["max_position_embeddings"],
        "n_inner": values["intermediate_size"],
        "layer_norm_epsilon": epsilon(metadata),
        "tie_word_embeddings": values["tie_word_embeddings"],
    }


def olmo2(metadata: Metadata) -> Values:
    """Return the entries of config.json for olmo2."""
    return {
        **family(metadata, "olmo2", "Olmo2ForCausalLM", dense(metadata), d_head=False),
        **silu_and_rms(metadata),
        "attention_bias": False,
    }


def granite(metadata: Metadata) -> Values:
    """Return the entries of config.json for granite."""
    metadata.require("rope.scaling.finetuned", True)  # false turns the rotation off
    return {
        **family(metadata, "granite", "GraniteForCausalLM", dense(metadata), d_head=False),
        **silu_and_rms(metadata),
        "attention_multiplier": metadata.need("attention.scale", float),
        "embedding_multiplier": metadata.need("embedding_scale", float),
        "residual_multiplier": metadata.need("residual_scale", float),
        "logits_scaling": metadata.need("logit_scale", float),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
    }


def command_r(metadata: Metadata) -> Values:
    """Return the entries of config.json for command-r."""
    return {
        **family(metadata, "cohere", "CohereForCausalLM", dense(metadata), d_head=False),
        "hidden_act": "silu",
        "layer_norm_eps": epsilon(metadata),
        "logit_scale": metadata.need("logit_scale", float),
        "attention_bias": metadata.has("attn_q.bias"),
        "use_qk_norm": metadata.has("attn_q_norm.weight"),
    }


def glm4(metadata: Metadata) -> Values:
    """Return the entries of config.json for glm4."""
    metadata.require("nextn_predict_layers", 0)
    return {
        **family(metadata, "glm4", "Glm4ForCausalLM", dense(metadata), partial=True),
        **silu_and_rms(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
    }


def smollm3(metadata: Metadata) -> Values:
    """Return the entries of config.json for smollm3."""
    entries = family(metadata, "smollm3", "SmolLM3ForCausalLM", dense(metadata), d_head=False)
    return {
        **entries,
        **silu_and_rms(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
        "use_sliding_window": False,
        # llama.cpp: every fourth layer has no positions.
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(entries["num_hidden_layers"])],
    }


def lfm2(metadata: Metadata) -> Values:
    """Return the entries of config.json for lfm2."""
    stated, n_layers = metadata.any("attention.head_count_kv"), block_count(metadata)
    is_list = isinstance(stated, list) and len(stated) == n_layers and {type(one) for one in stated} == {int}
    if not is_list or len({*stated} - {0}) != 1:
        raise metadata.refused("attention.head_count_kv", stated, "one number for each layer, 0 without attention")
    return {
        **family(metadata, "lfm2", "Lfm2ForCausalLM", sizes(metadata, max(stated)), d_head=False),
        "intermediate_size": metadata.need("feed_forward_length", int),
        "block_auto_adjust_ff_dim": False,  # the file states the final width
        "norm_eps": rms_epsilon(metadata),
        "layer_types": ["full_attention" if heads else "conv" for heads in stated],
        "conv_L_cache": metadata.need("shortconv.l_cache", int),
        "conv_bias": metadata.has("shortconv.in_proj.bias"),
    }
