"""Quantised checkpoints that are wrong or unknown are refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.each import each
from support.errors import only_line
from support.quantised_cases import (
    A_MATRIX,
    AWQ,
    FP8,
    GPTQ,
    WEIGHTS,
    changed,
    compressed,
    fetched,
    saved,
    settings_changed,
)
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.stored_names import check_names
from theodolite_jobs.models.weights import Weights


def lacking(ending: str) -> Any:
    return lambda tensors: tensors.pop(f"{A_MATRIX}{ending}")


def cut(ending: str, dim: int = 0) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        name = f"{A_MATRIX}{ending}"
        tensors[name] = tensors[name].narrow(dim, 0, tensors[name].shape[dim] - 1)

    return change


def cast(ending: str, dtype: torch.dtype) -> Any:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        tensors[f"{A_MATRIX}{ending}"] = tensors[f"{A_MATRIX}{ending}"].to(dtype)

    return change


def set_to(ending: str, value: float) -> Any:
    return lambda tensors: tensors[f"{A_MATRIX}{ending}"].fill_(value)


WRONG = {
    "fp8-without-scales": (
        "fp8",
        lacking(".weight_scale_inv"),
        f"{A_MATRIX}.weight in float8_e4m3fn without the tensors",
    ),
    "fp8-without-values": ("fp8", lacking(".weight"), f"lack the tensor {A_MATRIX}.weight, without which"),
    "bitsandbytes-layout": (
        "bitsandbytes-8",
        set_to(".weight_format", 2),
        "the weight_format is 2, and only rows (0) can be read",
    ),
    "fp8-scales": ("fp8", cut(".weight_scale_inv"), "the scales have the shape (3, 2), and a matrix (64, 48) needs"),
    "fp8-e5m2": ("fp8", cast(".weight", torch.float8_e5m2), "float8_e5m2, and config.json means float8_e4m3fn"),
    "fp8-bytes": ("fp8", cast(".weight_scale_inv", torch.uint8), "the scales are uint8"),
    "fp8-nan": ("fp8", set_to(".weight_scale_inv", float("nan")), "not finite"),
    "gptq-without-zeros": ("gptq", lacking(".qzeros"), f"lack the tensor {A_MATRIX}.qzeros, without which"),
    "gptq-without-scales": ("gptq", lacking(".scales"), f"lack the tensor {A_MATRIX}.scales, without which"),
    "gptq-cut": ("gptq", cut(".qweight"), "the groups of 40 columns are not numbers below 3"),
    "gptq-groups": ("gptq-act-order", set_to(".g_idx", 3), "the groups of 48 columns are not numbers below 3"),
    "awq-zeros": ("awq", cut(".qzeros", 1), "the zero points (40, 3)"),
    "mxfp4-scales": (
        "mxfp4",
        lambda tensors: tensors.pop("model.layers.1.mlp.experts.down_proj_scales"),
        "lack the tensor model.layers.1.mlp.experts.down_proj_scales, without which",
    ),
    "mxfp4-shape": (
        "mxfp4",
        lambda tensors: tensors.update({(name := "model.layers.1.mlp.experts.down_proj_scales"): tensors[name][:, 1:]}),
        "the blocks have the shape",
    ),
    "int4-shape": ("compressed-int4", set_to(".weight_shape", 40), "weight_shape is (40, 40)"),
    "int4-without-shape": ("compressed-int4", lacking(".weight_shape"), f"lack the tensor {A_MATRIX}.weight_shape"),
    "nf4-cut": ("bitsandbytes-4", cut(".weight"), "do not fill the shape [64, 48]"),
    "int8-scales": ("bitsandbytes-8", cut(".SCB"), "the scales have the shape (63,)"),
}


@each("wrong", WRONG)
def test_tensors_that_do_not_fit_are_named(wrong: str, tmp_path: Path) -> None:
    case, change, message = WRONG[wrong]
    saved(case, tmp_path / "model")
    changed(tmp_path / "model", change)
    with pytest.raises(ModelError) as caught:
        fetched(tmp_path / "model")
    assert message in only_line(caught)
    assert [path.name for path in (tmp_path / "cache" / "dequantised").iterdir() if path.is_dir()] == []


LIES = {
    "bits": (
        "gptq",
        {"bits": 8},
        "are not GPTQ (8 bits, groups of 16), as config.json says: model.layers.0.mlp.down_proj",
    ),
    "group": ("gptq", {"group_size": 8}, "are not GPTQ (4 bits, groups of 8), as config.json says"),
    "awq-group": ("awq", {"group_size": 48}, "are not AWQ (4 bits, groups of 48), as config.json says"),
    "blocks": ("fp8", {"weight_block_size": [16, 16]}, "are not FP8 (e4m3, blocks of 16 × 16), as config.json says"),
    "method": ("gptq", {"quant_method": "fp8"}, "no tensor is stored in this way"),
    "kind": ("fp8", {"fmt": "e5m2"}, "float8_e4m3fn, and config.json means float8_e5m2"),
}


@each("lie", LIES)
def test_a_configuration_that_lies_is_named(lie: str, tmp_path: Path) -> None:
    case, changes, message = LIES[lie]
    saved(case, tmp_path / "model")
    settings_changed(tmp_path / "model", **changes)
    with pytest.raises(ModelError) as caught:
        fetched(tmp_path / "model")
    assert message in only_line(caught)


def test_a_plain_checkpoint_that_claims_to_be_quantised_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    plain = saved("gptq", folder)
    save_file(plain, folder / WEIGHTS)
    with pytest.raises(ModelError) as caught:
        fetched(folder)
    assert "describes weights in GPTQ (4 bits, groups of 16), but no tensor is stored in this way" in only_line(caught)


def test_quantised_matrices_that_the_configuration_hides_are_named(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    saved("fp8", folder)
    raw = json.loads((folder / "config.json").read_text())
    del raw["quantization_config"]
    (folder / "config.json").write_text(json.dumps(raw))
    assert fetched(folder) == folder
    readers = (load_model, lambda folder: Weights(folder, load_config(folder)))
    for action in readers:
        with pytest.raises(ModelError) as caught:
            action(folder)
        assert "weight_scale_inv; use the config.json that belongs" in only_line(caught)
    tensors = load_file(folder / WEIGHTS)
    save_file({name: one for name, one in tensors.items() if "scale" not in name}, folder / WEIGHTS)
    for action in (*readers, lambda folder: check_names(folder, load_config(folder))):
        with pytest.raises(ModelError) as caught:
            action(folder)
        assert "in F8_E4M3, and config.json describes no quantisation" in only_line(caught)


UNKNOWN = {
    "method": ({"quant_method": "aqlm"}, "quantised with 'aqlm', which cannot be dequantised here; use the original"),
    "no-method": ({"bits": 4}, "a method that config.json does not name"),
    "list": ([4], "a method that config.json does not name"),
    "bits": ({**GPTQ, "bits": 3}, "does not describe gptq weights (ValueError: bits is 3)"),
    "no-bits": ({"quant_method": "gptq"}, "does not describe gptq weights (KeyError: 'bits')"),
    "marlin": ({**GPTQ, "checkpoint_format": "marlin"}, "GPTQ in the layout 'marlin'"),
    "gemv": ({**AWQ, "version": "gemv"}, "AWQ in the layout 'gemv'"),
    "awq-symmetric": ({**AWQ, "zero_point": False}, "AWQ in the layout 'gemm' without zero points"),
    "block": ({**FP8, "weight_block_size": [0, 128]}, "weight_block_size is [0, 128]"),
    "blocks": ({**FP8, "weight_block_size": 128}, "does not describe fp8 weights"),
    "fp4": (compressed("nvfp4-pack-quantized", num_bits=4), "compressed-tensors in the layout 'nvfp4-pack-quantized'"),
    "sparse": (
        {**compressed("float-quantized"), "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparse compressed-tensors",
    ),
    "rotated": (
        {**compressed("float-quantized"), "transform_config": {"config_groups": {"R3": {}}}},
        "compressed-tensors with rotations",
    ),
    "no-groups": ({"quant_method": "compressed-tensors", "config_groups": {}}, "does not describe compressed-tensors"),
}


@each("unknown", UNKNOWN)
def test_an_unknown_format_is_refused_with_what_to_use_instead(unknown: str, tmp_path: Path) -> None:
    settings, message = UNKNOWN[unknown]
    folder = tmp_path / "model"
    CONFIGS["llama"].save_pretrained(folder)
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": settings}))
    for action in (load_config, fetched, load_model):
        with pytest.raises(UnsupportedModelError) as caught:
            action(folder)
        assert message in only_line(caught)
        assert "use the original checkpoint" in only_line(caught)


def test_a_quantised_folder_is_not_loaded_as_it_is(tmp_path: Path) -> None:
    saved("fp8", tmp_path / "model")
    for action in (load_model, lambda folder: Weights(folder, load_config(folder))):
        with pytest.raises(UnsupportedModelError) as caught:
            action(tmp_path / "model")
        assert "are FP8 (e4m3, blocks of 16 × 32); a survey dequantises them first" in only_line(caught)
