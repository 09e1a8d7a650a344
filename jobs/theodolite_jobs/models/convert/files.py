"""Shared helpers of model conversions: write a folder once and atomically, its index, and read JSON files."""

import hashlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from theodolite.errors import ModelError
from theodolite.store.pieces import fields_of, record
from theodolite_jobs.stages import counted

if TYPE_CHECKING:  # torch takes seconds to load
    from torch import Tensor

SMALL_FILES = ["*.py", "*.json", "*.jinja", "*.model", "*.tiktoken", "*.txt"]
"""Configuration, tokenizer, and the code they may need (it runs only if it is allowed); no weights."""

TEMPLATE_FOLDER = "additional_chat_templates"
"""The folder of a model's chat templates beside the default one; the patterns above also match its files."""

INDEX = "model.safetensors.index.json"
"""The file that names the safetensors file of each tensor."""

_CHECKSUMS = "checksums.json"
"""The file with the SHA-256 of all other files of a written folder."""

_log = logging.getLogger(__name__)

MOST_JSON_BYTES = 2**24
"""The largest JSON file of settings; those of published models have less than a tenth."""

_FILE_BYTES = 2 * 2**30
"""A written file is closed when it reaches this size; it is in memory until then."""


def create_once(into: Path, create: Callable[[], None]) -> Path:
    """Return the folder `into`; unless it exists as `atomic_folder` wrote it, `create` writes it first.

    If several processes of a machine need the same folder, one creates it and the others wait.
    """
    if _is_whole(into):
        return into
    with _locked(into):
        if not _is_whole(into):
            if into.is_dir():
                _log.warning("%s is not as it was written; it is removed and created again", into)
                shutil.rmtree(into)
            for left in into.parent.glob(f"{into.name}-*"):  # by `atomic_folder`, in a process that was killed
                shutil.rmtree(left, ignore_errors=True)
            create()
    return into


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder in the cache; raises ModelError if the cache cannot be written."""
    from filelock import FileLock

    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        lock = FileLock(folder.with_name(f"{folder.name}.lock"))
        lock.acquire()
    except OSError as error:
        raise ModelError(
            f"cannot write {folder}: {error}; set THEODOLITE_CACHE to a folder that you can write"
        ) from error
    try:
        yield
    finally:
        lock.release()


def _is_whole(folder: Path) -> bool:
    """Return whether a folder exists and has exactly the bytes that `atomic_folder` wrote."""
    if not folder.is_dir():
        return False
    try:
        states = {file: file.stat() for file in _files(folder)}
    except FileNotFoundError:  # another process removes it
        return False
    return _has_checksums(folder, tuple((file, one.st_size, one.st_mtime_ns) for file, one in states.items()))


@cache  # a process needs a folder several times, and reads gigabytes once
def _has_checksums(folder: Path, _states: tuple[tuple[Path, int, int], ...]) -> bool:
    file = folder / _CHECKSUMS
    stored = fields_of(folder.name, file.read_bytes() if file.is_file() else None)
    return stored is not None and stored["files"] == _checksums(folder)


def _checksums(folder: Path) -> dict[str, str]:
    found = {}
    for file in _files(folder):
        if file.name != _CHECKSUMS:
            with file.open("rb") as stream:
                found[file.relative_to(folder).as_posix()] = hashlib.file_digest(stream, "sha256").hexdigest()
    return found


def _files(folder: Path) -> list[Path]:
    return sorted(file for file in folder.rglob("*") if file.is_file())


def check_space(needed: float, into: Path, what: str) -> None:
    """Raise ModelError if the disk has less free space beside a folder than `what` needs, in bytes."""
    free = shutil.disk_usage(into.parent).free
    if needed > free:
        raise ModelError(
            f"{what} need {needed / 1e9:.3g} GB, and {into.parent} has {free / 1e9:.3g} GB free; free some space, or "
            "set THEODOLITE_CACHE to another folder"
        )


def write_index(folder: Path, weight_map: Mapping[str, str], total_size: int) -> None:
    """Write the index of a folder's safetensors files: the file of each tensor, and the bytes of all."""
    index = {"metadata": {"total_size": total_size}, "weight_map": weight_map}
    (folder / INDEX).write_text(json.dumps(index, indent=2), encoding="utf-8")


def write_tensors(tensors: Iterable[tuple[str, "Tensor"]], total: int, folder: Path) -> None:
    """Write tensors, `total` in number, to safetensors files, and their index."""
    from safetensors.torch import save_file

    weight_map: dict[str, str] = {}
    batch: dict[str, Tensor] = {}
    total_size = 0

    def close() -> None:
        file = folder / f"part-{len(set(weight_map.values())):05}.safetensors"
        save_file(batch, file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(batch, file.name))
        batch.clear()

    for name, tensor in counted(tensors, total, "converting", "tensors"):
        batch[name] = tensor
        total_size += tensor.nbytes
        if sum(one.nbytes for one in batch.values()) >= _FILE_BYTES:
            close()
    if batch:
        close()
    write_index(folder, weight_map, total_size)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder, and rename it to `folder` if the block ends without an error; else delete it.

    So `folder` is always complete if it exists, with the checksums of its files. Two processes may convert at the same
    time.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{folder.name}-", dir=folder.parent))
    try:
        yield staging
        (staging / _CHECKSUMS).write_bytes(record(folder.name, {"files": _checksums(staging)}))
        try:
            os.replace(staging, folder)
        except OSError:
            # Another process may have finished first; its conversion is the same.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def read_json(file: Path, most_bytes: int = MOST_JSON_BYTES) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist; raises ModelError, also if it is larger."""
    if not file.is_file():
        return {}
    try:
        if (size := file.stat().st_size) > most_bytes:
            raise ValueError(f"it has {size:,} bytes; allowed: at most {most_bytes:,}; use the file of the model")
        content = json.loads(file.read_text(encoding="utf-8"))
    except RecursionError as error:
        raise ModelError(f"cannot read {file} as JSON: it has lists or objects hundreds deep; flatten it") from error
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} as JSON: {error}") from error
    if not isinstance(content, dict):
        raise ModelError(f"cannot read {file}: its content is not a JSON object")
    return content
