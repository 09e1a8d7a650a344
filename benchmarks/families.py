"""Survey a tiny random model of every family of language models that the installed transformers has.

Each configuration gets the same unusual sizes: heads wider than d_model / n_heads, grouped keys, another base of rotary
positions, biases, sliding windows, an untied head, and a dense block before the blocks with experts. A family takes the
options that its configuration has, and those of OPTIONS. A multimodal model gets small parts for images.

The error is the largest relative error of two comparisons. The first is the parity certificate: batches with padding
against plain runs of single prompts, at every site. The second compares the stream with the hidden states that
transformers returns, in which no record takes part. The error of heads compares what each head puts out for a prompt of
one token with what its weights in the files say; there is none if a gate multiplies the output, or if it is no site. In
bfloat16 and in float16, only the parity certificate is computed.

The last line is one JSON object.

Usage: python benchmarks/families.py --help
"""

import copy
import re
import tempfile
from pathlib import Path
from typing import Any

import measuring  # first: it prepares the process before torch is imported
import numpy as np
import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_MASKED_LM_MAPPING,
    MODEL_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForMaskedLM,
    AutoModelForSeq2SeqLM,
)

from theodolite.errors import TheodoliteError
from theodolite.sites import Site
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import HALF_PROBES, SetPlan, plan_set, probe_prompts
from theodolite_jobs.models.anatomy import check_circuits, dimensions_of
from theodolite_jobs.models.batching import can_share_prefix, length_class_of
from theodolite_jobs.models.families import is_encoder_alone, known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.loaded import LoadedModel
from theodolite_jobs.models.quiet import quiet_transformers
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.sharding import check_shardable
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

HEADS = (
    (MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING, AutoModelForImageTextToText),
    (MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM),
    (MODEL_FOR_MASKED_LM_MAPPING, AutoModelForMaskedLM),
)
LAYERS = 4
LENGTHS = (12, 30, 17, 25)
MOST_WEIGHTS = 5_000_000

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "pad_token_id": 1,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "sliding_window": 6,
    "rope_theta": 5000.0,
    "attention_bias": True,
    "mlp_bias": True,
    "tie_word_embeddings": False,
}
EXPERTS: dict[str, Any] = {
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "moe_num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_k": 2,
    "top_k_experts": 2,
    "n_group": 1,
    "topk_group": 1,
    "moe_intermediate_size": 24,
    "shared_expert_intermediate_size": 40,
    "first_k_dense_replace": 1,
    "mlp_only_layers": [0],
}
LATENT = {"q_lora_rank": 12, "kv_lora_rank": 12, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
GPT = {"n_embd": 48, "n_layer": LAYERS, "n_head": 4, "n_positions": 128, "rotary_dim": 8}
IMAGE_TOKENS = {"image_token_id": 60, "image_token_index": 60, "video_token_id": 61, "vision_start_token_id": 62}
OTHER_PARTS: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "intermediate_size", "embed_dim", "hidden_dim", "projection_dim"), 16),
    **dict.fromkeys(("projector_dim", "projector_hidden_size", "vision_output_dim"), 16),
    **dict.fromkeys(("projector_input_dim", "projector_output_dim", "num_position_embeddings"), 16),
    **dict.fromkeys(("num_hidden_layers", "num_attention_heads", "depth", "num_heads"), 1),
    "image_size": 28,
    "patch_size": 14,
    "out_hidden_size": 48,
    "vocab_size": 64,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
}
MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 5000.0, "mrope_section": [2, 2, 2]}}
SAME_WIDTH = {"head_dim": 12}
UNGROUPED = {"num_key_value_heads": 4}  # in latent attention, each head has its own keys and values

MAMBA: dict[str, Any] = {"mamba_n_heads": 4, "mamba_d_state": 8, "mamba_expand": 2, "mamba_chunk_size": 8}
HYBRID = {"layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention"]}
DECODER: dict[str, Any] = {"num_decoder_layers": 3, "decoder_layers": 3, "decoder_attention_heads": 2}
DECODER |= {"d_ff": 80, "encoder_ffn_dim": 80, "decoder_ffn_dim": 64, "scale_embedding": True}
DECODER |= {"relative_attention_num_buckets": 8, "relative_attention_max_distance": 6}
SHARED: dict[str, Any] = {"shared_intermediate_size": 40, "residual_multiplier": 0.4}

