"""Write models of transformers as GGUF files, with the names, keys and layouts that llama.cpp's converter uses.

The names come from the tables of the package `gguf`. The layouts are written here from the descriptions of the
converter, so that a test compares the reader with a second derivation.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

ARCHITECTURES = {
    "llama": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "phi3": "phi3",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "falcon": "falcon",
    "gpt2": "gpt2",
    "olmo2": "olmo2",
    "granite": "granite",
    "cohere": "command-r",
    "glm4": "glm4",
    "deepseek_v2": "deepseek2",
    "deepseek_v3": "deepseek2",
    "smollm3": "smollm3",
    "lfm2": "lfm2",
    "gpt_oss": "gpt-oss",
}
"""The architecture of a GGUF file by `model_type`."""

BYTES = [*(chr(33 + index) for index in range(94)), *(chr(0x100 + index) for index in range(33)), chr(0x7F + 0xA2)]
"""Spellings of the bytes 33 to 126, 0 to 32 and 127 in byte-level vocabularies."""

_ROTATED = {"llama", "mixtral", "granite", "smollm3"}

Edit = Callable[[gguf.GGUFWriter], None]


def tiny_llama() -> Any:
    """Return a Llama of two blocks with random weights."""
    sizes: dict[str, Any] = {"vocab_size": 160, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
    rope = {"rope_type": "default", "rope_theta": 3000.0}
    config = LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, rope_parameters=rope)
    return LlamaForCausalLM(config)


def write_gguf(
    model: Any,
    path: Path,
    *,
    kind: str = "F32",
    edit: Edit | None = None,
    without: str = "",
    more: Any = None,
    split_max_tensors: int = 0,
) -> None:
    """Write a model with a language-model head as a GGUF file.

    Args:
        model: of transformers.
        path: of the file.
        kind: the type of matrices; vectors are in F32.
        edit: changes the metadata at the end.
        without: the name of a tensor to leave out.
        more: further tensors by name.
        split_max_tensors: the number of tensors in each part; 0 writes one file.
    """
    config = model.config
    architecture = ARCHITECTURES[config.model_type]
    writer = gguf.GGUFWriter(str(path), architecture, split_max_tensors=split_max_tensors)
    _add_keys(writer, config)
    add_tokens(writer, config.vocab_size)
    if edit is not None:
        edit(writer)
    tensors = {name: tensor for name, tensor in tensors_of(model).items() if name != without}
    for name, tensor in {**tensors, **(more or {})}.items():
        values = np.ascontiguousarray(np.asarray(tensor, np.float32))
        if is_matrix(name, values.shape) and kind != "F32":
            quantised = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(name, gguf.quantize(values, quantised), raw_dtype=quantised)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def is_matrix(name: str, shape: tuple[int, ...]) -> bool:
    """Return whether llama.cpp quantises a tensor."""
    return len(shape) > 1 and shape[-1] % 32 == 0 and "norm" not in name and not name.endswith("bias")


def add_tokens(writer: gguf.GGUFWriter, count: int) -> None:
    """Add a byte-level vocabulary of `count` tokens, more than 129, with one merge."""
    tokens = [*BYTES, "!!"]
    tokens += [f"[PAD{index}]" for index in range(len(tokens), count)]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("dbrx")
    writer.add_token_list(tokens)
    writer.add_token_types([5 if token.startswith("[PAD") else 1 for token in tokens])
    writer.add_token_merges(["! !"])
    writer.add_eos_token_id(0)


def tensors_of(model: Any) -> dict[str, Tensor]:
    """Return the tensors of a GGUF file by name, in the order of the model's."""
    config = model.config
    architecture = gguf.MODEL_ARCH(
        next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == ARCHITECTURES[config.model_type])
    )
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    tensors = {}
    for name, tensor in _renamed(dict(model.state_dict()), config):
        written = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert written is not None, name
        tensors[written] = tensor
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") == "llama3":
        tensors["rope_freqs.weight"] = llama3_factors(rope, config.head_dim)
    if rope.get("rope_type") == "longrope":
        for length in ("long", "short"):
            tensors[f"rope_factors_{length}.weight"] = torch.tensor(rope[f"{length}_factor"])
    return tensors


def llama3_factors(rope: dict[str, Any], d_head: int) -> Tensor:
    """Return the numbers by which Llama 3.1 divides its frequencies."""
    factors = []
    for frequency in 1 / rope["rope_theta"] ** (torch.arange(0, d_head, 2).double() / d_head):
        length = 2 * torch.pi / frequency
        low, high = rope["low_freq_factor"], rope["high_freq_factor"]
        context, factor = rope["original_max_position_embeddings"], rope["factor"]
        if length < context / high:
            factors.append(1.0)
        elif length > context / low:
            factors.append(factor)
        else:
            smooth = (context / length - low) / (high - low)
            factors.append(1 / ((1 - smooth) / factor + smooth))
    return torch.tensor(factors)


