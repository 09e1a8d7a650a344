"""Quantised checkpoints: dequantised exactly, then surveyed like any other; wrong ones are refused by name."""

import copy
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from support import quantised as q
from support import tiny
from support.errors import only_line
from support.tiny_configs import CONFIGS
from transformers import AutoModel, FineGrainedFP8Config

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.batching import can_share_prefix
from theodolite_jobs.models.convert import quantised
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.quantised import dequantised_from
from theodolite_jobs.models.source import ModelSource, fetch, resolve_source, weight_format
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

BOUND = 1e-9
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


Converted = tuple[str, Path, dict[str, torch.Tensor]]


@pytest.fixture(scope="module", params=CASES)
def converted(request: Any, tmp_path_factory: Any) -> Converted:
    """Return the case, the quantised folder, and the tensors that it means."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return request.param, folder, saved(request.param, folder)


def test_every_matrix_is_what_the_format_means(converted: Converted) -> None:
    _, folder, expected = converted
    files = TensorFiles(fetched(folder))
    assert files.file_of.keys() == expected.keys()
    stored = {name: files.read(name) for name in expected}
    assert {name for name, one in stored.items() if one.dtype != expected[name].dtype} == set()
    assert {name for name, one in stored.items() if not torch.equal(one, expected[name])} == set()


def test_the_model_loads_and_names_the_format(converted: Converted) -> None:
    case, original, _ = converted
    source, name = source_of(original), CASES[case][4]
    folder = fetched(original)
    for one in (original, folder):  # before and after the conversion
        config = load_config(one)
        assert dequantised_from(config) == name
        assert getattr(config, "quantization_config", None) is None
        assert weight_format(source, config) == name
    assert load_model(folder).dtype == torch.bfloat16


def test_heads_are_those_of_the_dequantised_matrices(converted: Converted) -> None:
    case, original, plain = converted
    if CASES[case][0] not in {"llama", "qwen2", "qwen3", "qwen3_moe"}:
        return  # test_latent_heads.py and test_circuits.py test the heads of the others
    expected, folder = {name: one.double().numpy() for name, one in plain.items()}, fetched(original)
    weights = Weights(folder, load_config(folder), torch.float64)
    circuits, sizes = read_circuits(weights, 1), weights.dimensions
    block = "model.layers.1.self_attn."

    def heads(name: str, count: int) -> np.ndarray:
        return expected[f"{block}{name}_proj.weight"].reshape(count, sizes.d_head, sizes.d_model)

    scales = [expected.get(f"{block}{one}_norm.weight", np.ones(sizes.d_head)) for one in "qk"]
    query, key = heads("q", sizes.n_heads) * scales[0][:, None], heads("k", sizes.n_kv_heads) * scales[1][:, None]
    output = expected[f"{block}o_proj.weight"].reshape(sizes.d_model, sizes.n_heads, sizes.d_head)
    for head in range(sizes.n_heads):
        shared = head // (sizes.n_heads // sizes.n_kv_heads)
        scores = query[head].T @ key[shared] / sizes.d_head**0.5
        ours = circuits.query[head] @ circuits.rotations[0] @ circuits.key[shared].T
        assert np.abs(ours - scores).max() <= BOUND * np.abs(scores).max()
        writes = output[:, head] @ heads("v", sizes.n_kv_heads)[shared]
        ours = circuits.output[head] @ circuits.value[shared].T
        assert np.abs(ours - writes).max() <= BOUND * np.abs(writes).max()


@pytest.mark.parametrize("case", CASES)
def test_captures_pass_the_parity_check(case: str, tmp_path: Path) -> None:
    saved(case, tmp_path / "model", torch.float32)
    model = load_model(fetched(tmp_path / "model"))
    tokens = tiny.random_tokens([12, 30, 17, 25], 9)
    share = can_share_prefix(model.config, model.anatomy)
    plan = plan_set("set", tokens, (-1,), shard_prompts=4, batch_tokens=64, share_prefix=share)
    sites = (*model.anatomy.taps, Site.RESID_FINAL)
    certificate = certify(model, sites, range(5), {"set": plan}, {"set": probe_prompts(tokens)})
    assert certificate.max_error < 1e-5


# transformers reads no FP8 matrix that its blocks do not divide, and so not DeepSeek-V3.
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_fp8_is_what_transformers_dequantises(dtype: torch.dtype, tmp_path: Path) -> None:
    settings, config = {**FP8, "weight_block_size": [8, 16]}, copy.deepcopy(CONFIGS["qwen3"])
    q.save_quantised(tmp_path / "model", config, settings, q.fp8((8, 16)), dtype)
    theirs = AutoModel.from_pretrained(
        tmp_path / "model", dtype=dtype, quantization_config=FineGrainedFP8Config(dequantize=True)
    ).state_dict()
    ours = load_model(fetched(tmp_path / "model")).module.state_dict()
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if not torch.equal(ours[name], theirs[name])} == set()


def test_mxfp4_is_what_transformers_dequantises(tmp_path: Path) -> None:
    saved("mxfp4", tmp_path / "model")
    theirs = AutoModel.from_pretrained(tmp_path / "model", dtype=torch.bfloat16).state_dict()
    ours = load_model(fetched(tmp_path / "model")).module.state_dict()
    assert ours.keys() == theirs.keys()
    assert {name for name in ours if not torch.equal(ours[name], theirs[name])} == set()


def test_weights_are_dequantised_once_and_planning_needs_none(tmp_path: Path) -> None:
    saved("awq", tmp_path / "model")
    source, cache = source_of(tmp_path / "model"), tmp_path / "cache"
    assert fetch(source, cache, weights=False) == tmp_path / "model"
    assert not cache.exists()
    folder = fetch(source, cache)
    (folder / "marker").touch()
    assert (fetch(source, cache) / "marker").exists()
    changed(tmp_path / "model", lambda tensors: tensors[f"{A_MATRIX}.scales"].mul_(2))
    assert not (fetch(source_of(tmp_path / "model"), cache) / "marker").exists()  # another revision


def test_the_files_of_a_large_checkpoint_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved("gptq", tmp_path / "model")
    monkeypatch.setattr(quantised, "_FILE_BYTES", 20_000)
    files = TensorFiles(fetched(tmp_path / "model"))
    assert len(set(files.file_of.values())) > 5
    assert all(torch.equal(files.read(name), tensor) for name, tensor in expected.items())


def test_too_little_space_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved("gptq", tmp_path / "model")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 10, 1000))
    with pytest.raises(ModelError) as caught:
        fetched(tmp_path / "model")
    assert "GB free; free some space, or set THEODOLITE_CACHE to another folder" in only_line(caught)


def test_the_untrained_twin_is_that_of_the_plain_model(tmp_path: Path) -> None:
    saved("gptq", tmp_path / "model")
    random = resolve_source(ModelSpec(id=str(tmp_path / "model"), weights="random"), Path())
    folder = fetch(random, tmp_path / "cache")
    config = load_config(folder)
    assert weight_format(random, config) is None
    assert load_model(folder).dtype == torch.bfloat16
    assert TensorFiles(folder).read(f"{A_MATRIX}.weight").dtype == torch.bfloat16


# Bad input


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


@pytest.mark.parametrize("wrong", WRONG)
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


@pytest.mark.parametrize("lie", LIES)
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
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert "weight_scale_inv" in only_line(caught)
    with pytest.raises(ModelError) as caught:
        Weights(folder, load_config(folder)).attention(1)
    assert "in float8_e4m3fn, and config.json describes no quantisation" in only_line(caught)


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
    "sparse": ({**compressed("float-quantized"), "sparsity_config": {"format": "dense"}}, "sparse compressed-tensors"),
    "no-groups": ({"quant_method": "compressed-tensors", "config_groups": {}}, "does not describe compressed-tensors"),
}


@pytest.mark.parametrize("unknown", UNKNOWN)
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
