"""Quantised checkpoints: dequantised exactly, then surveyed like any other."""

import copy
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import quantised as q
from support import tiny
from support.each import together
from support.errors import only_line
from support.nightly import at_night, one_in
from support.quantised_cases import A_MATRIX, CASES, FP8, GPTQ, changed, fetched, saved, source_of
from support.tiny_configs import CONFIGS
from transformers import AutoModel, FineGrainedFP8Config

from theodolite.errors import ModelError
from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.batching import can_share_prefix
from theodolite_jobs.models.convert import files as files_module
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.quantised import dequantised_from, format_of
from theodolite_jobs.models.source import fetch, resolve_source, weight_format
from theodolite_jobs.models.tensors import TensorFiles
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import read_circuits

BOUND = 1e-9

Converted = tuple[str, Path, dict[str, torch.Tensor]]


@pytest.fixture(scope="module", params=CASES)
def converted(request: Any, tmp_path_factory: Any) -> Converted:
    """Return the case, the quantised folder, and the tensors that it means."""
    folder = tmp_path_factory.mktemp(request.param) / "model"
    return request.param, folder, saved(request.param, folder)


def every_matrix_is_what_the_format_means(converted: Converted) -> None:
    _, folder, expected = converted
    files = TensorFiles(fetched(folder))
    assert files.headers.keys() == expected.keys()
    stored = {name: files.read(name) for name in expected}
    assert {name for name, one in stored.items() if one.dtype != expected[name].dtype} == set()
    assert {name for name, one in stored.items() if not torch.equal(one, expected[name])} == set()


def the_model_loads_and_names_the_format(converted: Converted) -> None:
    case, original, _ = converted
    source, name = source_of(original), CASES[case][4]
    folder = fetched(original)
    for one in (original, folder):  # before and after the conversion
        config = load_config(one)
        assert dequantised_from(config) == name
        assert getattr(config, "quantization_config", None) is None
        assert weight_format(source, config) == name
    assert load_model(folder).dtype == torch.bfloat16


def heads_are_those_of_the_dequantised_matrices(converted: Converted) -> None:
    case, original, plain = converted
    if CASES[case][0] not in {"llama", "qwen2", "qwen3", "qwen3_moe"}:
        return  # test_latent_heads.py and test_every_family.py test the heads of the others
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


@pytest.mark.parametrize("case", one_in(7, CASES))
def test_captures_pass_the_parity_check(case: str, tmp_path: Path) -> None:
    saved(case, tmp_path / "model", torch.float32)
    model = load_model(fetched(tmp_path / "model"))
    tokens = tiny.random_tokens([12, 30, 17, 25], 9)
    share = can_share_prefix(model.config, model.anatomy)
    plan = plan_set("set", tokens, (-1,), shard_prompts=4, batch_tokens=64, share_prefix=share)
    sites = (*model.anatomy.taps, Site.RESID_FINAL)
    certificate = certify(model, sites, range(5), {"set": plan.layout}, {"set": probe_prompts(tokens)})
    assert certificate.max_error < 1e-5


# transformers reads no FP8 matrix that its blocks do not divide, and so not DeepSeek-V3.
@pytest.mark.parametrize("dtype", [torch.bfloat16, *at_night([torch.float32])])
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
    first = folder.stat().st_ino
    assert fetch(source, cache).stat().st_ino == first
    changed(tmp_path / "model", lambda tensors: tensors[f"{A_MATRIX}.scales"].mul_(2))
    assert fetch(source_of(tmp_path / "model"), cache) != folder  # another revision


def test_a_gptq_layout_under_its_newer_name_is_read_as_such() -> None:
    offsets = [format_of({"quantization_config": {**GPTQ, "format": kind}}) for kind in ("gptq", "GPTQ_v2")]
    assert [one.zero_offset for one in offsets if one] == [1, 0]


def test_what_a_killed_process_left_is_deleted(tmp_path: Path) -> None:
    saved("awq", tmp_path / "model")
    into = fetched(tmp_path / "model")
    left = into.with_name(f"{into.name}-abcd")
    into.rename(left)
    assert fetched(tmp_path / "model") == into
    assert not left.exists()


def test_the_files_of_a_large_checkpoint_are_split(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = saved("gptq", tmp_path / "model")
    monkeypatch.setattr(files_module, "_FILE_BYTES", 20_000)
    files = TensorFiles(fetched(tmp_path / "model"))
    assert len({one.file for one in files.headers.values()}) > 5
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


test_a_quantised_checkpoint_is_the_model_that_it_means = together(
    every_matrix_is_what_the_format_means,
    the_model_loads_and_names_the_format,
    heads_are_those_of_the_dequantised_matrices,
)
