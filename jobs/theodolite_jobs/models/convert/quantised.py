"""Convert a quantised checkpoint once into a plain one, with matrices in the dtype of its configuration."""

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

import torch
from torch import Tensor

from theodolite.errors import ModelError
from theodolite_jobs.models.convert.dequantise import LAYOUTS, Layout
from theodolite_jobs.models.convert.files import (
    SMALL_FILES,
    TEMPLATE_FOLDER,
    atomic_folder,
    check_space,
    create_once,
    read_json,
    write_tensors,
)
from theodolite_jobs.models.load import load_config, resolved_dtype
from theodolite_jobs.models.quantised import Format, format_of, plain_config
from theodolite_jobs.models.quiet import plain_errors
from theodolite_jobs.models.stored_names import compare_names
from theodolite_jobs.models.tensors import TensorFiles

# Masks that old libraries stored.
_MASKS = (".bias", ".masked_bias", ".causal_mask")
_PACKED_DTYPES = {torch.int8, torch.uint8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e8m0fnu}


def convert_quantised(folder: Path, into: Path) -> Path:
    """Write a quantised checkpoint to `into` with plain matrices, unless `into` exists; return `into`.

    Two gigabytes of output and some copies of one tensor are in memory at a time. `into` appears completely or not at
    all. If several processes of a machine convert the same folder, one writes and the others wait.

    Raises:
        ModelError: the disk has too little space, or a tensor is missing, has another shape or dtype than the format
            states, or is quantised in another way.
        UnsupportedModelError: the format is not known.
    """
    with plain_errors(f"dequantise the weights in {folder}"):
        return create_once(into, lambda: _convert(folder, into))


def write_small_files(folder: Path, into: Path) -> None:
    """Copy configuration and tokenizer; the configuration loses its quantisation, and names it."""
    for path in sorted(folder.iterdir()):
        if any(fnmatch(path.name, pattern) for pattern in SMALL_FILES) and not path.name.endswith(".index.json"):
            shutil.copyfile(path, into / path.name)
    if (folder / TEMPLATE_FOLDER).is_dir():
        shutil.copytree(folder / TEMPLATE_FOLDER, into / TEMPLATE_FOLDER)
    raw = read_json(folder / "config.json")
    if (plain := plain_config(raw)) != raw:
        (into / "config.json").write_text(json.dumps(plain, indent=2), encoding="utf-8")


@dataclass(frozen=True)
class Matrix:
    """A matrix of the plain checkpoint, and the names of the tensors from which it is computed, by their role."""

    name: str
    parts: dict[str, str]
    optional: dict[str, str]


def _convert(folder: Path, into: Path) -> None:
    layout_of = format_of(read_json(folder / "config.json"))
    assert layout_of is not None, "only quantised checkpoints are converted"
    files, config = TensorFiles(folder), load_config(folder)
    dtype = getattr(torch, resolved_dtype(config, "auto"))
    layout = LAYOUTS[layout_of.method]
    matrices = {one.name: one for one in quantised_matrices(files, layout)}
    if not matrices:
        raise ModelError(
            f"config.json in {folder} describes weights in {layout_of.name}, but no tensor is stored in this way; "
            "use the config.json that belongs to these weights"
        )
    used = {name for one in matrices.values() for name in (*one.parts.values(), *one.optional.values())}
    plain = [name for name in files.headers if name not in used and not name.endswith(layout.unused)]
    if both := sorted(matrices.keys() & set(plain)):
        raise ModelError(f"the weights in {folder} have {both[0]} both quantised and plain")
    compare_names(config, [*plain, *matrices]).check(folder)
    _check_space(files, plain, used, dtype.itemsize * 8 / layout_of.bits, into)

    def tensors() -> Iterator[tuple[str, Tensor]]:
        for name in plain:
            yield name, _plain(files, name, layout_of)
        for one in matrices.values():
            yield one.name, _dequantised(files, one, layout, layout_of, dtype)

    with atomic_folder(into) as staging:
        write_small_files(folder, staging)
        write_tensors(tensors(), len(plain) + len(matrices), staging)


def quantised_matrices(files: TensorFiles, layout: Layout) -> Iterator[Matrix]:
    """Yield the quantised matrices, in the order of their names; raise ModelError if one lacks a tensor."""
    for anchor in sorted(files.headers):
        stem = next((anchor.removesuffix(one) for one in layout.roles[layout.anchor] if anchor.endswith(one)), None)
        if stem is None or anchor.endswith(layout.unused):
            continue
        found: dict[str, str] = {}
        for role, endings in layout.roles.items():
            present = [f"{stem}{ending}" for ending in endings if f"{stem}{ending}" in files.headers]
            if not present:
                raise ModelError(
                    f"the weights in {files.folder} lack the tensor {stem}{endings[0]}, without which {anchor} cannot "
                    "be dequantised"
                )
            found[role] = anchor if anchor in present else present[0]
        optional = {
            role: f"{stem}{ending}"
            for role, endings in layout.optional.items()
            for ending in endings
            if f"{stem}{ending}" in files.headers
        }
        yield Matrix(stem + layout.matrix, found, optional)


def _dequantised(files: TensorFiles, one: Matrix, layout: Layout, stored: Format, dtype: torch.dtype) -> Tensor:
    parts = {role: files.read(name) for role, name in (one.parts | one.optional).items()}
    try:
        matrix = layout.compute(parts, stored, dtype)
    # Shapes that do not fit each other fail in many ways.
    except (ValueError, RuntimeError, IndexError, KeyError, TypeError) as error:
        raise ModelError(
            f"the weights in {files.folder} are not {stored.name}, as config.json says: {one.name}: "
            f"{' '.join(str(error).split())}"
        ) from error
    matrix = matrix.to(dtype).contiguous()
    if not bool(matrix.isfinite().all()):
        raise ModelError(f"the weights in {files.folder} give values that are not finite in {one.name}")
    return matrix


def _plain(files: TensorFiles, name: str, stored: Format) -> Tensor:
    """Return a tensor that is not quantised; raise ModelError if it is, but not in the format of the checkpoint."""
    tensor = files.read(name)
    if tensor.dtype in _PACKED_DTYPES and not name.endswith(_MASKS):
        raise ModelError(
            f"the weights in {files.folder} have {name} in {str(tensor.dtype).removeprefix('torch.')} without the "
            f"tensors that {stored.name} needs; use the original checkpoint"
        )
    return tensor


def _check_space(files: TensorFiles, plain: list[str], used: set[str], growth: float, into: Path) -> None:
    kept, converted = (sum(files.headers[name].n_bytes for name in names) for names in (plain, used))
    check_space(kept + growth * converted, into, "the dequantised weights")
