"""A model written as a GGUF file gives the activations of its safetensors twin, for each architecture."""

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from support.each import each
from support.gguf_files import ARCHITECTURES, is_matrix, write_gguf
from support.gguf_twins import CASES, CONTEXT, twin
from transformers import AutoModelForCausalLM

from theodolite_jobs.models.gguf.configurations import BUILDERS
from theodolite_jobs.models.gguf.convert import convert_gguf
from theodolite_jobs.models.gguf.second_reading import held_against_file
from theodolite_jobs.models.load import load_config, load_tokenizer


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


@each("case", CASES)
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


@each("case, kind", list(zip(PLAIN_CASES, KINDS * 6, strict=False)))
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
