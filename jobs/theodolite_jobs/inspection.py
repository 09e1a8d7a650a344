"""Describe a model without reading its weights."""

import fnmatch
from dataclasses import replace
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError
from theodolite.settings import Settings
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.models.config_sizes import read_config
from theodolite_jobs.models.convert.qwen1 import is_qwen1, qwen2_config
from theodolite_jobs.models.facts import describe_model
from theodolite_jobs.models.gguf.convert import check_gguf
from theodolite_jobs.models.gguf.header import read_header
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.next_token_blocks import left_out_note
from theodolite_jobs.models.quantised import NAME_KEY
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.models.source import ModelSource, adapter_folder, fetch, locate, resolve_source, weight_format
from theodolite_jobs.prepare import check_remote_code


def inspect_model(model: ModelSpec, folder: Path, settings: Settings) -> dict[str, Any]:
    """Return the source of a model and the facts of `describe_model`, with notes on its weight files and an adapter.

    Raises:
        ModelError: the model does not exist, its configuration cannot be read, or it has no residual stream.
        SpecError: the spec has a revision for a local model, or requests remote code that is not allowed.
    """
    check_remote_code(model, settings)
    source = locate(model, folder)
    if source.kind == "hub" or (source.adapter is not None and source.adapter.kind == "hub"):
        source = resolve_source(model, folder)  # for a local model it would read the weights
    config = _configuration(source, model.trust_remote_code, settings.cache)
    adapter = _adapter(source, config)
    with plain_errors(f"describe a {config.model_type!r} model of this configuration"):
        facts = describe_model(config)
    facts["notes"] += [*_notes_on_files(source), *_notes_on_names(source, config, settings.cache)]
    own = {"name": source.name, "kind": source.kind, "revision": source.revision or None}
    return {**own, **({"adapter": adapter} if adapter else {}), **facts}


def _adapter(source: ModelSource, config: Any) -> dict[str, Any] | None:
    """Return what a source's adapter changes, after a change of the base's configuration; None without an adapter."""
    adapter = source.adapter
    if adapter is None:
        return None
    from theodolite_jobs.models.convert.adapters import describe_adapter  # torch takes seconds to load

    facts = describe_adapter(config, adapter_folder(adapter))
    if facts["vocabulary"] is not None:
        config.get_text_config().vocab_size = facts["vocabulary"]
    if facts["unties"]:
        config.tie_word_embeddings = False
    place = adapter.location if adapter.kind == "hub" else Path(adapter.location).name
    return {"name": adapter.name, "kind": adapter.kind, "place": place, "revision": adapter.revision or None, **facts}


def _configuration(source: ModelSource, trust_remote_code: bool, cache: Path) -> Any:
    if source.kind == "gguf":
        values, _ = check_gguf(read_header(Path(source.location)))
        from transformers import AutoConfig

        with plain_errors(f"read the configuration in {source.location}"):
            config = AutoConfig.for_model(**values)
        setattr(config, NAME_KEY, weight_format(source, config))
        return config
    folder = (
        fetch(replace(source, adapter=None), cache, weights=False) if source.kind == "hub" else Path(source.location)
    )
    if is_qwen1(folder):
        with plain_errors(f"read the configuration in {folder}"):
            return qwen2_config(read_config(folder))
    return load_config(folder, trust_remote_code)


def _notes_on_names(source: ModelSource, config: Any, cache: Path) -> list[str]:
    """Return a note on tensors that a survey leaves out, as far as an index or the files name them."""
    if source.kind == "gguf":
        return []
    folder = fetch(source, cache, weights=False) if source.kind == "hub" else Path(source.location)
    try:
        note = left_out_note(folder, config)
    except ModelError:  # files that cannot be read are named when they are loaded
        return []
    return [note] if note else []


def _notes_on_files(source: ModelSource) -> list[str]:
    if source.kind == "gguf":
        return ["the weights are in a GGUF file; the first load converts them to float32 in the cache"]
    if source.kind == "folder":
        names = [path.name for path in Path(source.location).iterdir()]
    else:
        from huggingface_hub import HfApi

        try:
            names = HfApi().list_repo_files(source.location, revision=source.revision)
        # Without a network or in offline mode, several libraries raise their own errors.
        except Exception:
            return ["the hub did not list the weight files"]
    if fnmatch.filter(names, "*.safetensors"):
        return []
    if fnmatch.filter(names, "*model*.bin"):
        return [
            "the weights are pickled, which loading refuses because pickles can run code; convert them to safetensors"
        ]
    return ["the model has no .safetensors weights, so it can be surveyed only with model.weights: random"]
