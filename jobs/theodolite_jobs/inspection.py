"""Describe a model without reading its weights."""

import fnmatch
from pathlib import Path
from typing import Any

from theodolite.settings import Settings
from theodolite.spec import ModelSpec
from theodolite_jobs.models.anatomy import dimensions_of
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.convert.qwen1 import is_qwen1, qwen2_config
from theodolite_jobs.models.facts import describe_model, plain_errors
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.source import ModelSource, fetch_small_files, locate, resolve_source
from theodolite_jobs.prepare import check_remote_code

_PICKLED = "*model*.bin"


def inspect_model(model: ModelSpec, folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the source of a model and the facts of `describe_model`, with notes on its weight files.

    Raises:
        ModelError: the model does not exist, its configuration cannot be read, or it has no residual stream.
        SpecError: the spec has a revision for a local model, or requests remote code that is not allowed.
    """
    check_remote_code(model, settings)
    source = locate(model, folder)
    if source.kind == "hub":
        source = resolve_source(model, folder)  # for a local model it would read the weights
    config = _configuration(source, model.trust_remote_code, settings.cache)
    anatomy = known_anatomy(config)
    dimensions = dimensions_of(config, anatomy.reserved_positions if anatomy else 0)
    with plain_errors(f"describe a {config.model_type!r} model of this configuration"):
        facts = describe_model(config, anatomy, dimensions)
    facts["notes"] += _notes_on_files(source)
    return {"name": source.name, "kind": source.kind, "revision": source.revision or None, **facts}


def _configuration(source: ModelSource, trust_remote_code: bool, cache: Path) -> Any:
    if source.kind == "gguf":
        return _header(Path(source.location))
    folder = fetch_small_files(source, cache) if source.kind == "hub" else Path(source.location)
    if is_qwen1(folder):
        with plain_errors(f"read the configuration in {folder}"):
            return qwen2_config(read_json(folder / "config.json"))
    return load_config(folder, trust_remote_code)


def _header(file: Path) -> Any:
    """Return the configuration in the header of a GGUF file."""
    from transformers import AutoConfig

    with plain_errors(f"read the header of {file}"):
        return AutoConfig.from_pretrained(file.parent, gguf_file=file.name)


def _notes_on_files(source: ModelSource) -> list[str]:
    if source.kind == "gguf":
        return ["the weights are in a GGUF file; the first load converts them to float32 in the cache"]
    names = _file_names(source)
    if names is None:
        return ["the hub did not list the weight files"]
    if fnmatch.filter(names, "*.safetensors"):
        return []
    if fnmatch.filter(names, _PICKLED):
        return [
            "the weights are pickled, which loading refuses because pickles can run code; convert them to safetensors"
        ]
    return ["the model has no .safetensors weights, so it can be described but not surveyed"]


def _file_names(source: ModelSource) -> list[str] | None:
    if source.kind == "folder":
        return [path.name for path in Path(source.location).iterdir()]
    from huggingface_hub import HfApi

    try:
        return HfApi().list_repo_files(source.location, revision=source.revision)
    # Without a network or in offline mode, several libraries raise their own errors.
    except Exception:
        return None