OPTIONS: dict[str, dict[str, Any]] = {
    **dict.fromkeys(("axk1", "axk2", "deepseek_v2", "deepseek_v3", "deepseek_v32", "esmc"), UNGROUPED),
    **dict.fromkeys(("glm4_moe_lite", "glm_moe_dsa", "minicpm3", "youtu"), UNGROUPED),
    "dots1": {"n_shared_experts": 1},
    "helium": SAME_WIDTH,
    **dict.fromkeys(("qwen2_vl_text", "qwen2_5_vl_text", "qwen2_5_omni_text"), MROPE | SAME_WIDTH),
    **dict.fromkeys(("glm4v_text", "glm4v_moe_text", "glm_ocr_text", "paddleocr_vl_text"), MROPE | SAME_WIDTH),
    "bamba": MAMBA | {"attn_layer_indices": [1]},
    "falcon_h1": MAMBA | {"mamba_d_ssm": 64, "attention_out_multiplier": 0.6, "ssm_out_multiplier": 0.3},
    "gemma3n_text": {"layer_types": ["sliding_attention", "full_attention"] * 2, "num_kv_shared_layers": 0}
    | {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "laurel_rank": 8},
    "gemma4_text": {"vocab_size_per_layer_input": 64, "hidden_size_per_layer_input": 16, "num_kv_shared_layers": 1}
    | {"layer_types": ["full_attention", "sliding_attention"] + ["full_attention"] * 2, "global_head_dim": 24},
    "gemma4_unified_text": {"global_head_dim": 24, "num_global_key_value_heads": 1, "attention_k_eq_v": True},
    "granitemoehybrid": MAMBA | HYBRID | SHARED,
    "granitemoe_swa": SHARED,
    "granitemoeshared": SHARED,
    "nemotron_h": {"layer_types": ["linear_attention", "moe", "full_attention", "mlp"], "n_groups": 1}
    | {"mamba_num_heads": 4, "mamba_head_dim": 24, "ssm_state_size": 8, "chunk_size": 8, "n_shared_experts": 1}
    | {"moe_shared_expert_intermediate_size": 40},
    "stablelm": {"partial_rotary_factor": 0.5},
}
"""Options of families that do not run with the sizes of all."""


def main() -> None:
    options = measuring.read_options(
        "Survey a tiny model of every family; print JSON.", only=(None, "the families, with commas between them")
    )
    torch.set_num_threads(1)  # a tiny model is slower on more
    names = options.only.split(",") if options.only else language_models()
    families = {}
    for name in names:
        families[name] = result = survey(name)
        measuring.say(f"{name:28} " + ", ".join(f"{key}: {value}" for key, value in result.items()))
    measuring.publish({"families": families}, options.out)


def language_models() -> list[str]:
    """Return the model types of all decoders, encoders and multimodal models that write or read text.

    Of the models with an encoder and a decoder, they are those with a record of the encoder.
    """
    return sorted(
        name
        for name, config in CONFIG_MAPPING.items()
        if config in MODEL_MAPPING and config.model_type == name
        if is_encoder_alone(config) or any(config in kind for kind, _ in HEADS)
    )


