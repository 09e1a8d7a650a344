"""Read single tensors from a folder of safetensors files."""

import math
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.files import INDEX, read_json

_WHOLE = "model.safetensors"
_MOST_INDEX_BYTES = 2**26  # the tensors of the largest mixtures need less than half
_PLAIN_DTYPES = {"F64", "F32", "F16", "BF16"}


@dataclass(frozen=True)
class TensorHeader:
    """Where and how a tensor is stored."""

    file: str
    dtype: str  # as safetensors names it, such as BF16
    shape: tuple[int, ...]

    @property
    def n_bytes(self) -> int:
        """The bytes of the tensor in its file."""
        bits = re.search(r"\d+", self.dtype)  # such as BF16, F8_E4M3 or BOOL
        return math.prod(self.shape) * (int(bits[0]) if bits else 8) // 8


class TensorFiles:
    """The safetensors files of a folder; `headers` says how each tensor is stored, by its name."""

    def __init__(self, folder: Path) -> None:
        """Read the headers of every file, which fails for a truncated file.

        Raises:
            ModelError: the folder has no safetensors files, or one is missing or unreadable.
        """
        self.folder = folder
        self.headers = _headers(folder)

    def leave_out(self, names: set[str]) -> None:
        """Remove the names of tensors that nothing may read."""
        self.headers = {name: one for name, one in self.headers.items() if name not in names}

    def check_plain(self, names: Iterable[str]) -> None:
        """Raise ModelError for a tensor that is not in a dtype of plain weights: config.json hides a quantisation."""
        for name in sorted(names):
            if (dtype := self._header(name).dtype) not in _PLAIN_DTYPES:
                raise ModelError(
                    f"the weights in {self.folder} have {name} in {dtype}, and config.json describes no quantisation; "
                    "use the config.json that belongs to these weights"
                )

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; raises ModelError."""
        return self._header(name).shape

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """Return a tensor, or some of its rows, in the stored dtype; raises ModelError."""
        with _opened(self.folder / self._header(name).file) as file:
            if rows == slice(None):
                return file.get_tensor(name)  # type: ignore[no-any-return]
            return file.get_slice(name)[rows]  # type: ignore[no-any-return]

    def _header(self, name: str) -> TensorHeader:
        if name not in self.headers:
            raise ModelError(f"the weights in {self.folder} lack the tensor {name}")
        return self.headers[name]


def names_in(folder: Path) -> set[str]:
    """Return the names of the tensors in a folder; if files of its index are not there, those in the index.

    A folder without both has no names. Raises ModelError.
    """
    return set(_headers(folder) if has_files(folder) else _index(folder))


def has_files(folder: Path) -> bool:
    """Return whether a folder has weights, and all files that its index names, if it has one; raises ModelError."""
    return any(folder.glob("*.safetensors")) and all((folder / file).is_file() for file in _index(folder).values())


def _headers(folder: Path) -> dict[str, TensorHeader]:
    """Return how each tensor is stored; if an index exists, all files that it names must exist, with its tensors."""
    listed = _index(folder)
    shards = {path.name for path in folder.glob("model-*-of-*.safetensors")}
    shards |= {file for file in listed.values() if file != _WHOLE and (folder / file).is_file()}
    if (folder / _WHOLE).is_file():
        if shards:
            raise ModelError(
                f"{folder} has weights in {_WHOLE} and in {min(shards)}; remove the files that are not of this model"
            )
        listed, files = {}, [_WHOLE]
    elif listed:
        files = sorted(set(listed.values()))
        if missing := [file for file in files if not (folder / file).is_file()]:
            raise ModelError(f"{folder} lacks {missing[0]}, which {INDEX} names; download it again")
        if stale := sorted(shards - set(files)):
            raise ModelError(
                f"{folder} has {stale[0]}, which {INDEX} does not name; remove it if it is of another model, or "
                "download the index again"
            )
    else:
        files = sorted(path.name for path in folder.glob("*.safetensors") if path.name != "adapter_model.safetensors")
    if not files:
        raise ModelError(f"{folder} has no .safetensors weights; convert pickled weights first (they can run code)")
    headers: dict[str, TensorHeader] = {}
    for file_name in files:
        with _opened(folder / file_name) as file:
            parts = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118 - not a dict
            own = {
                name: TensorHeader(file_name, one.get_dtype(), tuple(one.get_shape())) for name, one in parts.items()
            }
        if twice := sorted(own.keys() & headers.keys()):
            raise ModelError(
                f"{folder} has the tensor {twice[0]} in {headers[twice[0]].file} and in {file_name}; remove the file "
                "that is not of this model"
            )
        headers |= own
    if wrong := sorted(name for name, file in listed.items() if name not in headers or headers[name].file != file):
        raise ModelError(
            f"{listed[wrong[0]]} in {folder} lacks the tensor {wrong[0]}, which {INDEX} names; download both again"
        )
    return headers


def _index(folder: Path) -> dict[str, str]:
    """Return the file of each tensor by the index of a folder, or {} if it has none."""
    if not (folder / INDEX).is_file():
        return {}
    raw = read_json(folder / INDEX, _MOST_INDEX_BYTES)
    try:
        listed = {str(k): str(v) for k, v in raw["weight_map"].items()}
    except (KeyError, AttributeError) as error:
        raise ModelError(f"{folder / INDEX} is not an index of safetensors files: {error}") from error
    if outside := sorted(file for file in listed.values() if Path(file).name != file):
        raise ModelError(f"{folder / INDEX} names {outside[0]}, which is not a file of its folder; move the file there")
    return listed


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {path}: {error}; it is corrupt or truncated; download it again") from error
