"""Without any one key or tensor, a file is refused, or means the same; the exceptions are listed and documented."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.each import each
from support.gguf_files import tiny_llama, write_gguf
from support.gguf_twins import CASES, twin
from transformers import AutoConfig

from theodolite.errors import ModelError
from theodolite_jobs.models.gguf.convert import check_gguf
from theodolite_jobs.models.gguf.header import Header, read_header
from theodolite_jobs.models.gguf.weights import check_weights

DEFAULTS = {
    "attention.head_count_kv": "as many as heads, which the shapes must fit",
    "attention.sliding_window": "gemma3 alone: llama.cpp writes none if all layers have full attention",
    "rope.freq_base_swa": "10,000 in every Gemma 3; files from before this key was introduced lack it",
    "rope.scaling.yarn_attn_factor": "the factor that YaRN derives",
    "rope.scaling.yarn_beta_fast": "the constant of YaRN",
    "rope.scaling.yarn_beta_slow": "the constant of YaRN",
    "expert_group_count": "DeepSeek-V2-Lite has no groups",
    "feed_forward_length": "mixtures alone: no block uses it",
}
WITHOUT_BASE = {"falcon", "gemma", "gemma2", "llama", "phi2", "stablelm"}


def without_key(header: Header, key: str) -> Header:
    return replace(header, metadata={name: value for name, value in header.metadata.items() if name != key})


def without_tensor(header: Header, tensor: str) -> Header:
    return replace(header, tensors={name: stored for name, stored in header.tensors.items() if name != tensor})


def configured(header: Header) -> dict[str, Any] | None:
    """Return the configuration of a file; None if it is refused."""
    try:
        values, steps = check_gguf(header)
        check_weights(header, steps, AutoConfig.for_model(**values))
    except ModelError:
        return None
    return values


@each("case", CASES)
def test_without_a_key_a_file_is_refused_or_means_the_same(tmp_path: Path, case: str) -> None:
    write_gguf(twin(case), tmp_path / "tiny.gguf")
    header = read_header(tmp_path / "tiny.gguf")
    architecture = header.metadata["general.architecture"]
    expected = configured(header)
    assert expected
    for key in [key for key in header.metadata if key.startswith(f"{architecture}.")]:
        short = key.removeprefix(f"{architecture}.")
        has_default = short in DEFAULTS or (short == "rope.freq_base" and architecture in WITHOUT_BASE)
        assert has_default or configured(without_key(header, key)) in (None, expected), key


@each("case", [case for case in CASES if case != "gemma2-27b"])
def test_without_a_tensor_a_file_is_refused(tmp_path: Path, case: str) -> None:
    write_gguf(twin(case), tmp_path / "tiny.gguf")
    header = read_header(tmp_path / "tiny.gguf")
    # Blocks 0 and 1 differ in the families whose blocks do.
    names = [name for name in header.tensors if name.startswith(("blk.0.", "blk.1.")) or not name.startswith("blk.")]
    accepted = {name for name in names if configured(without_tensor(header, name))}
    # Without a head of its own, a model has that of its embeddings; most models of `llama` have no factors.
    assert accepted <= {"output.weight", "rope_freqs.weight"}


@pytest.fixture(scope="module")
def llama31() -> Any:
    model = tiny_llama()
    model.config.max_position_embeddings = 131072
    model.config.rope_parameters["rope_theta"] = 500000.0
    return model


def test_a_llama_3_1_without_its_factors_is_refused(llama31: Any, tmp_path: Path) -> None:
    write_gguf(llama31, tmp_path / "tiny.gguf")
    with pytest.raises(ModelError, match=r"lacks the tensor rope_freqs\.weight, as files from before August 2024 do"):
        check_gguf(read_header(tmp_path / "tiny.gguf"))
