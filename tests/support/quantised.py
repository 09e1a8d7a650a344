"""Quantised checkpoints of tiny models, packed value by value as the formats' own tools pack them.

Each packer draws what it stores, and returns the tensors of one matrix by their endings, with the matrix they mean.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from transformers import AutoModelForCausalLM

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of AutoAWQ
FP4 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0)
NF4 = (-1.0, -0.7, -0.53, -0.39, -0.28, -0.18, -0.09, 0.0, 0.08, 0.16, 0.25, 0.34, 0.44, 0.56, 0.72, 1.0)
GROUP = 16

Packed = tuple[dict[str, torch.Tensor], np.ndarray]
Packer = Callable[[tuple[int, ...], np.random.Generator], Packed]


def int32(values: list[int]) -> int:
    """Return 32 bits as a signed integer."""
    total = sum(values)
    return total - 2**32 if total >= 2**31 else total


def packed_columns(values: np.ndarray, bits: int, order: tuple[int, ...] | None = None) -> torch.Tensor:
    """Pack each row's values into 32-bit integers; `order[i]` is the value at the i-th lowest bits."""
    per = 32 // bits
    order = order or tuple(range(per))
    rows = []
    for row in values:
        padded = [*map(int, row), *[0] * (-len(row) % per)]
        starts = range(0, len(padded), per)
        rows.append([int32([padded[start + one] << (bits * at) for at, one in enumerate(order)]) for start in starts])
    return torch.tensor(rows, dtype=torch.int32)


