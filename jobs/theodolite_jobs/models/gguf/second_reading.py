"""Hold a converted model against its GGUF file, read a second way.

The entries of the header are found by their names, the names come from the tables of the package `gguf`, and layouts
are changed in the direction of llama.cpp. So a mistake of the reader, its names or its rules is not repeated here.
"""

import mmap
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from theodolite.errors import ParityError
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.gguf.header import gguf_files
from theodolite_jobs.models.tensors import TensorFiles

_ROWS, _ALL = slice(16), slice(None)
"""Compared rows of a matrix, and all of them."""

_SETTINGS = {
    "block_count": ("num_hidden_layers", "n_layer"),
    "embedding_length": ("hidden_size", "n_embd"),
    "attention.head_count": ("num_attention_heads", "n_head"),
    "context_length": ("max_position_embeddings", "n_positions"),
    "attention.layer_norm_rms_epsilon": ("rms_norm_eps", "norm_eps"),
    "attention.layer_norm_epsilon": ("layer_norm_eps", "layer_norm_epsilon", "norm_epsilon"),
    "rope.freq_base": ("rope_theta",),
}

_FORMATS = {4: "<I", 5: "<i", 6: "<f", 10: "<Q"}
"""Formats of numbers, by the type of a value."""

_REORDERED = {"llama", "granite", "smollm3"}  # rows of queries and keys
_WITH_ONE = {"gemma", "gemma2", "gemma3"}  # scales of norms
_TRANSPOSED = {"gpt2"}


def held_against_file(file: Path, folder: Path) -> dict[str, Any]:
    """Return the tensors and settings of a converted model that equal those of its GGUF file.

    Of the embedding, the final norm, and the attention and MLP of the first and last block, some rows are compared.

    Raises:
        ParityError: a tensor or a setting differs.
    """
    config = read_json(folder / "config.json")
    with _Entries(gguf_files(file)) as entries:
        architecture = entries.text("general.architecture")
        settings = [key for key in _SETTINGS if _same_setting(entries, architecture, key, config, file)]
        names = _chosen(folder, architecture, config)
        files = TensorFiles(folder)
        for name, written in names.items():
            stored = entries.rows(written)
            is_whole = len(files.shape(name)) == 1 or architecture in _REORDERED | _TRANSPOSED
            ours = files.read(name, _ALL if is_whole else _ROWS).numpy()
            error = _difference(_as_written(ours, name, architecture, config), stored)
            if not error <= 1e-6:
                raise ParityError(
                    f"{name} in {folder} differs from {written} in {file}, read a second way, by {error:.1e}: this is "
                    "a mistake of the conversion; please report it"
                )
    return {"tensors": sorted(names.values()), "settings": settings}


def _same_setting(entries: "_Entries", architecture: str, key: str, config: Mapping[str, Any], file: Path) -> bool:
    """Return whether the file states a setting; raise ParityError if the configuration has another value."""
    stated = entries.number(f"{architecture}.{key}")
    if stated is None:
        return False
    rope = config.get("rope_parameters") or {}
    known = {**config, **rope.get("full_attention", rope)}
    value = next((known[name] for name in _SETTINGS[key] if known.get(name) is not None), None)
    if value is None or not abs(value - stated) <= 1e-6 * abs(stated):
        raise ParityError(f"{architecture}.{key} is {stated} in {file}, and the converted model has {value}")
    return True


