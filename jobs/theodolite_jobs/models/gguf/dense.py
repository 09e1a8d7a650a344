"""The configurations of architectures without experts."""

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf.metadata import Metadata
from theodolite_jobs.models.gguf.mixtures import mixtral
from theodolite_jobs.models.gguf.rotary import longrope, rope_parameters
from theodolite_jobs.models.gguf.settings import (
    Values,
    block_count,
    dense,
    epsilon,
    layer_types,
    query_scalar,
    rms_epsilon,
    sizes,
    without_d_head,
)
from theodolite_jobs.models.gguf.tensors import read_vector


def llama(metadata: Metadata) -> Values:
    """Return the entries of config.json for llama; raises like `configuration`."""
    if metadata.get("expert_count", int, zero=True):
        return mixtral(metadata)
    values = dense(metadata)
    return {
        **values,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
        "rope_parameters": rope_parameters(metadata, values["head_dim"]),
    }


def qwen2(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen2; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    return {
        **values,
        "model_type": "qwen2",
        "architectures": ["Qwen2ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "use_sliding_window": False,
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def qwen3(metadata: Metadata) -> Values:
    """Return the entries of config.json for qwen3; raises like `configuration`."""
    values = dense(metadata)
    return {
        **values,
        "model_type": "qwen3",
        "architectures": ["Qwen3ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "use_sliding_window": False,
        "rope_parameters": rope_parameters(metadata, values["head_dim"]),
    }


def gemma(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma; raises like `configuration`."""
    values = dense(metadata)
    return {
        **values,
        "model_type": "gemma",
        "architectures": ["GemmaForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
        "rope_parameters": rope_parameters(metadata, values["head_dim"]),
    }


def gemma2(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma2; raises like `configuration`."""
    values = dense(metadata)
    return {
        **values,
        "model_type": "gemma2",
        "architectures": ["Gemma2ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
        "attn_logit_softcapping": metadata.need("attn_logit_softcapping", float),
        "final_logit_softcapping": metadata.need("final_logit_softcapping", float),
        "query_pre_attn_scalar": query_scalar(metadata, values, blocks_of_27b=46),
        "sliding_window": metadata.need("attention.sliding_window", int),
        "layer_types": layer_types(metadata, values["num_hidden_layers"], period=2),
        "rope_parameters": rope_parameters(metadata, values["head_dim"]),
    }


def gemma3(metadata: Metadata) -> Values:
    """Return the entries of config.json for gemma3; raises like `configuration`."""
    values, window = dense(metadata), metadata.get("attention.sliding_window", int)
    kinds = layer_types(metadata, values["num_hidden_layers"], period=6 if window else 1)
    local = {"rope_type": "default", "rope_theta": metadata.get("rope.freq_base_swa", float) or 10000.0}
    return {
        **values,
        "model_type": "gemma3_text",
        "architectures": ["Gemma3ForCausalLM"],
        "hidden_activation": "gelu_pytorch_tanh",
        "rms_norm_eps": rms_epsilon(metadata),
        "attn_logit_softcapping": None,
        "final_logit_softcapping": metadata.get("final_logit_softcapping", float),
        "query_pre_attn_scalar": query_scalar(metadata, values, blocks_of_27b=62),
        "sliding_window": window or values["max_position_embeddings"],
        "layer_types": kinds,
        # Only the layers with full attention are scaled.
        "rope_parameters": {
            "full_attention": rope_parameters(metadata, values["head_dim"]),
            "sliding_attention": local,
        },
    }


def phi2(metadata: Metadata) -> Values:
    """Return the entries of config.json for phi2; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    rope = rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"], partial=True)
    return {
        **values,
        "model_type": "phi",
        "architectures": ["PhiForCausalLM"],
        "hidden_act": "gelu_new",
        "layer_norm_eps": epsilon(metadata),
        "qk_layernorm": False,
        "rope_parameters": rope,
    }


def phi3(metadata: Metadata) -> Values:
    """Return the entries of config.json for phi3; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    original = metadata.need("rope.scaling.original_context_length", int)
    rope = rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"], partial=True)
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
        rope |= longrope(original, short, long, scale)
    return {
        **values,
        "model_type": "phi3",
        "architectures": ["Phi3ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "original_max_position_embeddings": original,
        "sliding_window": metadata.need("attention.sliding_window", int, zero=True) or None,
        "rope_parameters": rope,
    }


def starcoder2(metadata: Metadata) -> Values:
    """Return the entries of config.json for starcoder2; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    return {
        **values,
        "model_type": "starcoder2",
        "architectures": ["Starcoder2ForCausalLM"],
        "hidden_act": "gelu_pytorch_tanh",
        "norm_epsilon": epsilon(metadata),
        "use_bias": metadata.has("attn_q.bias"),
        "sliding_window": None,  # no file states one
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def stablelm(metadata: Metadata) -> Values:
    """Return the entries of config.json for stablelm; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    rope = rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"], partial=True)
    if metadata.any("rope.freq_base") is None and values["max_position_embeddings"] > 4096:
        # StableCode has another base than the other models, which llama.cpp does not write.
        raise metadata.lacks("rope.freq_base")
    return {
        **values,
        "model_type": "stablelm",
        "architectures": ["StableLmForCausalLM"],
        "hidden_act": "silu",
        "layer_norm_eps": epsilon(metadata),
        "use_qkv_bias": metadata.has("attn_q.bias"),
        "qk_layernorm": metadata.has("attn_q_norm.weight"),
        "use_parallel_residual": metadata.need("use_parallel_residual", bool),
        "rope_parameters": rope,
    }


def falcon(metadata: Metadata) -> Values:
    """Return the entries of config.json for falcon; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    heads, groups = values["num_attention_heads"], values.pop("num_key_value_heads")
    width = values.pop("intermediate_size")
    metadata.require("tensor_data_layout", "jploski")
    rope = rope_parameters(metadata, values["hidden_size"] // heads)
    two_norms = metadata.has("attn_norm_2.weight")
    if groups > 1 and not two_norms and metadata.any("rope.freq_base") is None:
        # Falcon 2 has another base than the first Falcons, which llama.cpp does not write.
        raise metadata.lacks("rope.freq_base")
    return {
        **values,
        "model_type": "falcon",
        "architectures": ["FalconForCausalLM"],
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
        "rope_parameters": rope,
    }


def gpt2(metadata: Metadata) -> Values:
    """Return the entries of config.json for gpt2; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    if values["num_key_value_heads"] != values["num_attention_heads"]:
        raise metadata.refused("attention.head_count_kv", values["num_key_value_heads"], "attention.head_count")
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
    """Return the entries of config.json for olmo2; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    return {
        **values,
        "model_type": "olmo2",
        "architectures": ["Olmo2ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_bias": False,
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def granite(metadata: Metadata) -> Values:
    """Return the entries of config.json for granite; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    metadata.require("rope.scaling.finetuned", True)  # false turns the rotation off
    return {
        **values,
        "model_type": "granite",
        "architectures": ["GraniteForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_multiplier": metadata.need("attention.scale", float),
        "embedding_multiplier": metadata.need("embedding_scale", float),
        "residual_multiplier": metadata.need("residual_scale", float),
        "logits_scaling": metadata.need("logit_scale", float),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def command_r(metadata: Metadata) -> Values:
    """Return the entries of config.json for command-r; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    return {
        **values,
        "model_type": "cohere",
        "architectures": ["CohereForCausalLM"],
        "hidden_act": "silu",
        "layer_norm_eps": epsilon(metadata),
        "logit_scale": metadata.need("logit_scale", float),
        "attention_bias": metadata.has("attn_q.bias"),
        "use_qk_norm": metadata.has("attn_q_norm.weight"),
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def glm4(metadata: Metadata) -> Values:
    """Return the entries of config.json for glm4; raises like `configuration`."""
    values = dense(metadata)
    metadata.require("nextn_predict_layers", 0)
    return {
        **values,
        "model_type": "glm4",
        "architectures": ["Glm4ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "rope_parameters": rope_parameters(metadata, values["head_dim"], partial=True),
    }


def smollm3(metadata: Metadata) -> Values:
    """Return the entries of config.json for smollm3; raises like `configuration`."""
    values = without_d_head(metadata, dense(metadata))
    return {
        **values,
        "model_type": "smollm3",
        "architectures": ["SmolLM3ForCausalLM"],
        "hidden_act": "silu",
        "rms_norm_eps": rms_epsilon(metadata),
        "attention_bias": metadata.has("attn_q.bias"),
        "mlp_bias": metadata.has("ffn_up.bias"),
        "use_sliding_window": False,
        # llama.cpp: every fourth layer has no positions.
        "no_rope_layers": [int((layer + 1) % 4 != 0) for layer in range(values["num_hidden_layers"])],
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }


def lfm2(metadata: Metadata) -> Values:
    """Return the entries of config.json for lfm2; raises like `configuration`."""
    stated, n_layers = metadata.any("attention.head_count_kv"), block_count(metadata)
    is_list = isinstance(stated, list) and len(stated) == n_layers and {type(one) for one in stated} == {int}
    if not is_list or len({*stated} - {0}) != 1:
        raise metadata.refused("attention.head_count_kv", stated, "one number for each layer, 0 without attention")
    values = without_d_head(metadata, {**sizes(metadata, max(stated))})
    return {
        **values,
        "model_type": "lfm2",
        "architectures": ["Lfm2ForCausalLM"],
        "intermediate_size": metadata.need("feed_forward_length", int),
        "block_auto_adjust_ff_dim": False,  # the file states the final width
        "norm_eps": rms_epsilon(metadata),
        "layer_types": ["full_attention" if heads else "conv" for heads in stated],
        "conv_L_cache": metadata.need("shortconv.l_cache", int),
        "conv_bias": metadata.has("shortconv.in_proj.bias"),
        "rope_parameters": rope_parameters(metadata, values["hidden_size"] // values["num_attention_heads"]),
    }