def _renamed(state: dict[str, Tensor], config: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield the names and layouts of llama.cpp's converter, before it maps the names."""
    kind = config.model_type
    for name, tensor in state.items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        if kind in _ROTATED and name.endswith(("q_proj.weight", "q_proj.bias", "k_proj.weight", "k_proj.bias")):
            heads = config.num_attention_heads if ".q_proj" in name else config.num_key_value_heads
            halves = tensor.reshape(heads, 2, len(tensor) // heads // 2, *tensor.shape[1:])
            yield name, halves.swapaxes(1, 2).reshape(tensor.shape)
        elif kind.startswith("gemma") and name.endswith("norm.weight"):
            yield name, tensor + 1
        elif kind == "gpt_oss" and "experts" in name:
            yield from _experts_of_gpt_oss(name, tensor)
        elif name.endswith("experts.gate_up_proj"):
            gate, up = tensor.chunk(2, dim=1)
            yield name.replace("gate_up_proj", "gate_proj.weight"), gate
            yield name.replace("gate_up_proj", "up_proj.weight"), up
        elif name.endswith("experts.down_proj") or (kind == "gpt_oss" and name.endswith("sinks")):
            yield f"{name}.weight", tensor
        elif kind == "falcon" and "query_key_value" in name:
            yield name, _ungrouped(tensor, config)
        elif kind == "gpt2" and name.endswith((".c_attn.weight", ".c_proj.weight", ".c_fc.weight")):
            yield name, tensor.T
        elif kind == "stablelm" and ".norms." in name:
            stem, _, head = name.removesuffix(".weight").rpartition(".norms.")
            if head == "0":
                count = sum(other.startswith(f"{stem}.norms.") for other in state)
                yield f"{stem}.weight", torch.stack([state[f"{stem}.norms.{one}.weight"] for one in range(count)])
        elif name.endswith("e_score_correction_bias"):
            yield name.replace("_bias", ".bias"), tensor
        elif name.endswith("kv_b_proj.weight"):
            heads = tensor.view(config.num_attention_heads, -1, tensor.shape[-1])
            keys, values = heads.split([config.qk_nope_head_dim, config.v_head_dim], dim=1)
            yield name.replace("kv_b_proj", "k_b_proj"), keys.transpose(1, 2)
            yield name.replace("kv_b_proj", "v_b_proj"), values
        elif name.endswith("conv.conv.weight"):
            yield name, tensor.squeeze(1)
        elif name.endswith("shared_expert_gate.weight"):
            yield name, tensor.squeeze(0)
        else:
            yield name, tensor


def _experts_of_gpt_oss(name: str, tensor: Tensor) -> Iterator[tuple[str, Tensor]]:
    if name.endswith("_bias"):
        whole = name.removesuffix("_bias") + ".bias"
        parts = {"gate": tensor[..., ::2], "up": tensor[..., 1::2]} if "gate_up" in name else {}
    else:
        tensor, whole = tensor.transpose(-1, -2), f"{name}.weight"
        parts = {"gate": tensor[:, ::2], "up": tensor[:, 1::2]} if "gate_up" in name else {}
    if not parts:
        yield whole, tensor
    for part, values in parts.items():
        yield whole.replace("gate_up", part), values


def _ungrouped(tensor: Tensor, config: Any) -> Tensor:
    """Return all queries, then all keys, then all values of Falcon's fused rows."""
    groups, heads = _groups(config), config.num_attention_heads
    d_head = config.hidden_size // heads
    rows = tensor.view(groups, heads // groups + 2, d_head, *tensor.shape[1:])
    return torch.cat([rows[:, :-2].flatten(0, 2), rows[:, -2].flatten(0, 1), rows[:, -1].flatten(0, 1)])


def _groups(config: Any) -> int:
    """Return the number of heads of keys and values."""
    if config.model_type == "falcon" and not config.new_decoder_architecture:
        return 1 if config.multi_query else config.num_attention_heads
    names = ("num_kv_heads", "num_key_value_heads", "num_attention_heads")
    return int(next(count for name in names if (count := getattr(config, name, None))))


def _add_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    """Add the keys of an architecture, in the values of its configuration."""
    kind, heads = config.model_type, config.num_attention_heads
    d_head = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = _groups(config)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_head_count(heads)
    width = getattr(config, "ffn_hidden_size", None) or getattr(config, "intermediate_size", None) or config.n_inner
    writer.add_feed_forward_length(width)
    if kind == "lfm2":
        writer.add_head_count_kv([groups if one == "full_attention" else 0 for one in config.layer_types])
        writer.add_shortconv_l_cache(config.conv_L_cache)
    elif kind.startswith("deepseek"):
        writer.add_head_count_kv(1)
    else:
        writer.add_head_count_kv(groups)
    for name in ("rms_norm_eps", "norm_eps"):
        if hasattr(config, name):
            writer.add_layer_norm_rms_eps(getattr(config, name))
    for name in ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"):
        if hasattr(config, name):
            writer.add_layer_norm_eps(getattr(config, name))
    if "head_dim" in config.to_dict() and not kind.startswith("deepseek"):
        writer.add_key_length(d_head)
        writer.add_value_length(d_head)
    _rope_keys(writer, config, d_head)
    if kind == "llama":
        writer.add_vocab_size(config.vocab_size)
    if kind == "granite":
        writer.add_attention_scale(config.attention_multiplier)
        writer.add_embedding_scale(config.embedding_multiplier)
        writer.add_residual_scale(config.residual_multiplier)
        writer.add_logit_scale(config.logits_scaling)
    if kind == "cohere":
        writer.add_logit_scale(config.logit_scale)
        writer.add_rope_scaling_type(gguf.RopeScalingType.NONE)
    if kind == "gemma2":
        writer.add_attn_logit_softcapping(config.attn_logit_softcapping)
    if kind in ("gemma2", "gemma3_text") and config.final_logit_softcapping:
        writer.add_final_logit_softcapping(config.final_logit_softcapping)
    if kind in ("gemma2", "gemma3_text", "gpt_oss"):
        writer.add_sliding_window(config.sliding_window)
    if kind == "phi3":
        writer.add_sliding_window(config.sliding_window or 0)
    if kind == "stablelm":
        writer.add_parallel_residual(config.use_parallel_residual)
    if kind == "falcon":
        writer.add_tensor_data_layout("jploski")
    experts = getattr(config, "num_local_experts", None) or getattr(config, "n_routed_experts", None)
    if experts := experts or getattr(config, "num_experts", None):
        writer.add_expert_count(experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if kind == "gpt_oss":
        writer.add_expert_feed_forward_length(config.intermediate_size)
    elif hasattr(config, "moe_intermediate_size"):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    if kind == "qwen2_moe":
        writer.add_expert_shared_feed_forward_length(config.shared_expert_intermediate_size)
    if kind.startswith("deepseek"):
        _latent_keys(writer, config)


def _latent_keys(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_leading_dense_block_count(config.first_k_dense_replace)
    writer.add_vocab_size(config.vocab_size)
    if config.q_lora_rank:
        writer.add_q_lora_rank(config.q_lora_rank)
    writer.add_kv_lora_rank(config.kv_lora_rank)
    writer.add_key_length(config.kv_lora_rank + config.qk_rope_head_dim)
    writer.add_value_length(config.kv_lora_rank)
    writer.add_key_length_mla(config.qk_nope_head_dim + config.qk_rope_head_dim)
    writer.add_value_length_mla(config.v_head_dim)
    writer.add_expert_shared_count(config.n_shared_experts)
    writer.add_expert_weights_scale(config.routed_scaling_factor)
    is_third = config.model_type == "deepseek_v3"
    if is_third:
        writer.add_expert_weights_norm(config.norm_topk_prob)
    writer.add_expert_gating_func(gguf.ExpertGatingFuncType.SIGMOID if is_third else gguf.ExpertGatingFuncType.SOFTMAX)
    if config.n_group is not None:
        writer.add_expert_group_count(config.n_group)
        writer.add_expert_group_used_count(config.topk_group)


def _rope_keys(writer: gguf.GGUFWriter, config: Any, d_head: int) -> None:
    parameters = getattr(config, "rope_parameters", None)
    if not parameters:
        return
    rope = parameters.get("full_attention", parameters)
    width = config.qk_rope_head_dim if config.model_type.startswith("deepseek") else d_head
    writer.add_rope_dimension_count(int(width * rope.get("partial_rotary_factor", 1.0)))
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type == "gemma3_text":
        writer.add_rope_freq_base_swa(parameters["sliding_attention"]["rope_theta"])
    if rope["rope_type"] == "linear":
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        for name, add in {
            "attention_factor": writer.add_rope_scaling_yarn_attn_factor,
            "beta_fast": writer.add_rope_scaling_yarn_beta_fast,
            "beta_slow": writer.add_rope_scaling_yarn_beta_slow,
        }.items():
            if rope.get(name) is not None:
                add(rope[name])
        if "mscale_all_dim" in rope:
            writer.add_rope_scaling_yarn_log_mul(0.1 * rope["mscale_all_dim"])
    if config.model_type == "phi3":
        writer.add_rope_scaling_orig_ctx_len(config.original_max_position_embeddings)
        if rope["rope_type"] == "longrope":
            writer.add_rope_scaling_attn_factors(rope["attention_factor"])
