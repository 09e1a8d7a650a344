"""The chat templates of a model: every place in its files, names, contradictions, and models that may lack one."""

import json
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub.utils import filter_repo_objects
from support.chat_tokenizers import CHATML, byte_tokenizer
from support.each import each
from support.sentences import assert_says

from theodolite.errors import ModelError, SpecError
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.chat_templates import (
    choose_template,
    conflicting_templates,
    read_templates,
    sign_of_chat,
)
from theodolite_jobs.models.convert.files import SMALL_FILES
from theodolite_jobs.models.convert.quantised import write_small_files
from theodolite_jobs.models.load import load_tokenizer
from theodolite_jobs.models.source import resolve_source

NAMED = [{"name": "default", "template": "D"}, {"name": "rag", "template": "R"}]

PLACES = {
    "chat_template.jinja": "D",
    "tokenizer_config.json": {"chat_template": "D"},
    "processor_config.json": {"chat_template": "D"},
    "chat_template.json": {"chat_template": "D"},
}


def written(folder: Path, files: dict[str, Any]) -> Path:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return folder


@each("place", PLACES)
def test_a_template_is_read_wherever_it_is(tmp_path: Path, place: str) -> None:
    byte_tokenizer(None).save_pretrained(tmp_path)
    assert load_tokenizer(tmp_path).chat_template is None
    own = json.loads((tmp_path / "tokenizer_config.json").read_text())
    content = PLACES[place]
    written(tmp_path, {place: {**own, **content} if place == "tokenizer_config.json" else content})
    assert read_templates(tmp_path) == {"default": "D"}
    assert load_tokenizer(tmp_path).chat_template == "D"


@each("place", ["tokenizer_config.json", "processor_config.json", "chat_template.json"])
@each("value", [NAMED, {"default": "D", "rag": "R"}])
def test_several_templates_of_a_file_have_names(tmp_path: Path, place: str, value: Any) -> None:
    assert read_templates(written(tmp_path, {place: {"chat_template": value}})) == {"default": "D", "rag": "R"}


def test_additional_templates_join_the_others(tmp_path: Path) -> None:
    byte_tokenizer("D").save_pretrained(tmp_path)
    written(
        tmp_path, {"additional_chat_templates/rag.jinja": "R", "additional_chat_templates/notes.txt": "no template"}
    )
    assert load_tokenizer(tmp_path).chat_template == {"default": "D", "rag": "R"}


def test_of_contradicting_templates_the_one_of_the_tokenizer_counts_and_a_warning_says_so(tmp_path: Path) -> None:
    files = {place: content for place, content in PLACES.items() if place != "tokenizer_config.json"}
    assert conflicting_templates(written(tmp_path, files)) == []
    written(tmp_path, {"tokenizer_config.json": {"chat_template": "T"}, "chat_template.json": {"chat_template": "J"}})
    assert read_templates(tmp_path) == {"default": "D"}
    (warning,) = conflicting_templates(tmp_path)
    files = "chat_template.jinja and tokenizer_config.json and chat_template.json"
    assert_says(warning, f"{files} … 'default' … chat_template.jinja is used")
    (tmp_path / "chat_template.jinja").unlink()
    assert read_templates(tmp_path) == {"default": "T"}
    (tmp_path / "tokenizer_config.json").unlink()
    written(tmp_path, {"processor_config.json": {"chat_template": "P"}})
    assert read_templates(tmp_path) == {"default": "P"}
    (tmp_path / "processor_config.json").unlink()
    assert read_templates(tmp_path) == {"default": "J"}


def test_transformers_has_the_same_order(tmp_path: Path) -> None:
    byte_tokenizer("D").save_pretrained(tmp_path)
    own = json.loads((tmp_path / "tokenizer_config.json").read_text())
    written(tmp_path, {"tokenizer_config.json": {**own, "chat_template": "T"}, "chat_template.json": "{}"})
    for files in ({}, {"additional_chat_templates/default.jinja": "A"}):
        written(tmp_path, files)
        of_transformers = type(byte_tokenizer()).from_pretrained(tmp_path).chat_template
        assert of_transformers == load_tokenizer(tmp_path).chat_template
    assert of_transformers == "A"


@each("value", [7, ["D"], [{"name": "default"}], [{"name": 1, "template": "D"}], [NAMED[0], NAMED[0]], {"default": 1}])
def test_a_template_of_another_type_is_refused_with_its_file(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ModelError, match=r"chat_template\.json: chat_template is neither a text nor a list .* mend"):
        read_templates(written(tmp_path, {"chat_template.json": {"chat_template": value}}))


def test_a_template_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ModelError, match=r"cannot read the chat template .*chat_template\.jinja"):
        read_templates(tmp_path)


def test_a_template_is_chosen_by_its_name() -> None:
    both = {"default": "D", "rag": "R"}
    assert (choose_template(both, None), choose_template(both, "default"), choose_template(both, "rag")) == (
        "D",
    ) * 2 + ("R",)
    assert choose_template("D", None) == choose_template("D", "default") == "D"
    assert choose_template(None, None) is None
    assert choose_template({}, None) is None
    assert choose_template({"rag": "R", "tool_use": "T"}, None) == {"rag": "R", "tool_use": "T"}
    with pytest.raises(
        SpecError, match=r"model\.template: the model has no chat template 'rga'; allowed: default, rag"
    ):
        choose_template(both, "rga")
    with pytest.raises(SpecError, match="allowed: none, since the model has none"):
        choose_template(None, "default")


def test_every_template_is_downloaded() -> None:
    files = [*PLACES, "additional_chat_templates/rag.jinja"]
    assert list(filter_repo_objects(files, allow_patterns=SMALL_FILES)) == files


def test_a_changed_additional_template_is_another_revision(tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path)
    written(tmp_path, {"config.json": "{}"})

    def revision() -> str:
        return resolve_source(ModelSpec(id=str(tmp_path)), tmp_path).revision

    revisions = [revision()]
    for text in ("R", "S"):
        written(tmp_path, {"additional_chat_templates/rag.jinja": text})
        revisions.append(revision())
    assert len(set(revisions)) == 3


def test_a_conversion_keeps_the_templates(tmp_path: Path) -> None:
    source, into = tmp_path / "source", tmp_path / "into"
    into.mkdir()
    files = {"config.json": "{}", "chat_template.jinja": "D", "additional_chat_templates/rag.jinja": "R"}
    write_small_files(written(source, files), into)
    assert read_templates(into) == {"default": "D", "rag": "R"}


@each("name", ["Qwen2.5-7B-Instruct", "Llama-2-7b-chat-hf", "gemma-2-2b-it", "gemma-2-2b-it-Q4_K_M"])
def test_a_name_can_say_chat(name: str) -> None:
    assert sign_of_chat(name, None) == f"its name is {name}"


@each("name", ["gpt2", "bert-base-it-cased", "chatty-base", "instructor-xl", "Qwen2.5-7B"])
def test_other_names_do_not(name: str) -> None:
    assert sign_of_chat(name, object()) is None


def test_special_tokens_can_say_chat() -> None:
    assert sign_of_chat("base", byte_tokenizer(CHATML)) == "its tokenizer has the special token <|im_start|>"
