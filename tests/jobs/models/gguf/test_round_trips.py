"""A model written as a GGUF file gives the activations of its safetensors twin, for each architecture."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from support.gguf_files import ARCHITECTURES, is_matrix, write_gguf
from transformers import AutoConfig, AutoModelForCausalLM

from theodolite_jobs.models.gguf.configurations import BUILDERS
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.second_reading import held_against_file
from theodolite_jobs.models.load import load_config, load_tokenizer

CONTEXT = 32
"""Tokens of the original context of models with scaled positions; the prompt is several times longer."""

SIZES: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "pad_token_id": None,
    "bos_token_id": None,
    "eos_token_id": 0,
    "tie_word_embeddings": False,
}
ROPE: dict[str, Any] = {"rope_type": "default", "rope_theta": 3000.0}
LINEAR = {**ROPE, "rope_type": "linear", "factor": 3.0}
YARN = {**ROPE, "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": CONTEXT}
ODD_YARN = {**YARN, "beta_fast": 20.0, "beta_slow": 2.0, "attention_factor": 1.3}
LLAMA3 = {
    **ROPE,
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": CONTEXT,
}
HALF = {**ROPE, "partial_rotary_factor": 0.5}
WIDE = {"head_dim": 32}
EXPERTS: dict[str, Any] = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
LATENT: dict[str, Any] = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 16,
    "v_head_dim": 32,
    "n_routed_experts": 4,
    "n_shared_experts": 2,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "routed_scaling_factor": 1.7,
}
GEMMA = {**WIDE, "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
DEEPSEEK_YARN = {**YARN, "mscale": 0.7, "mscale_all_dim": 0.7, "beta_fast": 32.0, "beta_slow": 1.0}
LONGROPE = {
    **ROPE,
    "rope_type": "longrope",
    "short_factor": [1.0 + 0.1 * index for index in range(8)],
    "long_factor": [1.0 + 1.5 * index for index in range(8)],
    "attention_factor": 1.19,
    "factor": 16.0,
    "original_max_position_embeddings": CONTEXT,
}
FALCON = {"ffn_hidden_size": 256, "layer_norm_epsilon": 1e-4, "alibi": False, "parallel_attn": True}
GPT2 = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 512, "n_inner": 256, "vocab_size": 160}

CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {"rope_parameters": ROPE, "rms_norm_eps": 3e-4}),
    "llama-wide-tied-biased": (
        "llama",
        {**WIDE, "rope_parameters": ROPE, "tie_word_embeddings": True, "attention_bias": True, "mlp_bias": True},
    ),
    "llama-linear": ("llama", {"rope_parameters": LINEAR}),
    "llama-llama3": ("llama", {"rope_parameters": LLAMA3}),
    "llama-yarn": ("llama", {"rope_parameters": ODD_YARN}),
    "mixtral": ("mixtral", {"rope_parameters": ROPE, "num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen2": ("qwen2", {"rope_parameters": ROPE}),
    "qwen2-yarn": ("qwen2", {"rope_parameters": YARN, "tie_word_embeddings": True}),
    "qwen2_moe": (
        "qwen2_moe",
        {**EXPERTS, "shared_expert_intermediate_size": 64, "rope_parameters": ROPE, "norm_topk_prob": False},
    ),
    "qwen3": ("qwen3", {**WIDE, "rope_parameters": YARN}),
    "qwen3_moe": ("qwen3_moe", {**EXPERTS, **WIDE, "rope_parameters": ROPE, "norm_topk_prob": True}),
    "gemma": (
        "gemma",
        {**WIDE, "hidden_act": "gelu_pytorch_tanh", "tie_word_embeddings": True, "rope_parameters": ROPE},
    ),
    "gemma2": (
        "gemma2",
        {
            **GEMMA,
            "rope_parameters": ROPE,
            "sliding_window": 9,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 7.0,
            "query_pre_attn_scalar": 32,
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            **GEMMA,
            "num_hidden_layers": 7,
            "rope_parameters": {"full_attention": LINEAR, "sliding_attention": {**ROPE, "rope_theta": 700.0}},
            "sliding_window": 9,
            "query_pre_attn_scalar": 32,
        },
    ),
    "phi": ("phi", {"rope_parameters": HALF, "layer_norm_eps": 3e-4, "hidden_act": "gelu_new"}),
    "phi3": ("phi3", {"rope_parameters": ROPE, "original_max_position_embeddings": 512, "sliding_window": 11}),
    "phi3-longrope": ("phi3", {"rope_parameters": LONGROPE, "original_max_position_embeddings": CONTEXT}),
    "phi3-partial": (
        "phi3",
        {"rope_parameters": HALF, "original_max_position_embeddings": 512, "tie_word_embeddings": True},
    ),
    "starcoder2": (
        "starcoder2",
        {"rope_parameters": ROPE, "norm_epsilon": 3e-4, "use_bias": True, "sliding_window": None},
    ),
    "stablelm": (
        "stablelm",
        {"rope_parameters": {**ROPE, "partial_rotary_factor": 0.25}, "use_qkv_bias": True, "qk_layernorm": True},
    ),
    "stablelm-parallel": ("stablelm", {"rope_parameters": HALF, "use_parallel_residual": True}),
    "falcon": (
        "falcon",
        {**FALCON, "multi_query": True, "bias": False, "rope_parameters": {**ROPE, "rope_theta": 10000.0}},
    ),
    "falcon-groups": (
        "falcon",
        {
            **FALCON,
            "new_decoder_architecture": True,
            "num_kv_heads": 2,
            "bias": False,
            "rope_parameters": {**ROPE, "rope_theta": 10000.0},
        },
    ),
    "gpt2": ("gpt2", {**GPT2, "layer_norm_epsilon": 3e-4, "tie_word_embeddings": True}),
    "olmo2": ("olmo2", {"rope_parameters": ROPE, "rms_norm_eps": 3e-4}),
    "granite": (
        "granite",
        {
            "rope_parameters": ROPE,
            "attention_multiplier": 0.2,
            "embedding_multiplier": 3.0,
            "residual_multiplier": 0.4,
            "logits_scaling": 5.0,
        },
    ),
    "cohere": (
        "cohere",
        {"rope_parameters": ROPE, "logit_scale": 0.3, "use_qk_norm": True, "tie_word_embeddings": True},
    ),
    "glm4": ("glm4", {**WIDE, "rope_parameters": HALF, "attention_bias": True}),
    "deepseek_v2": (
        "deepseek_v2",
        {**LATENT, "q_lora_rank": None, "topk_method": "greedy", "n_group": None, "rope_parameters": DEEPSEEK_YARN},
    ),
    "deepseek_v2-groups": (
        "deepseek_v2",
        {
            **LATENT,
            "q_lora_rank": 32,
            "topk_method": "group_limited_greedy",
            "n_group": 2,
            "topk_group": 1,
            "rope_parameters": ROPE,
        },
    ),
    "deepseek_v3": (
        "deepseek_v3",
        {**LATENT, "q_lora_rank": 32, "n_group": 2, "topk_group": 1, "rope_parameters": DEEPSEEK_YARN},
    ),
    "smollm3": (
        "smollm3",
        {
            "num_hidden_layers": 5,
            "rope_parameters": ROPE,
            "no_rope_layers": [1, 1, 1, 0, 1],
            "use_sliding_window": False,
        },
    ),
    "lfm2": (
        "lfm2",
        {
            "num_hidden_layers": 4,
            "layer_types": ["conv", "full_attention", "conv", "full_attention"],
            "rope_parameters": ROPE,
            "block_auto_adjust_ff_dim": False,
            "tie_word_embeddings": True,
            "conv_bias": False,
            "norm_eps": 3e-4,
        },
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **WIDE,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 9,
            "rope_parameters": {**YARN, "beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
        },
    ),
}


def twin(case: str) -> Any:
    """Return a model of a case, with random weights; norms and biases differ from those of a new model."""
    kind, settings = CASES[case]
    sizes = {} if kind == "gpt2" else SIZES
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **{**sizes, **settings}), dtype=torch.float32)
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            torch.nn.init.normal_(parameter, 1.0 if "norm" in name or "ln_" in name else 0.0, 0.3)
        else:
            torch.nn.init.normal_(parameter, 0.0, 0.15)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            torch.nn.init.normal_(buffer, 0.0, 0.3)
    return model.eval()


def streams(model: Any, length: int) -> list[torch.Tensor]:
    """Return the hidden states of a prompt, and its logits."""
    ids = torch.arange(length)[None] * 37 % 120
    with torch.inference_mode():
        result = model(ids, output_hidden_states=True)
    return [*result.hidden_states, result.logits]


def largest_error(one: Any, other: Any, length: int) -> float:
    """Return the largest relative error of the streams of a token at a layer."""
    pairs = zip(streams(one, length), streams(other, length), strict=True)
    return max(float(((a - b).norm(dim=-1) / b.norm(dim=-1)).max()) for a, b in pairs)


def converted(file: Path, folder: Path) -> Any:
    """Return the model that transformers loads from the conversion of a file, after checking that no weight is new."""
    convert_gguf(file, folder)
    load_tokenizer(folder)
    load_config(folder)
    model, report = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_a_file_gives_the_activations_of_its_twin_far_beyond_the_original_context(tmp_path: Path, case: str) -> None:
    model = twin(case)
    write_gguf(model, tmp_path / "tiny.gguf")
    read = converted(tmp_path / "tiny.gguf", tmp_path / "read")
    assert largest_error(read, model, 8 * CONTEXT) < 5e-5
    held = held_against_file(tmp_path / "tiny.gguf", tmp_path / "read")
    assert len(held["tensors"]) >= 8
    assert len(held["settings"]) >= 5


KINDS = ["Q5_0", "Q5_1", "Q8_0", "BF16"]
PLAIN_CASES = [case for case in CASES if "-" not in case]


@pytest.mark.parametrize(("case", "kind"), list(zip(PLAIN_CASES, KINDS * 6, strict=False)))
def test_a_quantised_file_gives_the_activations_of_a_twin_with_the_dequantised_weights(
    tmp_path: Path, case: str, kind: str
) -> None:
    model = twin(case)
    write_gguf(model, tmp_path / "tiny.gguf", kind=kind)
    for name, tensor in model.state_dict().items():
        tensor.copy_(dequantised(name, tensor, kind, model.config))
    read = converted(tmp_path / "tiny.gguf", tmp_path / "read")
    assert largest_error(read, model, 2 * CONTEXT) < 5e-5


def dequantised(name: str, tensor: torch.Tensor, kind: str, config: Any) -> torch.Tensor:
    """Return a matrix after a round through a quantised type, whose blocks run along the rows of the file."""
    if "shared_expert_gate" in name or "conv.conv" in name:
        return tensor  # a row, and kernels of three values
    if name.endswith("kv_b_proj.weight"):
        heads = tensor.view(config.num_attention_heads, -1, tensor.shape[-1])
        keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
        return torch.cat([_rounded(keys.mT, kind).mT, _rounded(values, kind)], dim=1).reshape(tensor.shape)
    across = {"gpt2": (".c_attn.weight", ".c_proj.weight", ".c_fc.weight"), "gpt_oss": ("up_proj", "down_proj")}
    if name.endswith(across.get(config.model_type, ("none",))) and tensor.ndim > 1:
        return _rounded(tensor.mT, kind).mT
    return _rounded(tensor, kind) if is_matrix(name, tuple(tensor.shape)) else tensor


def _rounded(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    quantised = gguf.GGMLQuantizationType[kind]
    values = np.ascontiguousarray(tensor)
    return torch.from_numpy(gguf.dequantize(gguf.quantize(values, quantised), quantised).reshape(values.shape))


def test_each_architecture_has_a_round_trip() -> None:
    assert {ARCHITECTURES[kind] for kind, _ in CASES.values()} == set(BUILDERS)
