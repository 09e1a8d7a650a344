"""The metadata of an architecture: each key is read by name, and a key that nothing reads is refused.

So no setting is dropped: a value that this version does not understand could change what the model computes.
"""

import math
from typing import Any, TypeVar

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.gguf.header import Header

_T = TypeVar("_T", int, float, bool, str)


class Metadata:
    """The keys `ARCHITECTURE.*` of a file; remembers which were read."""

    def __init__(self, header: Header) -> None:
        """Take the keys of the file's architecture."""
        self.header = header
        self.file = header.files[0]
        self.architecture = str(header.metadata.get("general.architecture"))
        self._prefix = f"{self.architecture}."
        self._read: set[str] = set()

    def need(self, key: str, kind: type[_T], *, zero: bool = False) -> _T:
        """Return the value of a key as `get` does; raise ModelError if the file lacks it."""
        value = self.get(key, kind, zero=zero)
        if value is None:
            raise self.lacks(key)
        return value

    def lacks(self, key: str) -> ModelError:
        """Return the error for a key that the file lacks."""
        return ModelError(
            f"{self.file} lacks the key {self._prefix}{key}, without which its model is not defined; use a file that a "
            "current version of llama.cpp wrote"
        )

    def get(self, key: str, kind: type[_T], *, zero: bool = False) -> _T | None:
        """Return the value of a key, or None; a list of equal values is one value.

        Raises:
            ModelError: the value has another type, or is a number that is not positive; `zero` also allows 0.
        """
        value = self.any(key)
        if isinstance(value, list) and len(set(value)) == 1:
            value = value[0]
        if kind is float and type(value) is int:
            value = float(value)
        if value is None:
            return None
        if not isinstance(value, kind) or (kind is bool) != isinstance(value, bool):
            raise ModelError(f"{self.file}: {self._prefix}{key} is {str(value)[:80]}, and must be one {kind.__name__}")
        if isinstance(value, str) or kind is bool or (math.isfinite(value) and (value > 0 or (zero and value == 0))):
            return value
        least = "0 or more" if zero else "more than 0"
        raise ModelError(f"{self.file}: {self._prefix}{key} is {value}, and must be {least}")

    def any(self, key: str) -> Any:
        """Return the value of a key of any type, or None."""
        self._read.add(key)
        return self.header.metadata.get(f"{self._prefix}{key}")

    def require(self, key: str, *allowed: object) -> None:
        """Raise UnsupportedModelError if a key is present and has none of the allowed values."""
        value = self.any(key)
        if value is not None and value not in allowed:
            raise self.refused(key, value, " or ".join(map(str, allowed)))

    def refused(self, key: str, value: object, allowed: str) -> UnsupportedModelError:
        """Return the error for a value that cannot be surveyed."""
        return UnsupportedModelError(
            f"{self.file}: {self._prefix}{key} is {str(value)[:80]}; allowed for {self.architecture}: {allowed}; use "
            "the model's safetensors files"
        )

    def has(self, tensor: str) -> bool:
        """Return whether the file has a tensor of this name, or one of the first block that has it."""
        return tensor in self.header.tensors or any(
            name.startswith("blk.") and name.endswith(f".{tensor}") for name in self.header.tensors
        )

    def size(self, tensor: str, axis: int) -> int:
        """Return a size of a tensor, or of the first tensor of a block with this name; raises ModelError."""
        for name, stored in self.header.tensors.items():
            if name == tensor or (name.startswith("blk.") and name.endswith(f".{tensor}")):
                return stored.shape[axis]
        raise ModelError(f"{self.file} lacks the tensor {tensor}; download it again")

    def check_all_read(self) -> None:
        """Raise UnsupportedModelError if the file has a key of the architecture that nothing has read."""
        keys = (key.removeprefix(self._prefix) for key in self.header.metadata if key.startswith(self._prefix))
        if unread := sorted(set(keys) - self._read):
            raise UnsupportedModelError(
                f"{self.file} states {self._prefix}{unread[0]}, which this version does not understand for "
                f"{self.architecture}; use the model's safetensors files"
            )
