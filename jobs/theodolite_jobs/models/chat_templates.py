"""The chat templates of a model: all places in its files that can have one, and the choice among several."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, SpecError
from theodolite_jobs.models.convert.files import TEMPLATE_FOLDER, read_json

DEFAULT = "default"
"""The name of a template that has no name of its own."""

_JSON_FILES = ("tokenizer_config.json", "processor_config.json", "chat_template.json")

# Tokens with which families mark the turns of a chat. Base models of some families have them too.
_TURNS = ("<|im_start|>", "[INST]", "<start_of_turn>", "<|start_header_id|>", "<|start_of_role|>", "<|turn|>")

_CHAT_NAME = re.compile(
    r"[-_.](instruct|chat)(?![a-z])|[-_.]it([-_.](gguf|q\d.*|bf16|f16|fp8|awq|gptq))?$", re.IGNORECASE
)


def read_templates(folder: Path) -> dict[str, str]:
    """Return the chat templates in a model's files by name.

    If two files have a template of the same name, the first of them counts, as in the tokenizers of transformers:
    additional_chat_templates/NAME.jinja, chat_template.jinja, tokenizer_config.json, and then the files of a processor:
    processor_config.json, chat_template.json.

    Raises:
        ModelError: a file cannot be read, or its `chat_template` is no template.
    """
    templates: dict[str, str] = {}
    for found in _by_file(folder).values():
        templates |= {name: text for name, text in found.items() if name not in templates}
    return templates


def conflicting_templates(folder: Path) -> list[str]:
    """Return a warning for each name of which two files have different templates; raises as `read_templates` does."""
    files, warnings = _by_file(folder), []
    for name in read_templates(folder):
        first, *others = [file for file, found in files.items() if name in found]
        if different := [file for file in others if files[file][name] != files[first][name]]:
            warnings.append(
                f"model: {first} and {' and '.join(different)} have different chat templates with the name {name!r}; "
                f"the one in {first} is used, as the tokenizers of transformers do; remove the others from the files "
                "if it is the right one"
            )
    return warnings


def choose_template(templates: Any, name: str | None) -> Any:
    """Return the template with a name, or, without a name, the one named `default`.

    Several templates without a default are returned as they are: a survey may use none of them.

    Args:
        templates: the `chat_template` of a tokenizer: one text, several by name, or None.
        name: `model.template` of the spec, or None.

    Raises:
        SpecError: there is no template with the name.
    """
    if templates == "":  # the estimate has an empty one in place of a tokenizer that it cannot load
        return templates
    known: Mapping[str, str] = templates if isinstance(templates, dict) else {DEFAULT: templates}
    if name is None:
        return known.get(DEFAULT, templates or None)
    if known.get(name) is None:
        names = sorted(key for key in known if known[key] is not None)
        allowed = ", ".join(names) or "none, since the model has none"
        raise SpecError(f"model.template: the model has no chat template {name!r}; allowed: {allowed}")
    return known[name]


def missing_template(prompt_set: str, name: str, tokenizer: Any, *, is_gguf: bool = False) -> list[str]:
    """Return a warning if a model without a template may be a chat model; `prompt_set` is a set that would use it."""
    sign = sign_of_chat(name, tokenizer)
    if sign is None:
        return []
    add = "use the model's safetensors files" if is_gguf else "add chat_template.jinja to the model's files"
    return [
        f"prompts.{prompt_set}: this may be a chat model ({sign}), but its files have no chat template, so the prompts "
        f"stand alone; {add}, or set template: none if this is right"
    ]


def sign_of_chat(name: str, tokenizer: Any) -> str | None:
    """Return what in a model's name or special tokens says that it is a chat model, or None."""
    if _CHAT_NAME.search(name):
        return f"its name is {name}"
    vocabulary = tokenizer.get_added_vocab() if hasattr(tokenizer, "get_added_vocab") else {}
    token = next((token for token in _TURNS if token in vocabulary), None)
    return f"its tokenizer has the special token {token}" if token else None


def _by_file(folder: Path) -> dict[str, dict[str, str]]:
    """Return the templates of each file by name, the files in their order of precedence."""
    found: dict[str, dict[str, str]] = {}
    additional = [(file.stem, file) for file in sorted(folder.glob(f"{TEMPLATE_FOLDER}/*.jinja"))]
    for name, file in [*additional, (DEFAULT, folder / "chat_template.jinja")]:
        if file.is_file():
            found[str(file.relative_to(folder))] = {name: _read(file)}
    for each in _JSON_FILES:
        if templates := _named(folder / each, read_json(folder / each).get("chat_template")):
            found[each] = templates
    return found


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelError(f"cannot read the chat template {file}: {error}") from error


def _named(file: Path, value: Any) -> dict[str, str]:
    """Return the templates of a JSON file by name: one text, or a list of objects with a name and a template."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {DEFAULT: value}
    items = [{"name": name, "template": text} for name, text in value.items()] if isinstance(value, dict) else value
    is_list = isinstance(items, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) and isinstance(one.get("template"), str)
        for one in items
    )
    if not is_list or len({one["name"] for one in items}) < len(items):
        raise ModelError(
            f"{file}: chat_template is neither a text nor a list of objects with the texts name and template, each "
            "name once; mend the file, or replace it by chat_template.jinja"
        )
    return {one["name"]: one["template"] for one in items}