def _chosen(folder: Path, architecture: str, config: Mapping[str, Any]) -> dict[str, str]:
    """Return the names of the compared weights in the model, with their names in the file."""
    number = next(one for one, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    last = int(config.get("num_hidden_layers") or config["n_layer"]) - 1
    table = gguf.get_tensor_name_map(number, last + 1)
    wanted = {"token_embd.weight", "output_norm.weight"}
    parts = ("attn_norm", "attn_q", "attn_k", "attn_output", "attn_qkv", "ffn_down", "ffn_norm")
    wanted |= {f"blk.{block}.{part}.weight" for block in (0, last) for part in parts}
    names = ((name, table.get_name(name, try_suffixes=(".weight",))) for name in TensorFiles(folder).headers)
    skipped = "attn_qkv" if architecture == "falcon" else "none"  # its rows are grouped
    return {name: written for name, written in names if written in wanted and skipped not in written}


def _as_written(values: NDArray[Any], name: str, architecture: str, config: Mapping[str, Any]) -> NDArray[Any]:
    """Return the first rows of a weight in the layout of the file."""
    if architecture in _WITH_ONE and values.ndim == 1:
        return values + 1
    if architecture in _TRANSPOSED and ".c_" in name:
        values = values.T
    if architecture in _REORDERED and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = config["num_attention_heads" if ".q_proj" in name else "num_key_value_heads"]
        halves = values.reshape(heads, 2, -1, values.shape[-1])
        values = halves.swapaxes(1, 2).reshape(values.shape)
    return values[_ROWS] if values.ndim > 1 else values


def _difference(ours: NDArray[Any], stored: NDArray[Any]) -> float:
    """Return the relative distance of two arrays; infinity if their shapes differ."""
    if ours.shape != stored.shape:
        return float("inf")
    return float(np.linalg.norm(ours - stored) / max(float(np.linalg.norm(stored)), 1e-30))


class _Entries:
    """The entries of the headers of some files, found by their names."""

    def __init__(self, files: tuple[Path, ...]) -> None:
        self._opened = [file.open("rb") for file in files]
        self._maps = [mmap.mmap(one.fileno(), 0, access=mmap.ACCESS_READ) for one in self._opened]

    def __enter__(self) -> "_Entries":
        return self

    def __exit__(self, *_: object) -> None:
        for data in self._maps:
            data.close()
        for opened in self._opened:
            opened.close()

    def _after(self, data: mmap.mmap, name: str) -> int:
        """Return the offset behind a name in a header, or -1."""
        spelled = struct.pack("<Q", len(name)) + name.encode()
        start = data.find(spelled)
        return -1 if start < 0 else start + len(spelled)

    def text(self, key: str) -> str:
        data = self._maps[0]
        start = self._after(data, key) + 4
        (length,) = struct.unpack_from("<Q", data, start)
        return data[start + 8 : start + 8 + length].decode()

    def number(self, key: str) -> float | None:
        """Return a number, or None if the file does not state one."""
        start = self._after(self._maps[0], key)
        kind = struct.unpack_from("<I", self._maps[0], start)[0] if start >= 0 else None
        return float(struct.unpack_from(_FORMATS[kind], self._maps[0], start + 4)[0]) if kind in _FORMATS else None

    def rows(self, name: str) -> NDArray[np.float32]:
        """Return the first rows of a matrix, or a vector."""
        for data in self._maps:
            start = self._after(data, name)
            if start >= 0:
                break
        (count,) = struct.unpack_from("<I", data, start)
        sizes = struct.unpack_from(f"<{count}Q", data, start + 4)
        number, offset = struct.unpack_from("<IQ", data, start + 4 + 8 * count)
        kind = gguf.GGMLQuantizationType(number)
        block, n_bytes = gguf.GGML_QUANT_SIZES[kind]
        width = sizes[0] // block * n_bytes
        n_rows = min(_ROWS.stop, sizes[1]) if count > 1 else 1
        begin = self._data_start(data, start + 4 + 8 * count + 12) + offset
        read = np.frombuffer(data[begin : begin + n_rows * width], np.uint8).reshape(n_rows, width)
        values: NDArray[np.float32] = gguf.dequantize(read, kind).reshape(n_rows, sizes[0]).astype(np.float32)
        return values if count > 1 else values[0]

    def _data_start(self, data: mmap.mmap, offset: int) -> int:
        """Return where the data of a file begin: at the next multiple of the alignment behind the last entry.

        `offset` is that behind an entry of a tensor; the others follow, and then zeros or data, which are no names.
        """
        while True:
            (length,) = struct.unpack_from("<Q", data, offset)
            name = data[offset + 8 : offset + 8 + min(length, 100)]
            if not 0 < length < 100 or not name.isascii() or b"." not in name:
                break
            (count,) = struct.unpack_from("<I", data, offset + 8 + length)
            offset += 8 + length + 4 + 8 * count + 12
        alignment = int(self.number("general.alignment") or 32)
        return -(-offset // alignment) * alignment
