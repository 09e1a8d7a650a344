"""Merge an adapter of the library peft (LoRA, DoRA) into its base once, into a plain checkpoint.

Everything else (captures, heads, words, weights) reads the merged checkpoint. A merged matrix is computed and stored in
float32, and is rounded once, when the model is loaded in its dtype. All other tensors are those of the base.
"""

import json
import shutil
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path
from typing import Any

from theodolite_jobs.models.convert.adapter_changes import Changes, changes_of
from theodolite_jobs.models.convert.adapter_config import MERGED_KEY, SETTINGS, AdapterConfig, read_adapter_config
from theodolite_jobs.models.convert.adapter_fit import Fitted, fit
from theodolite_jobs.models.convert.adapter_merge import Places, load_adapter, merged_tensors
from theodolite_jobs.models.convert.files import (
    TEMPLATE_FOLDER,
    atomic_folder,
    check_space,
    create_once,
    read_json,
    write_tensors,
)
from theodolite_jobs.models.convert.quantised import write_small_files
from theodolite_jobs.models.load import VOCABULARIES, load_config
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.models.tensors import TensorFiles

_TEMPLATE_FILES = (TEMPLATE_FOLDER, "chat_template.*", "processor_config.json")  # tokenizer_config.json has more
_TOKENIZER_FILES = (
    *VOCABULARIES,
    *_TEMPLATE_FILES,
    "merges.txt",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
)


def merge_adapter(base: Path, adapter: Path, into: Path, *, weights: bool = True) -> Path:
    """Write a base with an adapter merged to `into`, unless `into` exists; return `into`.

    One matrix, two gigabytes of output, and the adapter are in memory at a time. `into` appears completely or not at
    all. Planning needs no `weights`: only the base's configuration and the headers of the adapter are read.

    Raises:
        ModelError: the adapter and the base do not fit each other, a tensor is missing, surplus or not finite, or the
            disk has too little space.
        UnsupportedModelError: the adapter is of another kind than LoRA, or has a setting that cannot be merged.
    """
    with _adapter_errors(adapter):
        return create_once(into, lambda: _merge(base, adapter, into, weights))


def describe_adapter(config: Any, adapter: Path) -> dict[str, Any]:
    """Return what an adapter changes in the model of a configuration, in plain types; raises as `merge_adapter`."""
    with _adapter_errors(adapter):
        settings = read_adapter_config(adapter)
        fitted = fit(config, settings, adapter)
        return _facts(settings, fitted, changes_of(fitted, settings), adapter)


@contextmanager
def _adapter_errors(adapter: Path) -> Iterator[None]:
    """Convert any exception into a ModelError of one line; peft warns about what is checked here."""
    with plain_errors(f"merge the adapter {adapter}"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _merge(base: Path, adapter: Path, into: Path, weights: bool) -> None:
    settings = read_adapter_config(adapter)
    fitted = fit(load_config(base), settings, adapter)
    changes = changes_of(fitted, settings)
    with atomic_folder(into) as staging:
        _write_small_files(base, adapter, staging, _facts(settings, fitted, changes, adapter))
        if weights:
            files = TensorFiles(base)
            places = Places(fitted, files, settings)
            replaced = places.replaced(changes)
            files.check_plain(replaced & files.headers.keys())
            places.check_head(changes)
            _check_space(files, fitted, changes, into)
            load_adapter(fitted, adapter)
            kept = ((name, files.read(name)) for name in files.headers if name not in replaced)
            merged = merged_tensors(fitted, changes_of(fitted, settings), places, files)
            write_tensors(chain(kept, merged), len(replaced | files.headers.keys()), staging)


def _check_space(files: TensorFiles, fitted: Fitted, changes: Changes, into: Path) -> None:
    grown = sum(4 * fitted.shapes[name].numel() for name in changes.by_name)
    check_space(sum(one.n_bytes for one in files.headers.values()) + grown, into, "the merged weights")


def _facts(settings: AdapterConfig, fitted: Fitted, changes: Changes, adapter: Path) -> dict[str, Any]:
    """Return what the adapter changes, for the configuration, run.json and reports."""
    from peft.tuners.lora.layer import LoraLayer

    layers = [one.layer for one in changes.by_name.values() if isinstance(one.layer, LoraLayer)]
    ranks = [rank for layer in layers for rank in layer.r.values()]
    return {
        "method": settings.method,
        "ranks": [min(ranks, default=0), max(ranks, default=0)],
        "matrices": changes.n_matrices,
        "vectors": len(changes.by_name) - changes.n_matrices,
        "base": settings.base_model_name_or_path,
        "tokenizer": _has_tokenizer_files(adapter),
        "vocabulary": fitted.vocabulary,
        "unties": changes.unties,
    }


def _has_tokenizer_files(adapter: Path) -> bool:
    return bool(_files(adapter, _TOKENIZER_FILES))


def _files(folder: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for path in folder.iterdir() if any(fnmatch(path.name, pattern) for pattern in patterns)]


def _write_small_files(base: Path, adapter: Path, into: Path, facts: dict[str, Any]) -> None:
    """Write the base's configuration with the adapter's changes, and the tokenizer, whose files the adapter may have.

    If the adapter has any of them, no chat template of the base stays; if it has a vocabulary, no file of the base's
    tokenizer does.
    """
    write_small_files(base, into)
    (into / SETTINGS).unlink(missing_ok=True)  # transformers would load the adapter again
    if base != adapter and facts["tokenizer"]:
        for path in _files(into, _TOKENIZER_FILES if _files(adapter, VOCABULARIES) else _TEMPLATE_FILES):
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        tokenizer = read_json(into / "tokenizer_config.json")
        if tokenizer.pop("chat_template", None) is not None:
            (into / "tokenizer_config.json").write_text(json.dumps(tokenizer, indent=2), encoding="utf-8")
        for path in _files(adapter, _TOKENIZER_FILES):
            if path.is_dir():
                shutil.copytree(path, into / path.name)
            else:
                shutil.copyfile(path, into / path.name)
    raw = read_json(into / "config.json") | {MERGED_KEY: facts}
    text = raw.get("text_config")
    for part in (raw, text):
        if isinstance(part, dict):
            if facts["vocabulary"] is not None and (part is text or text is None or "vocab_size" in part):
                part["vocab_size"] = facts["vocabulary"]
            if facts["unties"] and (part is raw or "tie_word_embeddings" in part):
                part["tie_word_embeddings"] = False
    (into / "config.json").write_text(json.dumps(raw, indent=2), encoding="utf-8")
