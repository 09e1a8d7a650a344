"""Quantised checkpoints of tiny models, by format, and changes of them."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from support import quantised as q
from support.tiny_configs import CONFIGS

from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.source import ModelSource, fetch, resolve_source

WEIGHTS = "model.safetensors"
A_MATRIX = "model.layers.1.self_attn.q_proj"


def compressed(kind: str, **weights: Any) -> dict[str, Any]:
    one = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True, **weights}
    return {
        "quant_method": "compressed-tensors",
        "format": kind,
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": one}},
        "ignore": ["lm_head"],
    }


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": q.GROUP, "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "group_size": q.GROUP, "version": "gemm", "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3", "weight_block_size": [16, 32]}
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": q.GROUP}
NF4 = {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
WIDE = {"hidden_size": 64, "intermediate_size": 96}

# Family, changes of its configuration, settings, packer, and the name in reports. A block of 16 × 32 does not divide
# the matrices of Qwen3 (48 and 80 columns) and DeepSeek, as one of 128 does not divide the 576 rows of DeepSeek-V3.
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any], q.Packer, str]] = {
    "fp8": ("qwen3", {}, FP8, q.fp8((16, 32)), "FP8 (e4m3, blocks of 16 × 32)"),
    "fp8-latent": ("deepseek_v3", {}, FP8, q.fp8((16, 32)), "FP8 (e4m3, blocks of 16 × 32)"),
    "fp8-matrix": (
        "llama",
        {},
        {"quant_method": "fp8", "activation_scheme": "static"},
        q.fp8((0, 0), "_scale"),
        "FP8 (e4m3, one scale per matrix or row)",
    ),
    "fp8-e5m2": (
        "llama",
        {},
        {"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": None},
        q.fp8(None, dtype=torch.float8_e5m2),
        "FP8 (e5m2, one scale per matrix or row)",
    ),
    "fbgemm": ("llama", {}, {"quant_method": "fbgemm_fp8"}, q.fp8(None, "_scale"), "FP8 (e4m3, one scale per row)"),
    "compressed-fp8": (
        "llama",
        {},
        compressed("float-quantized"),
        q.fp8(None, "_scale"),
        "FP8 (e4m3, one scale per row, compressed-tensors)",
    ),
    "compressed-fp8-blocks": (
        "qwen3",
        {},
        compressed("float-quantized", strategy="block", block_structure=[16, 32]),
        q.fp8((16, 32), "_scale"),
        "FP8 (e4m3, blocks of 16 × 32, compressed-tensors)",
    ),
    "compressed-fp8-tensor": (
        "llama",
        {},
        compressed("float-quantized", strategy="tensor"),
        q.fp8((0, 0), "_scale"),
        "FP8 (e4m3, one scale per matrix, compressed-tensors)",
    ),
    "compressed-int8": (
        "llama",
        {},
        compressed("int-quantized", type="int"),
        q.compressed_int8,
        "INT8 (one scale per row, compressed-tensors)",
    ),
    "compressed-int4": (
        "llama",
        {},
        compressed("pack-quantized", **INT4),
        q.compressed_integers(symmetric=True),
        "INT4 (groups of 16, compressed-tensors)",
    ),
    "compressed-int4-asymmetric": (
        "llama",
        {},
        compressed("pack-quantized", **INT4),
        q.compressed_integers(symmetric=False, act_order=True),
        "INT4 (groups of 16, compressed-tensors)",
    ),
    "gptq": ("llama", {}, GPTQ, q.gptq(4), "GPTQ (4 bits, groups of 16)"),
    "gptq-8": ("llama", {}, {**GPTQ, "bits": 8}, q.gptq(8), "GPTQ (8 bits, groups of 16)"),
    "gptq-2-v2": (
        "llama",
        {},
        {**GPTQ, "bits": 2, "checkpoint_format": "gptq_v2"},
        q.gptq(2, offset=0),
        "GPTQ (2 bits, groups of 16)",
    ),
    "gptq-act-order": (
        "qwen2",
        {},
        {**GPTQ, "desc_act": True},
        q.gptq(4, act_order=True),
        "GPTQ (4 bits, groups of 16)",
    ),
    "awq": ("qwen2", {}, AWQ, q.awq, "AWQ (4 bits, groups of 16)"),
    "awq-experts": ("qwen3_moe", {"moe_intermediate_size": 32}, AWQ, q.awq, "AWQ (4 bits, groups of 16)"),
    "bitsandbytes-8": (
        "llama",
        {},
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        q.bitsandbytes_8bit,
        "bitsandbytes (8 bits, one scale per row)",
    ),
    "bitsandbytes-4": ("llama", {}, NF4, q.bitsandbytes_4bit(nested=False), "bitsandbytes (NF4, 4 bits)"),
    "bitsandbytes-4-nested": ("llama", {}, NF4, q.bitsandbytes_4bit(nested=True), "bitsandbytes (NF4, 4 bits)"),
    "mxfp4": ("gpt_oss", WIDE, {"quant_method": "mxfp4"}, q.mxfp4, "MXFP4 (4 bits, blocks of 32)"),
}


def saved(case: str, folder: Path, dtype: torch.dtype = torch.bfloat16) -> dict[str, torch.Tensor]:
    family, changes, settings, packer, _ = CASES[case]
    config = copy.deepcopy(CONFIGS[family])
    for name, value in changes.items():
        setattr(config, name, value)
    return q.save_quantised(folder, config, settings, packer, dtype)


def source_of(folder: Path) -> ModelSource:
    return resolve_source(ModelSpec(id=str(folder)), Path())


def fetched(folder: Path) -> Path:
    return fetch(source_of(folder), folder.parent / "cache")


def changed(folder: Path, change: Any) -> None:
    """Change the stored tensors in place."""
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)


def settings_changed(folder: Path, **changes: Any) -> None:
    raw = json.loads((folder / "config.json").read_text())
    raw["quantization_config"] = {**raw["quantization_config"], **changes}
    (folder / "config.json").write_text(json.dumps(raw))
