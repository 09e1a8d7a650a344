"""Read single tensors from a folder of safetensors files."""

import json
import math
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.files import INDEX

_WHOLE = "model.safetensors"


class TensorFiles:
    """The safetensors files of a folder; `file_of` is the file of each tensor, by its name."""

    def __init__(self, folder: Path) -> None:
        """Read the names of the tensors from every file, which fails for a truncated file.

        Raises:
            ModelError: the folder has no safetensors files, or one is missing or unreadable.
        """
        self.folder = folder
        self.file_of = _file_of_tensors(folder)

    def shape(self, name: str) -> tuple[int, ...]:
        """Return a tensor's shape; raises ModelError."""
        with _opened(self._path(name)) as file:
            return tuple(file.get_slice(name).get_shape())

    def n_bytes(self, name: str) -> int:
        """Return the bytes of a tensor in its file; raises ModelError."""
        with _opened(self._path(name)) as file:
            part = file.get_slice(name)
            bits = re.search(r"\d+", part.get_dtype())  # such as BF16, F8_E4M3 or BOOL
            count: int = math.prod(part.get_shape())
            return count * (int(bits[0]) if bits else 8) // 8

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """Return a tensor, or some of its rows, in the stored dtype; raises ModelError."""
        with _opened(self._path(name)) as file:
            if rows == slice(None):
                return file.get_tensor(name)  # type: ignore[no-any-return]
            return file.get_slice(name)[rows]  # type: ignore[no-any-return]

    def _path(self, name: str) -> Path:
        if name not in self.file_of:
            raise ModelError(f"the weights in {self.folder} lack the tensor {name}")
        return self.folder / self.file_of[name]


def _file_of_tensors(folder: Path) -> dict[str, str]:
    """Return the file of each tensor; if an index exists, all files that it names must exist."""
    listed: dict[str, str] = {}
    if (folder / INDEX).is_file() and not (folder / _WHOLE).is_file():
        try:
            listed = {name: str(file) for name, file in json.loads((folder / INDEX).read_text())["weight_map"].items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{folder / INDEX} is not an index of safetensors files: {error}") from error
        missing = sorted(file for file in set(listed.values()) if not (folder / file).is_file())
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]}, which {INDEX} names; download it again")
    files = [_WHOLE] if (folder / _WHOLE).is_file() else sorted(set(listed.values()))
    found = (path.name for path in folder.glob("*.safetensors") if path.name != "adapter_model.safetensors")
    files = files or sorted(found)
    if not files:
        raise ModelError(f"{folder} has no .safetensors weights; convert pickled weights first (they can run code)")
    names: dict[str, str] = {}
    for file_name in files:
        with _opened(folder / file_name) as file:
            names.update(dict.fromkeys(file.keys(), file_name))
    return listed or names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {path}: {error}; it is corrupt or truncated; download it again") from error
