"""Convert a Qwen1 checkpoint once into Qwen2's layout, so that the checkpoint's own code never runs."""

from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, first_of
from theodolite_jobs.models.config_sizes import read_config
from theodolite_jobs.models.convert.files import atomic_folder, create_once, read_json, write_index
from theodolite_jobs.models.convert.qwen1_tokenizer import write_tokenizer
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.stages import counted

# Qwen1's tensor names and Qwen2's. If there are several new names, they share the rows evenly, in this order.
_OUTSIDE_BLOCKS = {
    "transformer.wte.weight": ["model.embed_tokens.weight"],
    "transformer.ln_f.weight": ["model.norm.weight"],
    "lm_head.weight": ["lm_head.weight"],
}
_IN_BLOCK = {
    "ln_1.weight": ["input_layernorm.weight"],
    "ln_2.weight": ["post_attention_layernorm.weight"],
    "attn.c_attn.weight": ["self_attn.q_proj.weight", "self_attn.k_proj.weight", "self_attn.v_proj.weight"],
    "attn.c_attn.bias": ["self_attn.q_proj.bias", "self_attn.k_proj.bias", "self_attn.v_proj.bias"],
    "attn.c_proj.weight": ["self_attn.o_proj.weight"],
    # Qwen1 computes c_proj(w1(x) * silu(w2(x))).
    "mlp.w1.weight": ["mlp.up_proj.weight"],
    "mlp.w2.weight": ["mlp.gate_proj.weight"],
    "mlp.c_proj.weight": ["mlp.down_proj.weight"],
}
# Some checkpoints store these, which follow from the configuration.
_DERIVED = ("rotary_emb.inv_freq", "attn.masked_bias")

_SIZES = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "seq_length")
# Qwen2 computes the same only with these values; they are also the defaults for a configuration without them.
_REQUIRED = {
    "no_bias": True,
    "rotary_pct": 1.0,
    "scale_attn_weights": True,
    "tie_word_embeddings": False,
    "use_cache_quantization": False,
}
_REFUSED = {
    "quantization_config": "its weights are quantised; use the model without Int4 or Int8 in its name",
    "visual": "it also reads images; use a text-only model",
    "audio": "it also reads sound; use a text-only model",
}


def is_qwen1(folder: Path) -> bool:
    """Return whether a folder's configuration is of Qwen1; False if it cannot be read."""
    try:
        raw = read_json(folder / "config.json")
    except ModelError:
        return False
    if raw.get("model_type"):
        return bool(raw["model_type"] == "qwen")
    return "QWenLMHeadModel" in f"{raw.get('architectures')} {raw.get('auto_map')}"


def convert_qwen1(folder: Path, into: Path, *, weights: bool = True) -> Path:
    """Write a Qwen1 checkpoint to `into` as a Qwen2 checkpoint, unless `into` exists; return `into`.

    The folder appears completely or not at all; one shard at a time is in memory. Planning needs no `weights`.

    Raises:
        ModelError: a file cannot be read, or Qwen2 would compute different numbers.
    """

    def convert() -> None:
        with atomic_folder(into) as staging:
            config = qwen2_config(read_config(folder))
            config.save_pretrained(staging)
            write_tokenizer(folder, staging)
            if weights:
                _write_weights(folder, staging, config.num_hidden_layers)

    with plain_errors(f"convert {folder} from Qwen1"):
        return create_once(into, convert)


def qwen2_config(raw: Mapping[str, Any]) -> Any:
    """Return the `Qwen2Config` of a Qwen1 configuration.

    The context length is `seq_length`, the training length. Beyond it, Qwen1 scales queries by the logarithm of their
    position and stretches its rotary frequencies; Qwen2 does not.

    Raises:
        ModelError: a size is missing, or Qwen2 would compute different numbers.
    """
    from transformers import Qwen2Config

    _check_config(raw)
    return Qwen2Config(
        vocab_size=raw["vocab_size"],
        hidden_size=raw["hidden_size"],
        intermediate_size=raw["intermediate_size"] // 2,  # Qwen1 counts gate and up projection together
        num_hidden_layers=raw["num_hidden_layers"],
        num_attention_heads=raw["num_attention_heads"],
        num_key_value_heads=raw["num_attention_heads"],
        max_position_embeddings=raw["seq_length"],
        rms_norm_eps=raw.get("layer_norm_epsilon", 1e-6),
        rope_parameters={"rope_type": "default", "rope_theta": float(raw.get("rotary_emb_base", 10_000))},
        tie_word_embeddings=False,
        dtype=_dtype(raw),
        architectures=["Qwen2ForCausalLM"],
    )


