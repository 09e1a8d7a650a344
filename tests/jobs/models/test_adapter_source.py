"""Finding the base of an adapter: beside it, by its settings, or by the spec; both at pinned revisions."""

from pathlib import Path
from typing import Any

import pytest
import torch
from support.adapters import change_settings, logits, peft_logits, save_adapter, save_base
from support.errors import only_line
from support.gguf_files import tiny_llama, write_gguf
from support.quantised_cases import fetched, saved
from support.sentences import assert_each_says, assert_says

from theodolite.errors import TheodoliteError
from theodolite.spec_parts import ModelSpec
from theodolite.store.runs import AdapterFacts
from theodolite_jobs.models import source
from theodolite_jobs.models.adapter_source import adapter_notes
from theodolite_jobs.models.convert.adapter_config import merged_adapter
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.source import AdapterSource, ModelSource, fetch, on_every_node, resolve_source


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return save_base("llama", tmp_path / "base", tie_word_embeddings=False)


@pytest.fixture
def adapter(base: Path, tmp_path: Path) -> Path:
    return save_adapter(base, tmp_path / "lora", target_modules=["q_proj"])


def resolve(folder: Path, **model: Any) -> ModelSource:
    return resolve_source(ModelSpec(**model), folder)


def refusal(folder: Path, **model: Any) -> str:
    with pytest.raises(TheodoliteError) as error:
        resolve(folder, **model)
    return only_line(error)


def test_an_adapter_alone_stands_for_the_base_that_it_names(base: Path, adapter: Path, tmp_path: Path) -> None:
    alone = resolve(tmp_path, id="lora")
    assert (alone.name, alone.kind, alone.location) == ("base + lora", "folder", str(base))
    assert alone.adapter is not None
    assert (alone.adapter.name, alone.adapter.kind, alone.adapter.location) == ("lora", "folder", str(adapter))
    assert alone == resolve(tmp_path, id="base", adapter="lora") == resolve(Path(), id=str(adapter))
    assert alone.revision == resolve(tmp_path, id="base").revision
    assert alone.revisions == f"{alone.revision}+{alone.adapter.revision}"


@pytest.mark.parametrize("name", ["../base", "base"])
def test_the_path_of_a_base_starts_at_the_adapter_or_at_the_spec(
    base: Path, adapter: Path, tmp_path: Path, name: str
) -> None:
    change_settings(adapter, base_model_name_or_path=name)
    assert resolve(tmp_path, id=str(adapter)).location == str(base)


def test_an_adapter_beside_its_base_is_merged(base: Path, adapter: Path, tmp_path: Path) -> None:
    expected = peft_logits(base, adapter)
    change_settings(adapter, base_model_name_or_path="org/elsewhere")
    for file in adapter.iterdir():
        file.rename(base / file.name)
    both = resolve(tmp_path, id="base")
    assert (both.name, both.location) == ("base + adapter", str(base))
    assert both.adapter == AdapterSource("base", "folder", str(base), both.revision)
    assert both == resolve(tmp_path, id="base", adapter="base")
    assert (logits(fetch(both, tmp_path / "cache")) - expected).abs().max() <= 1e-5


def test_a_configuration_beside_an_adapter_is_no_base(base: Path, adapter: Path, tmp_path: Path) -> None:
    """Some programs for training save the base's config.json with the adapter."""
    (adapter / "config.json").write_bytes((base / "config.json").read_bytes())
    assert resolve(tmp_path, id="lora").location == str(base)


def test_the_weights_of_an_adapter_are_not_those_of_a_base_beside_it(base: Path, adapter: Path, tmp_path: Path) -> None:
    expected = peft_logits(base, adapter)
    (base / "model.safetensors").rename(base / "other.safetensors")
    for file in adapter.iterdir():
        file.rename(base / file.name)
    merged = fetch(resolve(tmp_path, id="base"), tmp_path / "cache")
    assert (logits(merged) - expected).abs().max() <= 1e-5


