"""Read the header of a GGUF file, or of all files of a split one: the metadata, and where each tensor lies.

Every length is checked against the file, because a damaged one would fill the memory. The format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import math
import mmap
import re
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from theodolite.errors import ModelError, one_line

_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The code of `struct` for a value, by the number of its type."""

_FLOAT32, _STRING, _ARRAY = 6, 8, 9

_MAX_ELEMENTS = 2**22
"""Maximum length of an array; the longest ones, vocabularies and their merges, have less than 2^20 elements."""

_MAX_DIMENSIONS = 4

_PART = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})")


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies, and how it is stored."""

    file: Path
    shape: tuple[int, ...]  # the last dimension varies fastest
    kind: str  # the name of its type, such as F32 or Q4_K
    offset: int  # from the start of the file, in bytes
    n_bytes: int


@dataclass(frozen=True)
class Header:
    """The metadata and the tensors of a model; a split model has several files."""

    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, StoredTensor]

    @property
    def quantised_types(self) -> list[str]:
        """The names of the quantised types of the tensors."""
        return sorted({tensor.kind for tensor in self.tensors.values()} - {"F64", "F32", "F16", "BF16"})


def gguf_name(file: Path) -> str:
    """Return the name of the model in a file, without the number of a part."""
    part = _PART.fullmatch(file.stem)
    return part["stem"] if part else file.stem


def gguf_files(file: Path) -> tuple[Path, ...]:
    """Return all files of the model of which `file` is one, by their names; raise ModelError if one is missing."""
    part = _PART.fullmatch(file.stem)
    if part is None:
        return (file,)
    count = int(part["count"])
    if not 1 <= int(part["number"]) <= count:
        raise ModelError(f"{file} is named as part {int(part['number'])} of {count}; rename it as it was published")
    files = tuple(
        file.with_name(f"{part['stem']}-{number:05}-of-{part['count']}{file.suffix}") for number in range(1, count + 1)
    )
    if missing := [one for one in files if not one.is_file()]:
        raise ModelError(
            f"{file} is part of a split model, and {missing[0].name} is missing in {file.parent}; download all "
            f"{count} parts into one folder"
        )
    return files


def read_header(file: Path) -> Header:
    """Return the header of a model; `file` may be any of its files.

    Raises:
        ModelError: a file is no GGUF file, is damaged or incomplete, or is not the part that its name says.
    """
    files = gguf_files(file)
    metadata: dict[str, Any] = {}
    tensors: dict[str, StoredTensor] = {}
    for number, one in enumerate(files):
        of_part, in_part = _read_part(one)
        _check_part(one, of_part, number, len(files))
        for key, value in of_part.items():
            if metadata.setdefault(key, value) != value and number > 0 and not key.startswith("split."):
                raise ModelError(f"{one} and {files[0].name} state different values of {key}; download both again")
        if twice := sorted(tensors.keys() & in_part.keys()):
            raise ModelError(f"{one} and an earlier part both have the tensor {twice[0]}; download all parts again")
        tensors |= in_part
    total = metadata.get("split.tensors.count", len(tensors))
    if total != len(tensors):
        raise ModelError(f"{files[0]} states {total} tensors, and its parts have {len(tensors)}; download them again")
    return Header(files, metadata, tensors)


def _check_part(file: Path, metadata: Mapping[str, Any], number: int, count: int) -> None:
    stated = metadata.get("split.count", 0) or 1
    if stated != count:
        raise ModelError(
            f"{file} states that its model has {stated} files (split.count), and its name says {count}; name part 1 of "
            "N as it was published: NAME-00001-of-0000N.gguf"
        )
    if count > 1 and metadata.get("split.no") != number:
        raise ModelError(
            f"{file} states that it is part {metadata.get('split.no')!r} (split.no, from 0), and its name says part "
            f"{number + 1} of {count}; download it again"
        )


def _read_part(file: Path) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    try:
        with file.open("rb") as opened:
            if not opened.read(1):
                raise ValueError("it is empty; download it again")
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_fields(file, data)
    except (OSError, ValueError) as error:
        raise ModelError(f"cannot read {file} as a GGUF file: {one_line(error)}") from error
    except struct.error as error:
        raise ModelError(
            f"cannot read {file} as a GGUF file: its header goes beyond the end of the file; download it again"
        ) from error


def _read_fields(file: Path, data: mmap.mmap) -> tuple[dict[str, Any], dict[str, StoredTensor]]:
    if data[:4] != b"GGUF":
        raise ValueError("it does not begin with GGUF; it is another file, or damaged")
    version, n_tensors, n_keys = struct.unpack_from("<IQQ", data, 4)
    if version not in (2, 3):
        big = struct.unpack_from(">I", data, 4)[0] in (2, 3)
        raise ValueError(
            "it is big-endian; use a little-endian file" if big else f"its version is {version}, not 2 or 3"
        )
    reader = _Reader(data, 24)
    metadata: dict[str, Any] = {}
    for _ in range(n_keys):
        key = reader.text()
        with _named(key):
            value = reader.value(reader.number("I"))
        if key in metadata:
            raise ValueError(f"it states {key} twice")
        metadata[key] = value
    entries = [reader.tensor() for _ in range(n_tensors)]
    alignment = metadata.get("general.alignment", 32)
    if type(alignment) is not int or alignment < 8 or alignment & (alignment - 1):
        raise ValueError(f"general.alignment is {alignment!r}, and must be a power of 2")
    return metadata, dict(_placed(file, len(data), entries, -(-reader.offset // alignment) * alignment, alignment))


@contextmanager
def _named(key: str) -> Iterator[None]:
    """Add the name of a key to the errors of reading its value."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from error