def _check_config(raw: Mapping[str, Any]) -> None:
    for name, reason in _REFUSED.items():
        if raw.get(name):
            raise ModelError(f"config.json: a Qwen1 model with {name} cannot be read as Qwen2: {reason}")
    for name in _SIZES:
        if name not in raw:
            raise ModelError(f"config.json: a Qwen1 model needs {name}; use the file of a newer revision")
    for name, required in _REQUIRED.items():
        if raw.get(name, required) != required:
            raise ModelError(
                f"config.json: {name} is {raw[name]!r}; only Qwen1 models with {name} {required!r} can be read as Qwen2"
            )
    d_head, heads, d_model = raw.get("kv_channels", 128), raw["num_attention_heads"], raw["hidden_size"]
    if d_head * heads != d_model:
        raise ModelError(
            f"config.json: kv_channels is {d_head}, but hidden_size {d_model} / num_attention_heads {heads} is "
            f"{d_model / heads:g}; only Qwen1 models with equal values can be read as Qwen2"
        )


def _dtype(raw: Mapping[str, Any]) -> str:
    """Return the declared dtype, else bfloat16, which the authors' code uses if the device supports it."""
    flags = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
    flagged = (dtype for flag, dtype in flags.items() if raw.get(flag))
    declared = raw.get("torch_dtype") or raw.get("dtype") or next(flagged, "bfloat16")
    return str(declared).removeprefix("torch.")


def _write_weights(folder: Path, staging: Path, layers: int) -> None:
    names = dict(_OUTSIDE_BLOCKS)
    for layer in range(layers):
        for old, new in _IN_BLOCK.items():
            names[f"transformer.h.{layer}.{old}"] = [f"model.layers.{layer}.{name}" for name in new]
    from theodolite_jobs.models.tensors import TensorFiles  # it loads torch

    files = TensorFiles(folder)
    _check_names(folder, files.headers.keys(), names)
    shards = [folder / file for file in sorted({one.file for one in files.headers.values()})]
    weight_map: dict[str, str] = {}
    total_size = 0
    for number, shard in enumerate(counted(shards, len(shards), "converting", "files"), start=1):
        file = staging / f"model-{number:05}-of-{len(shards):05}.safetensors"
        sizes = _write_shard(shard, file, names)
        weight_map |= dict.fromkeys(sizes, file.name)
        total_size += sum(sizes.values())
    write_index(staging, weight_map, total_size)


def _check_names(folder: Path, stored: Set[str], names: Mapping[str, Sequence[str]]) -> None:
    unknown = sorted(name for name in stored - names.keys() if not name.endswith(_DERIVED))
    if unknown:
        raise ModelError(f"the weights in {folder} have {first_of(unknown, 'tensor')}, unknown to Qwen1")
    missing = sorted(names.keys() - stored)
    if missing:
        raise ModelError(f"the weights in {folder} lack {first_of(missing, 'tensor')}")


def _write_shard(shard: Path, into: Path, names: Mapping[str, Sequence[str]]) -> dict[str, int]:
    """Write one shard under new names, and return the number of bytes of each tensor."""
    from safetensors import safe_open
    from safetensors.torch import save_file

    tensors: dict[str, Any] = {}
    with safe_open(shard, "pt") as file:
        for old in sorted(names.keys() & set(file.keys())):
            parts = file.get_tensor(old).chunk(len(names[old]))
            # Copy, because tensors that share memory cannot be saved.
            tensors |= {new: part.clone() for new, part in zip(names[old], parts, strict=True)}
    save_file(tensors, into, metadata={"format": "pt"})
    return {name: tensor.nbytes for name, tensor in tensors.items()}
