"""A prompt that is longer than a window which no GGUF file states gives a warning."""

from pathlib import Path

import pytest
from support.each import each
from support.gguf_files import tiny_llama, write_gguf
from support.gguf_twins import CASES, twin
from transformers import LlamaConfig, LlamaForCausalLM, Starcoder2Config

from theodolite.settings import Settings
from theodolite.spec_file import parse_spec
from theodolite_jobs.models.gguf.windows import WINDOW, window_warning
from theodolite_jobs.prepare import prepare


@each("context, theta, warned", [(32_768, 1e4, True), (32_768, 1e6, False), (8192, 1e4, False)])
def test_only_the_first_mistral_has_a_window_among_files_of_llama(
    tmp_path: Path, context: int, theta: float, warned: bool
) -> None:
    rope = {"rope_type": "default", "rope_theta": theta}
    settings = tiny_llama().config.to_dict() | {"max_position_embeddings": context, "rope_parameters": rope}
    write_gguf(LlamaForCausalLM(LlamaConfig(**settings)), tmp_path / "model.gguf")
    prompts = {"source": "inline", "texts": ["x" * (WINDOW + 1), "y"]}
    spec = parse_spec({"model": {"id": "model.gguf"}, "prompts": {"a": prompts}})
    prepared = prepare(spec, tmp_path, Settings(store=str(tmp_path / "store"), cache=tmp_path / "cache"))
    assert warned == any("the first Mistral attends to the last 4096 tokens" in one for one in prepared.warnings)


@pytest.mark.nightly
@each("case", CASES)
def test_a_survey_of_every_architecture_is_prepared(tmp_path: Path, case: str) -> None:
    write_gguf(twin(case), tmp_path / "model.gguf")
    spec = parse_spec({"model": {"id": "model.gguf"}, "prompts": {"a": {"source": "inline", "texts": ["x", "y"]}}})
    assert prepare(spec, tmp_path, Settings(cache=tmp_path / "cache")).run_id.startswith("model-")


def test_a_prompt_as_long_as_the_window_gives_no_warning() -> None:
    config = Starcoder2Config(sliding_window=None)
    assert window_warning(config, WINDOW) == []
    assert "StarCoder2 attends to the last 4096 tokens" in window_warning(config, WINDOW + 1)[0]
