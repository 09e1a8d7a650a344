"""The rules of each architecture: the names of its tensors in GGUF files and in transformers."""

from typing import TYPE_CHECKING, Any

from theodolite_jobs.models.gguf.rules import Rule, Rules, fused_experts, less_one, linear, rotated, same, transposed

if TYPE_CHECKING:  # torch takes seconds to load, and a file may be refused by its header
    from torch import Tensor

_EMBEDDING = same("token_embd.weight", "model.embed_tokens.weight")
_HEAD = same("output.weight", "lm_head.weight", optional=True)
_OUTSIDE = (_EMBEDDING, same("output_norm.weight", "model.norm.weight"), _HEAD)
_OUTSIDE_WITH_BIAS = (_EMBEDDING, *linear("output_norm", "model.norm"), _HEAD)

_VALUE_AND_OUTPUT = (*linear("attn_v", "self_attn.v_proj"), *linear("attn_output", "self_attn.o_proj"))
_ATTENTION = (*linear("attn_q", "self_attn.q_proj"), *linear("attn_k", "self_attn.k_proj"), *_VALUE_AND_OUTPUT)
_ROTATED = (
    *rotated("attn_q", "self_attn.q_proj", "num_attention_heads"),
    *rotated("attn_k", "self_attn.k_proj", "num_key_value_heads"),
    *_VALUE_AND_OUTPUT,
)
_QK_NORM = (
    same("attn_q_norm.weight", "self_attn.q_norm.weight"),
    same("attn_k_norm.weight", "self_attn.k_norm.weight"),
)
_NORMS = (
    same("attn_norm.weight", "input_layernorm.weight"),
    same("ffn_norm.weight", "post_attention_layernorm.weight"),
)
_MLP = (
    *linear("ffn_gate", "mlp.gate_proj"),
    *linear("ffn_up", "mlp.up_proj"),
    *linear("ffn_down", "mlp.down_proj"),
)
_FUSED_MLP = (
    same("ffn_up.weight", "mlp.gate_up_proj.weight"),
    same("ffn_down.weight", "mlp.down_proj.weight"),
)
_EXPERTS = (same("ffn_gate_inp.weight", "mlp.gate.weight"), *fused_experts("mlp.experts"))
_GEMMA_MLP = tuple(same(f"ffn_{one}.weight", f"mlp.{one}_proj.weight") for one in ("gate", "up", "down"))
_GEMMA_ATTENTION = (
    *(same(f"attn_{one}.weight", f"self_attn.{one}_proj.weight") for one in ("q", "k", "v")),
    same("attn_output.weight", "self_attn.o_proj.weight"),
)
_GEMMA_OUTSIDE = (_EMBEDDING, less_one("output_norm.weight", "model.norm.weight"), _HEAD)
_GEMMA_NORMS = (
    less_one("attn_norm.weight", "input_layernorm.weight"),
    less_one("post_attention_norm.weight", "post_attention_layernorm.weight"),
    less_one("ffn_norm.weight", "pre_feedforward_layernorm.weight"),
    less_one("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
)


def _shared_gate(_: Any, row: "Tensor") -> dict[str, "Tensor"]:
    return {"mlp.shared_expert_gate.weight": row.reshape(1, -1)}


def _separate(kind: str) -> Rule:
    """Return the rule of queries, keys and values that older files of Phi-2 fuse."""

    def compute(config: Any, rows: "Tensor") -> dict[str, "Tensor"]:
        groups = config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads
        d_head = config.hidden_size // config.num_attention_heads
        parts = rows.split([heads * d_head for heads in groups])
        return {f"self_attn.{one}_proj.{kind}": part for one, part in zip("qkv", parts, strict=True)}

    return Rule((f"attn_qkv.{kind}",), compute, is_optional=True)


def _norms_of_heads(source: str, target: str) -> Rule:
    def compute(_: Any, rows: "Tensor") -> dict[str, "Tensor"]:
        return {f"self_attn.{target}.norms.{head}.weight": row for head, row in enumerate(rows)}

    return Rule((source,), compute, is_optional=True)


def _in_groups(kind: str) -> Rule:
    """Return the rule of Falcon's fused rows; the model has queries, key and value of each group together."""

    def compute(config: Any, rows: "Tensor") -> dict[str, "Tensor"]:
        import torch

        heads, groups = config.num_attention_heads, config.num_kv_heads
        d_head = config.hidden_size // heads
        parts = rows.split([heads * d_head, groups * d_head, groups * d_head])
        grouped = [part.reshape(groups, -1, d_head, *rows.shape[1:]) for part in parts]
        return {f"self_attention.query_key_value.{kind}": torch.cat(grouped, dim=1).reshape(rows.shape)}

    return Rule((f"attn_qkv.{kind}",), compute, is_optional=kind == "bias")


def _falcon_norm(kind: str) -> Rule:
    def compute(config: Any, norm: "Tensor") -> dict[str, "Tensor"]:
        name = "ln_mlp" if config.num_ln_in_parallel_attn == 2 else "input_layernorm"
        return {f"{name}.{kind}": norm}

    return Rule((f"attn_norm.{kind}",), compute)


def _keys_and_values(_: Any, keys: "Tensor", values: "Tensor") -> dict[str, "Tensor"]:
    """Join the maps from latents to keys, (head, latent, key), and to values, (head, value, latent)."""
    import torch

    joined = torch.cat([keys.swapaxes(1, 2), values], dim=1)
    return {"self_attn.kv_b_proj.weight": joined.reshape(-1, joined.shape[-1])}


def _alternating(_: Any, gate: "Tensor", up: "Tensor") -> dict[str, "Tensor"]:
    """Return the fused projections of gpt-oss, (expert, in, gate and up in turn)."""
    import torch

    rows = torch.stack([gate, up], dim=2).flatten(1, 2)
    return {"mlp.experts.gate_up_proj": rows.swapaxes(1, 2)}


def _alternating_bias(_: Any, gate: "Tensor", up: "Tensor") -> dict[str, "Tensor"]:
    import torch

    return {"mlp.experts.gate_up_proj_bias": torch.stack([gate, up], dim=2).flatten(1, 2)}


def _down(_: Any, down: "Tensor") -> dict[str, "Tensor"]:
    return {"mlp.experts.down_proj": down.swapaxes(1, 2)}


def _convolution(_: Any, kernels: "Tensor") -> dict[str, "Tensor"]:
    return {"conv.conv.weight": kernels.unsqueeze(1)}


_SHARED_EXPERT = (
    Rule(("ffn_gate_inp_shexp.weight",), _shared_gate),
    *(same(f"ffn_{one}_shexp.weight", f"mlp.shared_expert.{one}_proj.weight") for one in ("gate", "up", "down")),
)

_LLAMA = Rules(_OUTSIDE, (*_ROTATED, *_NORMS, *_MLP))
_MIXTRAL = Rules(_OUTSIDE, (*_ROTATED, *_NORMS, *_EXPERTS))

_DEEPSEEK = Rules(
    _OUTSIDE,
    (
        *_NORMS,
        same("attn_q.weight", "self_attn.q_proj.weight", optional=True),
        same("attn_q_a.weight", "self_attn.q_a_proj.weight", optional=True),
        same("attn_q_a_norm.weight", "self_attn.q_a_layernorm.weight", optional=True),
        same("attn_q_b.weight", "self_attn.q_b_proj.weight", optional=True),
        same("attn_kv_a_mqa.weight", "self_attn.kv_a_proj_with_mqa.weight"),
        same("attn_kv_a_norm.weight", "self_attn.kv_a_layernorm.weight"),
        same("attn_kv_b.weight", "self_attn.kv_b_proj.weight", optional=True),
        Rule(("attn_k_b.weight", "attn_v_b.weight"), _keys_and_values, is_optional=True),
        same("attn_output.weight", "self_attn.o_proj.weight"),
        *(same(f"ffn_{one}.weight", f"mlp.{one}_proj.weight", optional=True) for one in ("gate", "up", "down")),
        same("ffn_gate_inp.weight", "mlp.gate.weight", optional=True),
        same("exp_probs_b.bias", "mlp.gate.e_score_correction_bias", optional=True),
        *fused_experts("mlp.experts", optional=True),
        *(
            same(f"ffn_{one}_shexp.weight", f"mlp.shared_experts.{one}_proj.weight", optional=True)
            for one in ("gate", "up", "down")
        ),
    ),
)

_GPT_OSS = Rules(
    _OUTSIDE,
    (
        *_ATTENTION,
        same("attn_sinks.weight", "self_attn.sinks"),
        same("attn_norm.weight", "input_layernorm.weight"),
        same("post_attention_norm.weight", "post_attention_layernorm.weight"),
        *linear("ffn_gate_inp", "mlp.router", bias=True),
        Rule(("ffn_gate_exps.weight", "ffn_up_exps.weight"), _alternating),
        Rule(("ffn_gate_exps.bias", "ffn_up_exps.bias"), _alternating_bias),
        Rule(("ffn_down_exps.weight",), _down),
        same("ffn_down_exps.bias", "mlp.experts.down_proj_bias"),
    ),
)

_LFM2 = Rules(
    (_EMBEDDING, same("token_embd_norm.weight", "model.embedding_norm.weight"), _HEAD),
    (
        same("attn_norm.weight", "operator_norm.weight"),
        same("ffn_norm.weight", "ffn_norm.weight"),
        *(same(f"attn_{one}.weight", f"self_attn.{one}_proj.weight", optional=True) for one in ("q", "k", "v")),
        same("attn_output.weight", "self_attn.out_proj.weight", optional=True),
        same("attn_q_norm.weight", "self_attn.q_layernorm.weight", optional=True),
        same("attn_k_norm.weight", "self_attn.k_layernorm.weight", optional=True),
        *linear("shortconv.in_proj", "conv.in_proj", optional=True),
        *linear("shortconv.out_proj", "conv.out_proj", optional=True),
        Rule(("shortconv.conv.weight",), _convolution, is_optional=True),
        same("shortconv.conv.bias", "conv.conv.bias", optional=True),
        same("ffn_gate.weight", "feed_forward.w1.weight"),
        same("ffn_down.weight", "feed_forward.w2.weight"),
        same("ffn_up.weight", "feed_forward.w3.weight"),
    ),
)

_FALCON = Rules(
    (
        same("token_embd.weight", "transformer.word_embeddings.weight"),
        *linear("output_norm", "transformer.ln_f", bias=True),
        _HEAD,
    ),
    (
        _falcon_norm("weight"),
        _falcon_norm("bias"),
        *linear("attn_norm_2", "ln_attn", optional=True),
        _in_groups("weight"),
        _in_groups("bias"),
        *linear("attn_output", "self_attention.dense"),
        *linear("ffn_up", "mlp.dense_h_to_4h"),
        *linear("ffn_down", "mlp.dense_4h_to_h"),
    ),
    prefix="transformer.h.{}.",
)

_GPT2 = Rules(
    (
        same("token_embd.weight", "transformer.wte.weight"),
        same("position_embd.weight", "transformer.wpe.weight"),
        *linear("output_norm", "transformer.ln_f", bias=True),
        _HEAD,
    ),
    (
        *linear("attn_norm", "ln_1", bias=True),
        *linear("ffn_norm", "ln_2", bias=True),
        transposed("attn_qkv.weight", "attn.c_attn.weight"),
        same("attn_qkv.bias", "attn.c_attn.bias"),
        transposed("attn_output.weight", "attn.c_proj.weight"),
        same("attn_output.bias", "attn.c_proj.bias"),
        transposed("ffn_up.weight", "mlp.c_fc.weight"),
        same("ffn_up.bias", "mlp.c_fc.bias"),
        transposed("ffn_down.weight", "mlp.c_proj.weight"),
        same("ffn_down.bias", "mlp.c_proj.bias"),
    ),
    prefix="transformer.h.{}.",
)

_PHI2 = Rules(
    (_EMBEDDING, *linear("output_norm", "model.final_layernorm", bias=True), *linear("output", "lm_head", bias=True)),
    (
        *linear("attn_norm", "input_layernorm", bias=True),
        *(rule for one in ("q", "k", "v") for rule in linear(f"attn_{one}", f"self_attn.{one}_proj", optional=True)),
        _separate("weight"),
        _separate("bias"),
        *linear("attn_output", "self_attn.dense", bias=True),
        *linear("ffn_up", "mlp.fc1", bias=True),
        *linear("ffn_down", "mlp.fc2", bias=True),
    ),
)

_STARCODER2 = Rules(
    _OUTSIDE_WITH_BIAS,
    (
        *_ATTENTION,
        *linear("attn_norm", "input_layernorm", bias=True),
        *linear("ffn_norm", "post_attention_layernorm", bias=True),
        *linear("ffn_up", "mlp.c_fc"),
        *linear("ffn_down", "mlp.c_proj"),
    ),
)

_STABLELM = Rules(
    _OUTSIDE_WITH_BIAS,
    (
        *_ATTENTION,
        *linear("attn_norm", "input_layernorm", bias=True),
        *linear("ffn_norm", "post_attention_layernorm", optional=True),
        _norms_of_heads("attn_q_norm.weight", "q_layernorm"),
        _norms_of_heads("attn_k_norm.weight", "k_layernorm"),
        *_MLP,
    ),
)

_GLM4 = Rules(
    _OUTSIDE,
    (
        *_ATTENTION,
        *_NORMS,
        same("post_attention_norm.weight", "post_self_attn_layernorm.weight"),
        same("post_ffw_norm.weight", "post_mlp_layernorm.weight"),
        *_FUSED_MLP,
    ),
)

_PHI3 = Rules(
    _OUTSIDE,
    (
        *_NORMS,
        same("attn_qkv.weight", "self_attn.qkv_proj.weight"),
        same("attn_output.weight", "self_attn.o_proj.weight"),
        *_FUSED_MLP,
    ),
)

_OLMO2 = Rules(
    _OUTSIDE,
    (
        *_ATTENTION,
        *_QK_NORM,
        same("post_attention_norm.weight", "post_attention_layernorm.weight"),
        same("post_ffw_norm.weight", "post_feedforward_layernorm.weight"),
        *_MLP,
    ),
)

_COMMAND_R = Rules(
    _OUTSIDE,
    (
        *_ATTENTION,
        same("attn_norm.weight", "input_layernorm.weight"),
        same("attn_q_norm.weight", "self_attn.q_norm.weight", optional=True),
        same("attn_k_norm.weight", "self_attn.k_norm.weight", optional=True),
        *_MLP,
    ),
)

_GEMMA = Rules(
    _GEMMA_OUTSIDE,
    (
        *_GEMMA_ATTENTION,
        less_one("attn_norm.weight", "input_layernorm.weight"),
        less_one("ffn_norm.weight", "post_attention_layernorm.weight"),
        *_GEMMA_MLP,
    ),
)

_GEMMA2 = Rules(_GEMMA_OUTSIDE, (*_GEMMA_ATTENTION, *_GEMMA_NORMS, *_GEMMA_MLP))
_GEMMA3 = Rules(
    _GEMMA_OUTSIDE,
    (
        *_GEMMA_ATTENTION,
        less_one("attn_q_norm.weight", "self_attn.q_norm.weight"),
        less_one("attn_k_norm.weight", "self_attn.k_norm.weight"),
        *_GEMMA_NORMS,
        *_GEMMA_MLP,
    ),
)

RULES: dict[str, Rules] = {
    "cohere": _COMMAND_R,
    "deepseek_v2": _DEEPSEEK,
    "deepseek_v3": _DEEPSEEK,
    "falcon": _FALCON,
    "gemma": _GEMMA,
    "gemma2": _GEMMA2,
    "gemma3_text": _GEMMA3,
    "glm4": _GLM4,
    "gpt2": _GPT2,
    "gpt_oss": _GPT_OSS,
    "granite": _LLAMA,
    "lfm2": _LFM2,
    "llama": _LLAMA,
    "mixtral": _MIXTRAL,
    "olmo2": _OLMO2,
    "phi": _PHI2,
    "phi3": _PHI3,
    "qwen2": Rules(_OUTSIDE, (*_ATTENTION, *_NORMS, *_MLP)),
    "qwen2_moe": Rules(_OUTSIDE, (*_ATTENTION, *_NORMS, *_EXPERTS, *_SHARED_EXPERT)),
    "qwen3": Rules(_OUTSIDE, (*_ATTENTION, *_QK_NORM, *_NORMS, *_MLP)),
    "qwen3_moe": Rules(_OUTSIDE, (*_ATTENTION, *_QK_NORM, *_NORMS, *_EXPERTS)),
    "smollm3": _LLAMA,
    "stablelm": _STABLELM,
    "starcoder2": _STARCODER2,
}
"""By `model_type` of the configuration."""
