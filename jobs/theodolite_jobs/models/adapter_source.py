"""Find the base of an adapter, so that a model's spec names both: the base as `id`, and the adapter as `adapter`."""

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, SpecError
from theodolite.model_aliases import MODEL_ALIASES
from theodolite.spec_parts import ModelSpec
from theodolite.store.runs import AdapterFacts
from theodolite_jobs.models.convert.adapter_config import (
    SETTINGS,
    TENSORS,
    AdapterConfig,
    is_adapter,
    read_adapter_config,
)

HUB_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")

_COMMIT = re.compile(r"[0-9a-f]{40}")

_LONGEST_NAME = 255  # of a folder

_INSTEAD = "set model: {id: BASE, adapter: ADAPTER}"


def local_path(name: str, *folders: Path) -> Path | None:
    """Return the first existing path of this name, below one of the folders or the working directory."""
    if name in MODEL_ALIASES:
        return None
    paths = (*(one / name for one in folders), Path(name))
    return next((path for path in paths if os.path.exists(path)), None)  # Path.exists raises for a name too long


def local_model(name: str, revision: str | None, folder: Path) -> Path | None:
    """Return the existing path of a model or an adapter, or None: one at a commit is on the hub.

    A survey names commits to all nodes, and a node may have a folder OWNER/NAME beside its processes.
    """
    is_on_hub = revision is not None and _COMMIT.fullmatch(revision) and HUB_ID.fullmatch(name) and name[0] != "."
    return None if is_on_hub else local_path(name, folder)


def with_local_adapter(model: ModelSpec, folder: Path) -> ModelSpec:
    """Return the spec of base and adapter if the model's id is the folder of an adapter; else the same spec.

    Raises:
        ModelError: the adapter cannot be merged, or its base is not found.
        SpecError: the spec names a second adapter, a revision of a folder, or random weights of an adapter.
    """
    path = local_model(model.id, model.revision, folder)
    if path is None or not is_adapter(path):
        return model
    given = None if model.adapter is None else local_model(model.adapter, model.adapter_revision, folder)
    if model.adapter is not None:
        if given is None or given.resolve() != path.resolve():
            raise _two_adapters(model)
        return model
    if model.revision is not None:
        raise SpecError(f"model.revision: given {model.revision!r}, but only hub models have revisions; leave it out")
    if _has_base(one.name for one in path.iterdir()):
        return _both(model, adapter=str(path.resolve()))
    settings = read_adapter_config(path)
    base = _base_of(settings, path)
    here = local_path(base, path, folder)
    base = base if here is None else str(here.resolve())
    is_on_hub = here is None and base not in MODEL_ALIASES
    return _both(model, id=base, revision=settings.revision if is_on_hub else None, adapter=str(path.resolve()))


def with_hub_adapter(model: ModelSpec, commit: str, folder: Path) -> ModelSpec:
    """Return the spec of base and adapter if the model's id is a repository of an adapter; else the same spec.

    An adapter on the hub names its base on the hub; a path in it would be one of another machine. Raises as
    `with_local_adapter`.
    """
    file, has_base = _hub_settings(model.id, commit)
    if file is None or model.adapter == model.id:
        return model
    if model.adapter is not None:
        raise _two_adapters(model)
    if has_base:
        return _both(model, revision=commit, adapter=model.id, adapter_revision=commit)
    settings = read_adapter_config(file.parent)
    base = _base_of(settings, Path(model.id))
    if not HUB_ID.fullmatch(base) or local_path(base, folder) is not None:
        what = "also a local path" if HUB_ID.fullmatch(base) else "no hub id"
        raise ModelError(f"model.id: the base of the adapter {model.id} is {base!r}, which is {what}; {_INSTEAD}")
    revision = None if base in MODEL_ALIASES else settings.revision
    return _both(model, id=base, revision=revision, adapter=model.id, adapter_revision=commit)


@contextmanager
def base_errors(adapter: str, base: str) -> Iterator[None]:
    """Say in a ModelError that a model is the base which the settings of an adapter name."""
    try:
        yield
    except ModelError as error:
        raise ModelError(
            f"model.id: {adapter} is an adapter, and its base {base!r} is not available; {_INSTEAD} ({error})"
        ) from error


def _has_base(names: Iterable[str]) -> bool:
    """Return whether a folder of these files has a model too; some programs put the base's config.json alone there."""
    own = set(names) - {TENSORS}
    weights = [one for one in own if fnmatch(one, "*.safetensors") or fnmatch(one, "pytorch_model*")]
    return "config.json" in own and bool(weights)


def _hub_settings(repository: str, commit: str) -> tuple[Path | None, bool]:
    """Return the adapter_config.json of a repository, after its download, and whether it has a base too.

    Without an answer of the hub, the downloaded files decide if they are those of a plain model or of an adapter
    alone. Otherwise the download of the model explains what is missing, or finds the adapter.
    """
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache

    settings, config = (try_to_load_from_cache(repository, one, revision=commit) for one in (SETTINGS, "config.json"))
    if isinstance(config, str) and not isinstance(settings, str):
        return None, True
    try:
        names = [one.rfilename for one in HfApi().model_info(repository, revision=commit).siblings or ()]
        file = Path(hf_hub_download(repository, SETTINGS, revision=commit)) if SETTINGS in names else None
        return file, _has_base(names)
    # Several libraries raise their own errors without a network.
    except Exception:
        return (Path(settings) if isinstance(settings, str) and not isinstance(config, str) else None), False


def adapter_notes(facts: AdapterFacts | None, base: str) -> list[str]:
    """Return what to say about the adapter of a survey, and a warning if it names a base of another name."""
    if facts is None:
        return []
    tokenizer = "; tokenizer and chat template are those of the adapter" if facts.tokenizer else ""
    tokens = f"; its embedding has {facts.vocabulary} tokens" if facts.vocabulary else ""
    unties = "; the language-model head is no longer tied to the embedding" if facts.unties else ""
    notes = [f"the adapter {facts.summary} is merged into {base}{tokens}{unties}{tokenizer}"]
    if facts.base and _last(facts.base) != _last(base):
        notes.append(
            f"the adapter names {facts.base!r} as its base, and the survey merges it into {base}; check "
            "that it was trained on these weights"
        )
    return notes


def _last(name: str) -> str:
    return re.split(r"[/\\]", name.rstrip("/\\"))[-1].lower()


def _both(model: ModelSpec, **changes: Any) -> ModelSpec:
    if model.weights == "random":
        raise SpecError(
            f"model.weights: random, but {model.id} is an adapter, whose weights are trained; give its base as model.id"
        )
    if model.trust_remote_code:
        raise SpecError(
            f"model.trust_remote_code: true, but {model.id} is an adapter, which is merged only into model classes of "
            "transformers; set it to false"
        )
    return model.model_copy(update=changes)


def _base_of(settings: AdapterConfig, adapter: Path) -> str:
    if not settings.base_model_name_or_path:
        raise ModelError(f"model.id: {adapter} is an adapter whose {SETTINGS} does not name its base; {_INSTEAD}")
    if any(len(part) > _LONGEST_NAME for part in settings.base_model_name_or_path.split("/")):
        raise ModelError(
            f"model.id: {adapter} is an adapter whose {SETTINGS} names a base with {_LONGEST_NAME + 1} characters or "
            f"more, which no folder or hub model can have; {_INSTEAD}"
        )
    return settings.base_model_name_or_path


def _two_adapters(model: ModelSpec) -> SpecError:
    return SpecError(
        f"model.adapter: given {model.adapter!r}, but {model.id} contains an adapter itself; give a base without one "
        "as model.id, or leave model.adapter out"
    )
