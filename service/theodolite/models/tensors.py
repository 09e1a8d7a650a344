"""Tensors in a folder of safetensors files: which there are, and reading one of them."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from theodolite.errors import ModelError

_INDEX = "model.safetensors.index.json"


class TensorFiles:
    """The safetensors files of a folder: which tensors there are, and reading one of them."""

    def __init__(self, folder: Path) -> None:
        """Read names only.

        Raises:
            ModelError: there are no safetensors files, one is missing or unreadable.
        """
        self.folder = folder
        self._file_of = _tensor_names(folder)

    def __contains__(self, name: str) -> bool:
        """Return whether a tensor is stored."""
        return name in self._file_of

    def names(self) -> list[str]:
        """Return the names of all tensors."""
        return list(self._file_of)

    def read(self, name: str, rows: slice = slice(None)) -> torch.Tensor:
        """Return a tensor, or some of its rows, in the dtype it is stored in; raises ModelError."""
        if name not in self._file_of:
            raise ModelError(f"the weights in {self.folder} lack the tensor {name}")
        path = self.folder / self._file_of[name]
        with _opened(path) as file:
            if rows == slice(None):
                return file.get_tensor(name)  # type: ignore[no-any-return]
            return file.get_slice(name)[rows]  # type: ignore[no-any-return]


def _tensor_names(folder: Path) -> dict[str, str]:
    """Return the file of each tensor; from the index where there is one, so that a missing file is noticed."""
    if (folder / _INDEX).is_file():
        try:
            listed: dict[str, str] = json.loads((folder / _INDEX).read_text())["weight_map"]
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{folder / _INDEX} is not an index of safetensors files: {error}") from error
        missing = sorted(file for file in set(listed.values()) if not (folder / file).is_file())
        if missing:
            raise ModelError(f"{folder} lacks {missing[0]}, which {_INDEX} names; download it again")
        return listed
    found = sorted(path.name for path in folder.glob("*.safetensors"))
    if not found:
        raise ModelError(f"{folder} has no .safetensors weights; convert pickled weights first: they can run code")
    names = {}
    for file_name in found:
        with _opened(folder / file_name) as file:
            names.update(dict.fromkeys(file.keys(), file_name))
    return names


@contextmanager
def _opened(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="pt") as file:
            yield file
    except (SafetensorError, OSError) as error:
        raise ModelError(f"cannot read {path}: {error}; it is corrupt or cut off, download it again") from error
