"""Check a spec that a client submits over HTTP against the limits and allow-lists of the deployment."""

import json
from collections.abc import Sequence
from fnmatch import fnmatchcase
from functools import lru_cache
from pathlib import Path

from theodolite.api.problems import Problem
from theodolite.settings import Settings
from theodolite.spec import SurveySpec
from theodolite.spec_parts import NOUNS, PromptSetSpec
from theodolite.store.uploads import is_uploaded, read_upload

_LARGEST_SHOWN = 10**12  # a limit may have any number of digits
_BUILTIN_PROMPTS = 256  # prompts of each large built-in set
_SENTENCES = 64
_PARSED_BYTES = 2**20  # JSON takes tens of times as much memory as bytes


def check_submission(spec: SurveySpec, settings: Settings) -> None:
    """Raise Problem 403 for a spec that the deployment does not allow, and 413 for one that is too large."""
    _check_model(spec, settings)
    _check_sizes(spec)
    for name, prompt_set in spec.prompts.items():
        _check_source(name, prompt_set, settings)
    prompts, allowed = sum(_prompts_of(name, one, settings) for name, one in spec.prompts.items()), settings.job_prompts
    if prompts > allowed:
        detail = f"prompts: {prompts} requested, and this deployment allows {allowed} in one survey"
        raise Problem(413, "prompt-limit", f"{detail}; lower `limit` of the sets")
    if (given := len(spec.words_options.sentences)) > _SENTENCES:
        raise Problem(413, "prompt-limit", f"words.sentences: {given} given, {_SENTENCES} allowed")


def _check_sizes(spec: SurveySpec) -> None:
    """Raise Problem 413 for options that make a small spec expensive; the limits are far above common use."""
    sizes = {
        f"prompts.{name}: template, system, template_args and prefill, characters": (
            len(one.template or "") + len(json.dumps(one.chat_options, ensure_ascii=False)),
            10_000,
        )
        for name, one in spec.prompts.items()
    }
    sizes |= {
        "heads.offsets": (len(spec.heads.offsets), 64),
        "heads.vectors": (spec.heads.vectors, 128),
        "words.tokens": (spec.words_options.tokens, 200),
    }
    if spec.capture.batch_tokens != "auto":
        sizes["capture.batch_tokens"] = (spec.capture.batch_tokens, 2**20)
    for field, (given, allowed) in sizes.items():
        if given > allowed:
            shown = min(given, _LARGEST_SHOWN)
            raise Problem(413, "size-limit", f"{field}: given {shown}, and {allowed} are allowed over HTTP")


def _check_model(spec: SurveySpec, settings: Settings) -> None:
    model, allowed = spec.model.id, settings.models_allowed
    for field, name in {"id": model, "adapter": spec.model.adapter}.items():
        if name is not None and not _is_listed(name, allowed):
            detail = f"model.{field}: this deployment does not survey {name!r} over HTTP; allowed: "
            detail += f"{', '.join(allowed) or 'none'}; its operator can add the model to THEODOLITE_MODELS_ALLOWED"
            raise Problem(403, "model-not-allowed", detail)
    for field, revision in {"revision": spec.model.revision, "adapter_revision": spec.model.adapter_revision}.items():
        if revision is not None and revision.startswith("refs/"):  # anybody can propose files for a model
            detail = f"model.{field}: given {revision!r}; allowed over HTTP: a branch, a tag or a commit of the model"
            raise Problem(403, "model-not-allowed", detail)
    if spec.model.trust_remote_code and model not in settings.remote_code_allowed:
        detail = f"model.trust_remote_code: this deployment does not let {model!r} run its own code"
        raise Problem(403, "remote-code", detail)


def _is_listed(name: str, patterns: Sequence[str]) -> bool:
    """Return whether a pattern matches a hub id, an alias or an absolute path; none matches a relative path.

    A job would look for a relative path in an empty folder, and takes every other name for one of the hub.
    """
    matching = [pattern for pattern in patterns if fnmatchcase(name, pattern)]
    if name.startswith("/"):  # else * would allow every file of the nodes
        matching = [pattern for pattern in matching if pattern.startswith("/")]
    return bool(matching) and not name.startswith(("~", ".")) and ".." not in name.split("/")


def _check_source(name: str, prompt_set: PromptSetSpec, settings: Settings) -> None:
    kind, _, address = prompt_set.source.partition(":")
    if kind == "hub" and not _is_listed(address, settings.datasets_allowed):
        allowed = ", ".join(settings.datasets_allowed) or "none"
        raise _source_not_allowed(name, f"the dataset {address!r}", allowed)
    if kind == "file" and not _is_below(address, settings.files_allowed):
        allowed = f"absolute paths below {settings.files_allowed}" if settings.files_allowed else "none"
        advice = "a client uploads a file if its path is relative"
        raise _source_not_allowed(name, "this file over HTTP", f"{allowed}; {advice}")
    if kind == "upload" and not is_uploaded(settings.store, address):
        detail = f"prompts.{name}.source: the store has no upload {address[:12]}…; upload the file again"
        raise Problem(422, "upload-not-found", detail)


def _source_not_allowed(name: str, refused: str, allowed: str) -> Problem:
    detail = f"prompts.{name}.source: this deployment does not read {refused}; allowed: {allowed}"
    return Problem(403, "source-not-allowed", detail)


def _is_below(path: str, folder: Path | None) -> bool:
    """Return whether a path is absolute and, after resolving links and `..`, below a folder."""
    if folder is None or not Path(path).is_absolute() or "\0" in path:
        return False
    try:
        return Path(path).resolve().is_relative_to(folder.resolve())
    except (OSError, RuntimeError):  # a cycle of links
        return False


def _prompts_of(name: str, prompt_set: PromptSetSpec, settings: Settings) -> int:
    """Return the maximum number of prompts of a set; raises Problem 413 if it has no limit."""
    kind, _, address = prompt_set.source.partition(":")
    if prompt_set.limit is not None:
        return min(prompt_set.limit, _LARGEST_SHOWN)
    if kind == "builtin":
        return 100 if address == NOUNS else _BUILTIN_PROMPTS
    if kind == "inline":
        return len(prompt_set.texts)
    if kind == "upload" and not address.endswith((".parquet", ".gz")):
        count = _prompts_in(settings.store, address)
        if count is not None:
            return count
    detail = "not given, but it is needed for a file, a hub dataset or an uploaded .parquet, .gz or large .json file"
    raise Problem(413, "prompt-limit", f"prompts.{name}.limit: {detail}; set it")


@lru_cache(1024)
def _prompts_in(store: str, upload: str) -> int | None:
    """Return the maximum number of prompts in an upload, from its lines or from its JSON list; None for a large list.

    Many sets of a spec can name an upload, whose name is the digest of its content, so it is read once.
    """
    content = read_upload(store, upload)
    if not upload.endswith(".json"):
        return 1 + content.count(b"\n") + content.count(b"\r")  # a lone carriage return ends a line of a CSV file
    if len(content) > _PARSED_BYTES:
        return None
    try:
        return len(json.loads(content))
    except (ValueError, TypeError, RecursionError) as error:
        detail = f"prompts: the upload {upload[:12]}… is not a JSON list; upload a list of texts"
        raise Problem(422, "not-a-list", detail) from error