def test_the_merged_checkpoint_is_cached_by_both_revisions(base: Path, adapter: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    first = resolve(tmp_path, id="lora")
    small, whole = fetch(first, cache, weights=False), fetch(first, cache)
    assert small != whole == fetch(first, cache)
    assert not list(small.glob("*.safetensors"))
    change_settings(adapter, lora_alpha=60)
    again = resolve(tmp_path, id="lora")
    assert again.revision == first.revision
    assert again.revisions != first.revisions
    assert fetch(again, cache) != whole
    assert (logits(fetch(again, cache)) - peft_logits(base, adapter)).abs().max() <= 1e-5
    assert base.is_dir()


def test_every_node_gets_both_by_absolute_path(base: Path, adapter: Path, tmp_path: Path) -> None:
    model = ModelSpec(id="lora", dtype="float32")
    node = on_every_node(model, resolve_source(model, tmp_path), tmp_path)
    assert node == ModelSpec(id=str(base), adapter=str(adapter), dtype="float32")
    assert resolve_source(node, Path("/nowhere")) == resolve_source(model, tmp_path)


def test_a_base_in_a_gguf_file_is_converted_first(tmp_path: Path) -> None:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf", kind="Q8_0")
    cache = tmp_path / "cache"
    plain = fetch(resolve(tmp_path, id="tiny.gguf"), cache)
    adapter = save_adapter(plain, tmp_path / "lora", target_modules=["q_proj"])
    both = resolve(tmp_path, id="tiny.gguf", adapter="lora")
    assert (both.name, both.kind) == ("tiny + lora", "gguf")
    assert (logits(fetch(both, cache)) - peft_logits(plain, adapter)).abs().max() <= 1e-5


def test_a_quantised_base_is_dequantised_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved("gptq", base := tmp_path / "base", torch.float32)
    plain, cache = fetched(base), tmp_path / "cache"
    adapter = save_adapter(plain, tmp_path / "lora", target_modules=["q_proj"])
    both = resolve(tmp_path, id="base", adapter="lora")
    config = load_config(fetch(both, cache, weights=False))
    assert config.dequantised_from.startswith("GPTQ")
    assert merged_adapter(config) == merged_adapter(load_config(fetch(both, cache)))
    merged = fetch(both, cache)
    assert (logits(merged) - peft_logits(plain, adapter)).abs().max() <= 1e-5
    monkeypatch.setattr(source, "DEQUANTISATION", 1000)
    assert fetch(both, cache) != merged, "the cached weights are those of another rule"


def test_an_alias_stays_an_alias_on_every_node(adapter: Path, tmp_path: Path) -> None:
    for model in (
        ModelSpec(id="smollm2-135m-instruct", adapter="lora"),
        ModelSpec(id="lora"),
    ):
        change_settings(adapter, base_model_name_or_path="smollm2-135m-instruct")
        node = on_every_node(model, resolve_source(model, tmp_path), tmp_path)
        assert node == ModelSpec(id="smollm2-135m-instruct", adapter=str(adapter))


def test_what_is_missing_is_refused_by_name(base: Path, adapter: Path, tmp_path: Path) -> None:
    assert "model.adapter: 'base' is no folder with adapter_config.json" in refusal(tmp_path, id="base", adapter="base")
    assert "model.adapter: '/gone' is no folder" in refusal(tmp_path, id="base", adapter="/gone")
    change_settings(adapter, base_model_name_or_path=None)
    assert "does not name its base; set model: {id: BASE, adapter: ADAPTER}" in refusal(tmp_path, id="lora")
    change_settings(adapter, base_model_name_or_path="/root/gone")
    message = refusal(tmp_path, id="lora")
    assert_says(message, "model.id: lora is an adapter … '/root/gone' is not available; set model: {id:")
    assert "no hub id" in message
    change_settings(adapter, base_model_name_or_path="b" * 500)
    assert "names a base with 256 characters or more" in refusal(tmp_path, id="lora")


def test_contradictions_are_refused_by_name(base: Path, adapter: Path, tmp_path: Path) -> None:
    assert "model.adapter: given 'base', but lora contains an adapter" in refusal(tmp_path, id="lora", adapter="base")
    assert "model.revision: given 'main'" in refusal(tmp_path, id="lora", revision="main")
    assert "model.adapter_revision: given 'v1'" in refusal(tmp_path, id="base", adapter="lora", adapter_revision="v1")
    assert "model.weights: random, but lora is an adapter" in refusal(tmp_path, id="lora", weights="random")
    assert "model.trust_remote_code: true" in refusal(tmp_path, id="lora", trust_remote_code=True)
    change_settings(adapter, peft_type="IA3")
    assert 'peft_type is "IA3"' in refusal(tmp_path, id="lora")


def test_an_adapter_on_an_adapter_is_refused(base: Path, adapter: Path, tmp_path: Path) -> None:
    second = save_adapter(base, tmp_path / "second", target_modules=["q_proj"])
    change_settings(second, base_model_name_or_path=str(adapter))
    assert f"{adapter} contains an adapter itself" in refusal(tmp_path, id="second")


PLACE = {"name": "lora", "kind": "hub", "place": "org/lora", "revision": "0" * 40, "base": "org/Base"}
FACTS = AdapterFacts(**PLACE, method="LoRA", ranks=(8, 8), matrices=14)


def test_a_survey_says_what_is_merged_and_whether_the_base_has_another_name() -> None:
    assert adapter_notes(None, "org/base") == []
    said = "the adapter lora (LoRA of rank 8, 14 matrices changed) … merged into"
    assert_each_says(adapter_notes(FACTS, "/models/base"), f"{said} /models/base")
    changes = {"tokenizer": True, "vocabulary": 100, "unties": True, "ranks": (2, 8), "vectors": 1}
    other = FACTS.model_copy(update=changes)
    assert_each_says(
        adapter_notes(other, "org/other"),
        "(LoRA of ranks 2 to 8, 14 matrices and 1 vector changed) … org/other … 100 tokens … no longer tied",
        "names 'org/Base' as its base … merges it into org/other",
    )
