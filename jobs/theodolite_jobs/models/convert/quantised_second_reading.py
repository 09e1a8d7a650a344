"""Compute single entries of dequantised matrices a second way: one by one, with Python's integers, from the files.

`dequantise` unpacks whole matrices at once. An entry here follows from the bits that its format gives it.
"""

import json
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import Tensor

from theodolite_jobs.models.convert.dequantise import LAYOUTS
from theodolite_jobs.models.convert.quantised import quantised_matrices
from theodolite_jobs.models.quantised import Format
from theodolite_jobs.models.tensors import TensorFiles

_ENTRIES = 64
"""Compared entries of a matrix, drawn at random."""

_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of four-bit floats; the highest bit is the sign."""

_AWQ_BITS = (0, 4, 1, 5, 2, 6, 3, 7)
"""The place of each of eight columns, in units of four bits."""

Parts = Mapping[str, Tensor]
Index = tuple[int, ...]


def differing_entries(original: TensorFiles, converted: TensorFiles, stored: Format) -> tuple[list[str], str | None]:
    """Return the first, the middle and the last matrix that were compared, and the first that differs, if one does."""
    matrices = list(quantised_matrices(original, LAYOUTS[stored.method]))
    rng = np.random.default_rng(0)
    compared: list[str] = []
    for one in {matrix.name: matrix for matrix in (matrices[0], matrices[len(matrices) // 2], matrices[-1])}.values():
        parts = {role: original.read(name) for role, name in (one.parts | one.optional).items()}
        result = converted.read(one.name)
        entry, kind = _ENTRY_OF[stored.method], torch.finfo(result.dtype)
        # Of a number, of one near zero, and of the products in float32 from which a conversion subtracts.
        smallest = kind.tiny * kind.eps + 4 * torch.finfo(torch.float32).eps * float(result.abs().max())
        for place in zip(*(rng.integers(0, size, _ENTRIES).tolist() for size in result.shape), strict=True):
            expected = entry(parts, stored, place)
            if not abs(float(result[place]) - expected) <= 2 * kind.eps * abs(expected) + smallest:
                return compared, one.name
        compared.append(one.name)
    return compared, None


def _bits(word: Tensor, place: int, width: int) -> int:
    """Return the value at a place of a word of 32 bits, from the lowest bits upwards."""
    return int(word) >> width * place & (1 << width) - 1


def _in_group(parts: Parts, stored: Format, column: int) -> int:
    """Return the group of a column that shares a scale."""
    groups = parts.get("groups")
    if groups is not None and bool((groups >= 0).any()):
        return int(groups[column])
    return column // stored.block[1] if stored.block[1] else 0


def _scaled(parts: Parts, stored: Format, place: Index) -> float:
    shape, scale = parts["values"].shape, parts["scale"]
    # One scale of a matrix, or of each row, may be stored in any shape.
    of_rows = stored.method == "fp8" and stored.block == (None, None) and scale.numel() > 1
    blocks = (1, None) if of_rows else stored.block
    rows, columns = (size or whole for size, whole in zip(blocks, shape[-2:], strict=True))
    grid = (*shape[:-2], -(-shape[-2] // rows), -(-shape[-1] // columns))
    block = (*place[:-2], place[-2] // rows, place[-1] // columns)
    zero = float(parts["zero"].reshape(grid)[block]) if "zero" in parts else 0.0
    return (float(parts["values"][place]) - zero) * float(scale.reshape(grid)[block])


def _packed(parts: Parts, stored: Format, place: Index) -> float:
    row, column = place
    per_word, group = 32 // stored.bits, _in_group(parts, stored, column)
    value = _bits(parts["packed"][row, column // per_word], column % per_word, stored.bits)
    zero = 1 << stored.bits - 1
    if "zero" in parts:
        zero = _bits(parts["zero"][row // per_word, group], row % per_word, stored.bits)
    return (value - zero) * float(parts["scale"][row, group])


def _gptq(parts: Parts, stored: Format, place: Index) -> float:
    row, column = place
    per_word, group = 32 // stored.bits, _in_group(parts, stored, column)
    value = _bits(parts["values"][column // per_word, row], column % per_word, stored.bits)
    zero = _bits(parts["zeros"][group, row // per_word], row % per_word, stored.bits) + stored.zero_offset
    return (value - zero % (1 << stored.bits)) * float(parts["scales"][group, row])


def _awq(parts: Parts, stored: Format, place: Index) -> float:
    row, column = place
    group, bits = _in_group(parts, stored, column), _AWQ_BITS[row % 8]
    value, zero = _bits(parts["values"][column, row // 8], bits, 4), _bits(parts["zeros"][group, row // 8], bits, 4)
    return (value - zero) * float(parts["scales"][group, row])


def _bitsandbytes_8bit(parts: Parts, _: Format, place: Index) -> float:
    return int(parts["values"][place]) * float(parts["scale"].flatten()[place[0]]) / 127


def _bitsandbytes_4bit(parts: Parts, _: Format, place: Index) -> float:
    state = json.loads(bytes(parts["state"].tolist()))
    number = place[0] * int(state["shape"][1]) + place[1]
    byte, block = int(parts["values"].flatten()[number // 2]), number // int(state["blocksize"])
    largest = float(parts["largest"][block])
    if "nested" in parts:
        own = float(parts["nested"][block // int(state["nested_blocksize"])])
        largest = float(parts["nested_table"][int(largest)]) * own + float(state["nested_offset"])
    return float(parts["table"][byte % 16 if number % 2 else byte // 16]) * largest


def _mxfp4(parts: Parts, _: Format, place: Index) -> float:
    """The merged experts of transformers are (expert, in, out), and the blocks (expert, out, block of in, byte)."""
    expert, column, row = place
    block, number = column // 32, column % 32
    byte, exponent = int(parts["blocks"][expert, row, block, number // 2]), int(parts["scales"][expert, row, block])
    code = byte // 16 if number % 2 else byte % 16
    return (-1 if code >= 8 else 1) * _E2M1[code % 8] * 2.0 ** (exponent - 127)


_ENTRY_OF: dict[str, Callable[[Parts, Format, Index], float]] = {
    "fp8": _scaled,
    "scaled": _scaled,
    "packed": _packed,
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes_8bit": _bitsandbytes_8bit,
    "bitsandbytes_4bit": _bitsandbytes_4bit,
    "mxfp4": _mxfp4,
}