def _placed(
    file: Path, size: int, entries: list[tuple[str, tuple[int, ...], int, int]], start: int, alignment: int
) -> Iterator[tuple[str, StoredTensor]]:
    """Yield each tensor with its place; as the format demands, tensors follow each other without gaps."""
    expected, seen = 0, set()
    for name, shape, number, offset in entries:
        kind, n_bytes = _size(name, shape, number)
        if name in seen:
            raise ValueError(f"it has the tensor {name} twice")
        if offset != expected:
            raise ValueError(f"the tensor {name} begins at byte {offset}, and must at {expected}")
        if start + offset + n_bytes > size:
            raise ValueError(f"it ends before the tensor {name} does; download it again")
        seen.add(name)
        yield name, StoredTensor(file, shape, kind, start + offset, n_bytes)
        expected = -(-(offset + n_bytes) // alignment) * alignment


def _size(name: str, shape: tuple[int, ...], number: int) -> tuple[str, int]:
    """Return the name of a tensor's type, and its bytes."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    try:
        kind = GGMLQuantizationType(number)
    except ValueError as error:
        raise ValueError(f"the tensor {name} has the unknown type {number}") from error
    block, n_bytes = GGML_QUANT_SIZES[kind]
    if not shape or not all(shape) or shape[-1] % block:
        raise ValueError(f"the tensor {name} has the shape {shape}, which {kind.name} cannot store")
    return kind.name, math.prod(shape) // block * n_bytes


class _Reader:
    """Reads the fields of a header one after the other."""

    def __init__(self, data: mmap.mmap, offset: int) -> None:
        self._data, self.offset = data, offset

    def number(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self.offset)
        self.offset += struct.calcsize(code)
        return value

    def text(self) -> str:
        length = self.number("Q")
        end = self.offset + length
        if end > len(self._data):
            raise struct.error
        text = self._data[self.offset : end].decode("utf-8")
        self.offset = end
        return text

    def value(self, kind: int) -> Any:
        """Return a value; a float has the fewest digits that give the stored float32: 1e-05, not 9.99999974e-06."""
        if kind == _STRING:
            return self.text()
        if kind == _ARRAY:
            return self._array()
        if kind not in _SCALARS:
            raise ValueError(f"the value has the unknown type {kind}")
        value = self.number(_SCALARS[kind])
        return float(str(np.float32(value))) if kind == _FLOAT32 else value

    def _array(self) -> list[Any]:
        kind, count = self.number("I"), self.number("Q")
        if count > _MAX_ELEMENTS:
            raise ValueError(f"the array has {count} elements")
        if kind == _STRING:
            return [self.text() for _ in range(count)]
        if kind not in _SCALARS:
            raise ValueError(f"the array has elements of type {kind}")
        values = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, self.offset)
        self.offset += struct.calcsize(f"<{count}{_SCALARS[kind]}")
        return list(values)

    def tensor(self) -> tuple[str, tuple[int, ...], int, int]:
        """Return a tensor's name, shape, number of its type, and offset in the data."""
        name, n_dimensions = self.text(), self.number("I")
        if n_dimensions > _MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name} has {n_dimensions} dimensions")
        sizes = [self.number("Q") for _ in range(n_dimensions)]
        return name, tuple(reversed(sizes)), self.number("I"), self.number("Q")
