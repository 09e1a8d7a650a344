"""Resolve revisions of repositories on the hub to commits, and download their files."""

import difflib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, first_line
from theodolite.model_aliases import MODEL_ALIASES
from theodolite_jobs.stages import LISTENER, Listener, Stage

_REASON_CHARACTERS = 160
"""The number of characters that are quoted from another library's message."""

# Some repositories also contain the same weights for another library.
_DUPLICATES = ["consolidated*", "original/*"]

_REVISIONS = {"model.id": "model.revision", "model.adapter": "model.adapter_revision"}
"""The field of the spec with the revision of a repository, by the field that names it."""


def hub_commit(repository: str, revision: str | None, field: str = "model.id") -> tuple[str, str]:
    """Return the commit of a revision, and a note if the cache resolved it because the hub cannot be reached.

    `field` is the field of the spec that names the repository, for messages. Raises ModelError.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, RepositoryNotFoundError, RevisionNotFoundError

    if revision and re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision, ""
    try:
        commit = HfApi().model_info(repository, revision=revision).sha
    except RevisionNotFoundError as error:
        raise ModelError(f"{_REVISIONS[field]}: {repository!r} on the hub has no revision {revision!r}") from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"{field}: {repository!r} was not found: the hub has no such model, or it is private and needs an access "
            f"token; it is also no local folder, .gguf file or alias ({', '.join(MODEL_ALIASES)})"
        ) from error
    # Bad names, no network, offline mode: the client and its HTTP library each raise their own exception types.
    except Exception as error:
        if not isinstance(error, HfHubHTTPError | ValueError):  # a wrong answer, or a name that no hub allows
            return _cached_commit(repository, revision, field, first_line(error, _REASON_CHARACTERS))
        raise ModelError(
            f"{field}: the hub did not resolve {repository!r} at {revision or 'its newest revision'}: "
            f"{first_line(error, _REASON_CHARACTERS)}{_similar_alias(repository)}"
        ) from error
    if commit is None:
        raise ModelError(f"{field}: the hub returned no commit for {repository!r}")
    return commit, ""


def _similar_alias(repository: str) -> str:
    similar = difflib.get_close_matches(repository, MODEL_ALIASES, 1)
    return f"; did you mean {similar[0]}?" if similar else ""


def _cached_commit(repository: str, revision: str | None, field: str, reason: str) -> tuple[str, str]:
    """Return the commit of a revision when it was last downloaded, and a note that names it.

    The cache has no name for a commit that was downloaded as a commit, as surveys do; the only one is used.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.errors import LocalEntryNotFoundError
    from huggingface_hub.file_download import repo_folder_name

    wanted = revision or "main"
    snapshots = Path(HF_HUB_CACHE) / repo_folder_name(repo_id=repository, repo_type="model") / "snapshots"
    try:
        commit = Path(
            snapshot_download(repository, revision=wanted, allow_patterns=["*config.json"], local_files_only=True)
        ).name
    except (LocalEntryNotFoundError, ValueError) as error:
        commits = sorted(path.name for path in snapshots.glob("*"))
        if revision is None and len(commits) == 1:
            return commits[0], f"the hub cannot be reached, so {repository} is the only cached commit, {commits[0]}"
        raise ModelError(
            f"{field}: the hub cannot be reached ({reason}), and the cache of the hub has no revision {wanted!r} of "
            f"{repository!r}; download it while online, or give a cached commit as {_REVISIONS[field]}"
            f"; no local folder has this name{_similar_alias(repository)}"
        ) from error
    return commit, f"the hub cannot be reached, so {repository} at {wanted} is the cached commit {commit}"


def hub_folder(repository: str, commit: str, patterns: list[str], needed: Sequence[str]) -> Path:
    """Return the folder of a repository's files that match some patterns, after their download.

    Raises:
        ModelError: the download fails, or no file matches one of the `needed` patterns.
    """
    from huggingface_hub import snapshot_download

    options: dict[str, Any] = {"revision": commit, "allow_patterns": patterns, "ignore_patterns": _DUPLICATES}
    tell = LISTENER.get()
    try:
        folder = Path(snapshot_download(repository, **options, tqdm_class=_counter(repository, tell) if tell else None))
    # As above: any of several libraries may raise.
    except Exception as error:
        reason = _missing_in_cache(repository, options) or first_line(error, _REASON_CHARACTERS)
        raise ModelError(f"cannot download {repository} at {commit}: {reason}") from error
    finally:
        if tell:
            tell(None)
    # If the hub cannot be reached, the folder is what an earlier download left, which may be only a part.
    for pattern in needed:
        if not any(folder.glob(pattern)):
            if pattern == "config.json" and (file := _gguf_file(repository, commit)):
                raise ModelError(
                    f"{repository} on the hub has GGUF files and no {pattern}; download the one to survey, for example "
                    f"`hf download {repository} {file} --local-dir .`, and give its path as model.id"
                )
            raise ModelError(
                f"{folder} has no {pattern}: {repository} at {commit} has none, or only other files of it were "
                "downloaded; download it again while online, or use a model with this file"
            )
    return folder


def _counter(repository: str, tell: Listener) -> Any:
    """Return a class of the hub's progress bars that tells a listener the megabytes of a download, and prints nothing.

    The client makes several bars, of which one has the bytes of all files on the disk; its total grows with each file.
    """
    from huggingface_hub.utils import tqdm  # type: ignore[attr-defined]

    class Counter(tqdm):
        def __init__(self, *arguments: Any, name: str = "", **options: Any) -> None:
            self.bytes, self.has_bytes = 0, name == "huggingface_hub.snapshot_download"
            self.told: Stage | None = None
            super().__init__(*arguments, **options | {"disable": True})  # type: ignore[no-untyped-call]

        def update(self, n: float | None = 1) -> None:
            if not self.has_bytes:
                return
            with self.get_lock():  # one thread for each file
                self.bytes += int(n or 0)
                done, total = (-(-size // 10**6) for size in (self.bytes, int(self.total or 0)))
                stage = Stage(f"downloading {repository}", done, total, "MB")
                if stage != self.told:
                    tell(stage)
                self.told = stage

    return Counter


def _gguf_file(repository: str, commit: str) -> str | None:
    """Return the name of a GGUF file of a repository, or None if it has none or the hub does not answer."""
    from huggingface_hub import HfApi

    try:
        names = HfApi().list_repo_files(repository, revision=commit)
    except Exception:  # as above
        return None
    return next((name for name in sorted(names) if name.endswith(".gguf")), None)


def _missing_in_cache(repository: str, options: dict[str, Any]) -> str | None:
    """Return a sentence that names the files that the cached snapshot of a repository lacks, or None."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import IncompleteSnapshotError, LocalEntryNotFoundError

    try:
        snapshot_download(repository, **options, local_files_only=True)
    except IncompleteSnapshotError as error:
        names = str(error).partition(" missing (")[2].partition(")")[0]
        return f"the hub cannot be reached, and the cache lacks {names}; download the model again while online"
    except LocalEntryNotFoundError:
        return None
    return None
