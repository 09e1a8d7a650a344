"""Check the header of a GGUF file before a library reads it.

The library appends an element for each one that the header announces, also beyond the end of the file: a damaged length
would fill the memory. The format: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import mmap
import struct
from pathlib import Path

_SCALARS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value, by the number of its type."""

_STRING, _ARRAY = 8, 9

_MAX_ELEMENTS = 2**22
"""Maximum length of an array; the longest ones, vocabularies and their merges, have less than 2^20 elements."""


def check_header(file: Path) -> None:
    """Raise ValueError if the file is no GGUF file, or if a value of its header is not whole or is that of no model."""
    _tensor_types(file)


def quantised_types(file: Path) -> list[str]:
    """Return the names of the quantised types of a file's tensors, such as Q4_K; raises ValueError."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

    known = {int(one): one.name for one in GGMLQuantizationType if GGML_QUANT_SIZES[one][0] > 1}
    whole = {int(one) for one in GGMLQuantizationType} - known.keys()
    return [known.get(kind, f"type {kind}") for kind in _tensor_types(file) if kind not in whole]


def _tensor_types(file: Path) -> list[int]:
    """Return the numbers of the types of a file's tensors, in ascending order."""
    if not file.stat().st_size:
        raise ValueError("the file is empty")
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != b"GGUF":
            raise ValueError("the file is not a GGUF file")
        order = ">" if data[4:6] == b"\0\0" else "<"
        try:
            n_tensors, count = struct.unpack_from(f"{order}QQ", data, 8)
            offset, types = 24, set()
            for _ in range(count):
                offset = _end_of_value(data, order, _STRING, offset)
                (kind,) = struct.unpack_from(f"{order}I", data, offset)
                offset = _end_of_value(data, order, kind, offset + 4)
            for _ in range(n_tensors):
                offset = _end_of_value(data, order, _STRING, offset)
                (n_dimensions,) = struct.unpack_from(f"{order}I", data, offset)
                offset += 4 + 8 * n_dimensions
                types.add(struct.unpack_from(f"{order}I", data, offset)[0])
                offset += 12
            return sorted(types)
        except struct.error as error:
            raise ValueError("the header goes beyond the end of the file") from error


def _end_of_value(data: mmap.mmap, order: str, kind: int, offset: int) -> int:
    """Return the offset behind a value that starts at `offset`; raise struct.error if it is not in the file."""
    end: int
    if kind == _ARRAY:
        kind, count = struct.unpack_from(f"{order}IQ", data, offset)
        if count > _MAX_ELEMENTS or kind == _ARRAY:
            what = "an array of arrays" if kind == _ARRAY else f"an array of {count} elements"
            raise ValueError(f"the header has {what}")
        offset += 12
        if kind not in _SCALARS:
            for _ in range(count):
                offset = _end_of_value(data, order, kind, offset)
            return offset
        end = offset + count * _SCALARS[kind]
    elif kind == _STRING:
        end = offset + 8 + int(struct.unpack_from(f"{order}Q", data, offset)[0])
    elif kind in _SCALARS:
        end = offset + _SCALARS[kind]
    else:
        raise ValueError(f"the header has a value of the unknown type {kind}")
    if end > len(data):
        raise struct.error
    return end