def drawn(shape: tuple[int, ...], bits: int, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return values (out, in), and zero points and scales (out, groups)."""
    groups = (shape[0], shape[1] // GROUP)
    scales = rng.uniform(0.03, 0.3, groups) / 2**bits
    scales = scales.astype(np.float16).astype(np.float32)
    return rng.integers(0, 2**bits, shape), rng.integers(1, 2**bits, groups), scales


def meant(values: np.ndarray, zeros: np.ndarray, scales: np.ndarray, groups: np.ndarray) -> np.ndarray:
    """Return (q − zero) · scale, one value at a time."""
    matrix = np.empty(values.shape, np.float32)
    for row, column in np.ndindex(*values.shape):
        group = groups[column]
        matrix[row, column] = (int(values[row, column]) - int(zeros[row, group])) * scales[row, group]
    return matrix


def halves(values: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(values)).half()


def gptq(bits: int, offset: int = 1, act_order: bool = False) -> Packer:
    def pack(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
        values, zeros, scales = drawn(shape, bits, rng)
        groups = np.arange(shape[1]) // GROUP
        if act_order:
            groups = rng.permutation(groups)
        tensors = {
            ".qweight": packed_columns(values, bits).T.contiguous(),
            ".qzeros": packed_columns((zeros - offset).T, bits),
            ".scales": halves(scales.T),
            ".g_idx": torch.from_numpy(groups.astype(np.int32)),
        }
        return tensors, meant(values, zeros, scales, groups)

    return pack


def awq(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
    values, zeros, scales = drawn(shape, 4, rng)
    tensors = {
        ".qweight": packed_columns(values.T, 4, AWQ_ORDER),
        ".qzeros": packed_columns(zeros.T, 4, AWQ_ORDER),
        ".scales": halves(scales.T),
    }
    return tensors, meant(values, zeros, scales, np.arange(shape[1]) // GROUP)


def compressed_integers(symmetric: bool, act_order: bool = False) -> Packer:
    def pack(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
        values, zeros, scales = drawn(shape, 4, rng)
        zeros = np.full_like(zeros, 8) if symmetric else zeros
        groups = np.arange(shape[1]) // GROUP
        tensors = {
            ".weight_packed": packed_columns(values, 4),
            ".weight_scale": halves(scales),
            ".weight_shape": torch.tensor(shape),
        }
        if not symmetric:
            tensors[".weight_zero_point"] = packed_columns(zeros.T, 4).T.contiguous()
        if act_order:
            groups = rng.permutation(groups)
            tensors[".weight_g_idx"] = torch.from_numpy(groups.astype(np.int32))
        return tensors, meant(values, zeros, scales, groups)

    return pack


def compressed_int8(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
    values = rng.integers(-128, 128, shape).astype(np.int8)
    scales = rng.uniform(0.001, 0.01, (shape[0], 1)).astype(np.float32)
    tensors = {".weight": torch.from_numpy(values), ".weight_scale": torch.from_numpy(scales)}
    return tensors, values.astype(np.float32) * scales


def fp8(block: tuple[int, int] | None, ending: str = "_scale_inv", dtype: torch.dtype = torch.float8_e4m3fn) -> Packer:
    """Pack with a scale for each block; (0, 0) is one scale for the matrix, and None one for each row."""

    def pack(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
        values = torch.from_numpy(rng.normal(0, 30, shape).astype(np.float32)).to(dtype)
        rows, columns = (1, shape[1]) if block is None else block if block[0] else shape
        grid = (-(-shape[0] // rows), -(-shape[1] // columns))
        scales = rng.uniform(0.0005, 0.003, grid).astype(np.float32)
        matrix = np.empty(shape, np.float32)
        for row, column in np.ndindex(*shape):
            matrix[row, column] = np.float32(values[row, column].float()) * scales[row // rows, column // columns]
        stored = torch.from_numpy(scales) if block is None or block[0] else torch.from_numpy(scales).reshape(())
        return {".weight": values, f".weight{ending}": stored}, matrix

    return pack


def bitsandbytes_8bit(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
    values = rng.integers(-127, 128, shape).astype(np.int8)
    largest = rng.uniform(0.05, 0.5, shape[0]).astype(np.float32)
    tensors = {
        ".weight": torch.from_numpy(values),
        ".SCB": torch.from_numpy(largest),
        ".weight_format": torch.tensor(0, dtype=torch.uint8),
    }
    return tensors, values.astype(np.float32) * largest[:, None] / np.float32(127)


def bitsandbytes_4bit(nested: bool) -> Packer:
    def pack(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
        size, count = 64, shape[0] * shape[1]
        indices = rng.integers(0, 16, count)
        table, n_blocks = np.array(NF4, np.float32), -(-count // size)
        state: dict[str, Any] = {"quant_type": "nf4", "blocksize": size, "dtype": "float32", "shape": list(shape)}
        tensors = {
            ".weight": torch.tensor([[16 * a + b] for a, b in indices.reshape(-1, 2).tolist()], dtype=torch.uint8),
            ".weight.quant_map": torch.from_numpy(table),
        }
        if nested:
            own = rng.uniform(0.01, 0.1, -(-n_blocks // 256)).astype(np.float32)
            levels, stored = rng.uniform(-1, 1, 256).astype(np.float32), rng.integers(0, 256, n_blocks)
            state |= {"nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.25}
            largest = np.array(
                [levels[level] * own[at // 256] + np.float32(0.25) for at, level in enumerate(stored)], np.float32
            )
            tensors[".weight.absmax"] = torch.from_numpy(stored.astype(np.uint8))
            tensors[".weight.nested_absmax"] = torch.from_numpy(own)
            tensors[".weight.nested_quant_map"] = torch.from_numpy(levels)
        else:
            largest = rng.uniform(0.05, 0.5, n_blocks).astype(np.float32)
            tensors[".weight.absmax"] = torch.from_numpy(largest)
        text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
        tensors[".weight.quant_state.bitsandbytes__nf4"] = text
        flat = np.array([table[index] * largest[at // size] for at, index in enumerate(indices)], np.float32)
        return tensors, flat.reshape(shape)

    return pack


def mxfp4(shape: tuple[int, ...], rng: np.random.Generator) -> Packed:
    """Pack (expert, in, out), whose inputs share a power of two in groups of 32."""
    experts, into, out = shape
    indices = rng.integers(0, 16, (experts, out, into // 32, 32))
    exponents = rng.integers(118, 124, (experts, out, into // 32))
    blocks = indices[..., ::2] + 16 * indices[..., 1::2]  # the first of two values has the low bits
    values = np.array(FP4)[indices] * 2.0 ** (exponents[..., None] - 127.0)
    tensors = {
        "_blocks": torch.from_numpy(blocks.astype(np.uint8)),
        "_scales": torch.from_numpy(exponents.astype(np.uint8)),
    }
    return tensors, values.reshape(experts, out, into).swapaxes(1, 2).astype(np.float32)


def save_quantised(
    folder: Path, config: Any, settings: dict[str, Any], packer: Packer, dtype: torch.dtype = torch.bfloat16
) -> dict[str, torch.Tensor]:
    """Write a tiny model whose projections are quantised; return the tensors of the plain checkpoint that it means."""
    tiny.random_model(config, AutoModelForCausalLM).to(dtype).save_pretrained(folder)
    return quantise(folder, settings, packer)


def quantise(folder: Path, settings: dict[str, Any], packer: Packer) -> dict[str, torch.Tensor]:
    """Replace the projections in a folder by other, quantised ones; return the tensors that they mean."""
    plain = load_file(folder / "model.safetensors")
    rng, stored = np.random.default_rng(0), dict[str, torch.Tensor]()
    for name, tensor in list(plain.items()):
        is_experts = tensor.ndim == 3
        is_projection = tensor.ndim == 2 and "_proj" in name and "bias" not in name
        if is_experts if packer is mxfp4 else is_projection:
            stem = name if is_experts else name.removesuffix(".weight")
            parts, matrix = packer(tuple(tensor.shape), rng)
            stored |= {f"{stem}{ending}": part.contiguous() for ending, part in parts.items()}
            plain[name] = torch.from_numpy(matrix).to(tensor.dtype)
        else:
            stored[name] = tensor
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    raw = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**raw, "quantization_config": settings}))
    return plain