def survey(name: str) -> dict[str, Any]:
    """Return how a family's sites are known, the largest error, and what refuses the model, its heads or its words."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            with quiet_transformers():
                save_tiny_model(tiny_config(name), folder)
        except Exception as error:  # each family fails with another error
            return {"not_built": one_line(error)}
        return {**stream_of(Path(folder)), "tensor_parallel": tensor_parallel(Path(folder))}


def stream_of(folder: Path) -> dict[str, Any]:
    """Return the results of the model in a folder, in float32 and in half precision, or what refuses it."""
    try:
        config = load_config(folder)
        known_anatomy(config)  # a survey reads these first; they refuse an encoder with a decoder
        dimensions_of(config)
        model = load_model(folder, dtype="float32")
        error = max(certified(model), against_hidden_states(model))
    except TheodoliteError as refusal:
        return {"refused": one_line(refusal)}
    except Exception as error:
        return {"failed": one_line(error)}
    return {
        "text_model": model.config.model_type,
        "known_by": model.anatomy.known_by,
        "sites": [site.value for site in (*model.anatomy.sites, Site.RESID_FINAL)],
        "max_error": error,
        "bfloat16": half_precision(folder, "bfloat16"),
        "float16": half_precision(folder, "float16"),
        **weights_of(folder, model),
    }


def half_precision(folder: Path, dtype: str) -> Any:
    """Return the largest error against plain runs in the same precision, or what refuses the model in it."""
    try:
        return {"max_error": certified(load_model(folder, dtype=dtype))}
    except Exception as error:
        return one_line(error)


def tensor_parallel(folder: Path) -> Any:
    """Return whether two GPUs can each hold a shard of every matrix, or why not."""
    try:
        check_shardable(load_config(folder), 2)
    except TheodoliteError as refusal:
        return one_line(refusal)
    return True


def auto_of(config: Any) -> Any:
    """Return the class of transformers that loads a model of a configuration with its head."""
    return AutoModelForSeq2SeqLM if is_encoder_alone(config) else next(a for kind, a in HEADS if type(config) in kind)


def save_tiny_model(config: Any, folder: str) -> None:
    """Save a random model with its head."""
    auto = auto_of(config)
    with torch.device("meta"):
        weights = sum(parameter.numel() for parameter in auto.from_config(copy.deepcopy(config)).parameters())
    if weights > MOST_WEIGHTS:
        raise ValueError(f"the sizes do not make it tiny: it has {weights:,} weights")
    torch.manual_seed(0)
    model = auto.from_config(config).float().eval().requires_grad_(False)
    for path, parameter in model.named_parameters():
        if parameter.ndim == 1 or "norm" in path:
            parameter.add_(0.3 * torch.randn_like(parameter))
        else:
            # About as large as trained weights, so that each branch has an effect; the scores of T5 have no scale.
            parameter.mul_(0.4 if path.endswith("SelfAttention.q.weight") else 4)
    for path, buffer in model.named_buffers():
        if path.endswith("layer_scalar"):  # the factor of a block of Gemma 4
            buffer.uniform_(0.5, 1.5)
    model.save_pretrained(folder)


def tiny_config(name: str, drawn: dict[str, Any] | None = None) -> Any:
    """Return the configuration of a family; a multimodal model gets a text part, and small other parts.

    The options `drawn` are those of the text part, and replace the usual ones.
    """
    config_class = CONFIG_MAPPING[name]
    own = {} if "text_config" in config_class.sub_configs else drawn or {}
    options = {**known_options(config_class), **OPTIONS.get(name, {}), **own}
    if "text_config" in config_class.sub_configs:
        default = config_class()
        for part in config_class.sub_configs:
            if getattr(default, part) is None:  # a part that a model may lack
                continue
            kind = type(getattr(default, part))
            is_text = part == "text_config"
            sizes = known_options(kind) | OPTIONS.get(kind.model_type, {}) | (drawn or {}) if is_text else {}
            options[part] = kind(**copy.deepcopy(sizes or known_options(kind, OTHER_PARTS)))
    return config_class(**copy.deepcopy(options))


def known_options(config_class: Any, options: dict[str, Any] | None = None) -> dict[str, Any]:
    """Return the options that a configuration has, by its own names or by those that it maps to them."""
    own = DECODER if is_encoder_alone(config_class) else {}
    known = {*config_class.__dataclass_fields__, *config_class.attribute_map, "rope_theta", "pad_token_id"}
    options = options or {**SIZES, **EXPERTS, **LATENT, **GPT, **IMAGE_TOKENS, **own}
    return {name: value for name, value in options.items() if name in known}


def random_tokens() -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(0)
    shared = torch.randint(3, 64, (9,), generator=generator).tolist()
    return [
        (*shared, 3 + index, *torch.randint(3, 64, (length - 10,), generator=generator).tolist())
        for index, length in enumerate(LENGTHS)
    ]


def certified(model: LoadedModel) -> float:
    plan, probes = plan_of(model), probe_prompts(random_tokens(), HALF_PROBES)
    return certify(model, sites_of(model), range(LAYERS), {"set": plan.layout}, {"set": probes}).max_error


def plan_of(model: LoadedModel) -> SetPlan:
    """Return the plan of the random tokens: one shard of padded batches, behind a shared prefix if it may be shared."""
    share = can_share_prefix(model.config, model.anatomy)
    options = {"shard_prompts": len(LENGTHS), "batch_tokens": 64, "share_prefix": share}
    return plan_set("set", random_tokens(), (-1,), **options, length_class=length_class_of(model.config))


def sites_of(model: LoadedModel) -> tuple[Site, ...]:
    return (*model.anatomy.taps, *model.anatomy.partial, Site.RESID_FINAL)


@torch.inference_mode()
def against_hidden_states(model: LoadedModel) -> float:
    """Return the largest error of the inputs of blocks against `hidden_states`, which no record takes part in."""
    ids = random_tokens()[0]
    theirs = model.module(input_ids=torch.tensor([ids]), output_hidden_states=True, use_cache=False).hidden_states
    ours = read_sites(model, ids, range(-len(ids), 0))[Site.RESID_PRE]
    expected = [state[0].double().numpy() for state in theirs[:LAYERS]]
    return max(float(relative_errors(ours[:, layer], state).max()) for layer, state in enumerate(expected))


def weights_of(folder: Path, loaded: LoadedModel) -> dict[str, Any]:
    """Return whether heads and words can be computed, or why not."""
    try:
        weights, anatomy = Weights(folder, loaded.config), loaded.anatomy
        layers = anatomy.attention_layers(LAYERS)
        check_circuits(anatomy, loaded.config.model_type)
        for layer in layers:
            read_circuits(weights, layer)
        # Circuits leave a gate of the outputs out.
        captured = Site.HEAD_OUT in {*anatomy.taps, *anatomy.partial} and not (anatomy.files and anatomy.files.gated)
        error = max(heads_error(weights, loaded, layer) for layer in layers) if captured else None
    except TheodoliteError as refusal:
        return {"heads": one_line(refusal), "words": one_line(refusal)}
    except Exception as failure:
        return {"heads_failed": one_line(failure)}
    return {"heads": True, "heads_error": error, "words": weights.has_unembedding}


def heads_error(weights: Weights, model: LoadedModel, layer: int) -> float:
    """Return the error of the values of heads against the captured outputs of heads, for a prompt of one token."""
    circuits, read = read_circuits(weights, layer), read_sites(model, (5,), [-1])
    norm = model.anatomy.norms.get("attention")
    x = torch.from_numpy(read[Site.RESID_PRE][0, layer]).float()
    if norm is not None and not model.anatomy.post_norm:
        x = model.blocks[layer].get_submodule(norm)(x)
    value = x.double().numpy() @ circuits.value + (0 if circuits.value_bias is None else circuits.value_bias)
    heads, theirs = value[circuits.kv_head_of], read[Site.HEAD_OUT][0, layer].reshape(model.dimensions.n_heads, -1)
    attention = weights.attention(layer)
    if attention.sinks is not None or attention.q_rotary is not None:  # sinks, or the norm of a latent, scale a head
        heads = heads * (np.linalg.norm(theirs, axis=1) / np.linalg.norm(heads, axis=1))[:, None]
    return float(relative_errors(heads.reshape(-1), theirs.reshape(-1)).max())


def one_line(error: Exception) -> str:
    message = re.sub(r" in /tmp/\w+", "", " ".join(str(error).split()))  # the folder of the tiny model
    return f"{type(error).__name__}: {message[:240]}"


if __name__ == "__main__":
    main()
