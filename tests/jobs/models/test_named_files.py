"""Settings of a model name no file and no code outside its folder."""

import json
from pathlib import Path

import pytest
from support.each import each
from support.errors import only_line
from tokenizers import Tokenizer, models

from theodolite.errors import ModelError
from theodolite_jobs.models import tensors
from theodolite_jobs.models.load import load_config, load_tokenizer
from theodolite_jobs.models.tensors import TensorFiles

OWN = {"model_type": "mystery", "auto_map": {"AutoConfig": "own-code.Config"}}
CONFIG_CODE = """
from transformers import PreTrainedConfig

class Config(PreTrainedConfig):
    model_type = "mystery"
"""


def write_tokenizer(folder: Path, name: str, word: str) -> None:
    folder.mkdir(exist_ok=True)
    Tokenizer(models.WordLevel({word: 0, "[UNK]": 1}, "[UNK]")).save(str(folder / name))


@each("name", ["../outside/tokenizer.0.0.1.json", "/etc/tokenizer.0.0.1.json", "a/tokenizer.0.0.1.json", ["x"], 3])
def test_a_vocabulary_outside_the_folder_is_refused(tmp_path: Path, name: object) -> None:
    write_tokenizer(tmp_path / "model", "tokenizer.json", "inside")
    write_tokenizer(tmp_path / "outside", "tokenizer.0.0.1.json", "outside")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "fast_tokenizer_files": ["tokenizer.json", name]}
    (tmp_path / "model/tokenizer_config.json").write_text(json.dumps(settings))
    with pytest.raises(ModelError) as error:
        load_tokenizer(tmp_path / "model")
    assert "tokenizer_config.json: fast_tokenizer_files names" in only_line(error)
    assert "which is not a file of its folder" in only_line(error)


def test_a_vocabulary_for_a_version_of_the_library_is_read_from_the_folder(tmp_path: Path) -> None:
    write_tokenizer(tmp_path, "tokenizer.json", "older")
    write_tokenizer(tmp_path, "tokenizer.0.0.1.json", "newer")
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "fast_tokenizer_files": ["tokenizer.0.0.1.json"]}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    assert "newer" in load_tokenizer(tmp_path).get_vocab()


@each(
    "code",
    ["other/model--own_code.Config", "model--own_code.Config", "/tmp/own_code.Config", "../own_code.Config", "a/b.C"],
)
@each("file", ["config.json", "tokenizer_config.json"])
def test_code_outside_the_folder_is_refused_although_the_model_may_run_its_own(
    tmp_path: Path, code: str, file: str
) -> None:
    write_tokenizer(tmp_path, "tokenizer.json", "a")
    settings = {"auto_map": {"AutoTokenizer": [None, code]}}
    if file == "config.json":
        settings = {"auto_map": {"AutoConfig": "own-code.Config"}, "text_config": {"auto_map": {"AutoModel": code}}}
    (tmp_path / file).write_text(json.dumps({"model_type": "mystery"} | settings))
    with pytest.raises(ModelError) as error:
        (load_config if file == "config.json" else load_tokenizer)(tmp_path, trust_remote_code=True)
    assert f"{file}: auto_map names {code!r}; allowed: MODULE.CLASS" in only_line(error)


def test_code_in_the_folder_runs_if_it_is_allowed(tmp_path: Path) -> None:
    (tmp_path / "own-code.py").write_text(CONFIG_CODE)
    (tmp_path / "config.json").write_text(json.dumps(OWN))
    assert load_config(tmp_path, trust_remote_code=True).model_type == "mystery"


def test_an_index_of_gigabytes_is_refused_before_it_is_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_MOST_INDEX_BYTES", 100)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": {' + " " * 100 + "}}")
    with pytest.raises(ModelError) as error:
        TensorFiles(folder)
    assert "model.safetensors.index.json as JSON: it has 118 bytes; allowed: at most 100" in only_line(error)
