"""Read tensors of GGUF files, dequantised to float32 by the package `gguf`."""

from collections.abc import Mapping

import gguf
import numpy as np
from numpy.typing import NDArray

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.models.gguf.header import Header, StoredTensor

_BLOCKS = {kind for kind, (block, _) in gguf.GGML_QUANT_SIZES.items() if block > 1} | {gguf.GGMLQuantizationType.BF16}
"""Types whose values are in blocks, which `gguf` takes row by row."""


def read_tensor(stored: StoredTensor) -> NDArray[np.float32]:
    """Return a tensor in float32; for quantised types, it is computed as llama.cpp does."""
    kind = gguf.GGMLQuantizationType[stored.kind]
    data = np.fromfile(stored.file, np.uint8, stored.n_bytes, offset=stored.offset)
    if kind in _BLOCKS:
        data = data.reshape(gguf.quant_shape_to_byte_shape(stored.shape, kind))
    values: NDArray[np.float32] = gguf.dequantize(data, kind).astype(np.float32, copy=False).reshape(stored.shape)
    return values


def read_vector(tensors: Mapping[str, StoredTensor], name: str) -> list[float] | None:
    """Return a tensor as numbers, or None if it does not exist."""
    return [float(value) for value in read_tensor(tensors[name]).ravel()] if name in tensors else None


def check_types(header: Header) -> None:
    """Raise UnsupportedModelError if the type of a tensor cannot be dequantised."""
    for name, stored in {stored.kind: (name, stored) for name, stored in header.tensors.items()}.values():
        kind = gguf.GGMLQuantizationType[stored.kind]
        try:
            gguf.dequantize(np.zeros((1, gguf.GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError as error:
            raise UnsupportedModelError(
                f"{stored.file}: the tensor {name} has the type {stored.kind}, which cannot be dequantised; use a file "
                "in another type, such as Q4_K_M or Q8_0"
            ) from error
