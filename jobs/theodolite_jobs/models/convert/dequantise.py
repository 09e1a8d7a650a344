"""Compute matrices from the tensors of a quantised checkpoint: one function for each layout.

Each function returns a matrix (out, in) in float32; MXFP4 returns (expert, in, out) in the requested dtype. Each takes
the tensors of one matrix by their role in `LAYOUTS`, and raises ValueError if they do not fit each other.
"""

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from theodolite_jobs.models.quantised import Block, Format

# AWQ stores the columns 0, 2, 4, 6, 1, 3, 5, 7 of each eight from the lowest bits upwards.
_AWQ_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]

Parts = Mapping[str, Tensor]


@dataclass(frozen=True)
class Layout:
    """The tensors of a matrix, as endings that follow a common stem; a role may have several names."""

    matrix: str  # the ending of the matrix in a plain checkpoint
    anchor: str  # the role that only a quantised matrix has
    roles: Mapping[str, tuple[str, ...]]
    optional: Mapping[str, tuple[str, ...]]
    compute: Callable[[Parts, Format, torch.dtype], Tensor]
    unused: tuple[str, ...] = ()  # endings of tensors about activations, which a plain matrix does not need


def _scaled(parts: Parts, layout: Format, _: torch.dtype) -> Tensor:
    """Values with a scale for each block (FP8, INT8): w = (q − zero) · scale."""
    values, scale, zero = parts["values"], parts["scale"], parts.get("zero")
    _check_kind(values, layout.dtype, "values")
    block = layout.block
    if layout.method == "fp8" and block == (None, None) and scale.numel() > 1:
        block = (1, None)
    scales = _per_value(_floats(scale), block, values.shape)
    whole = values.float() if zero is None else values.float() - _per_value(zero.float(), block, values.shape)
    return whole * scales


def _packed(parts: Parts, layout: Format, _: torch.dtype) -> Tensor:
    """Return integers of compressed-tensors, whose columns follow each other from the lowest bits upwards.

    Stored values and zero points are shifted by half of their range, and so never negative.
    """
    rows, columns = (int(size) for size in parts["shape"].flatten().tolist())
    values = _unpacked(parts["packed"], layout.bits)
    if values.shape[0] != rows or not columns <= values.shape[1] < columns + 32 // layout.bits:
        raise ValueError(f"the packed values have the shape {tuple(values.shape)}, and weight_shape is {rows, columns}")
    shift = 2 ** (layout.bits - 1)
    zero, scale = torch.full((rows, parts["scale"].shape[-1]), shift), _floats(parts["scale"])
    if "zero" in parts:
        zero = _unpacked(parts["zero"].T.contiguous(), layout.bits).T[:rows]
    order = parts.get("groups")
    groups = None if order is None or bool((order < 0).all()) else order
    return _grouped(values[:, :columns], scale, zero, layout.block[1], groups)


def _gptq(parts: Parts, layout: Format, _: torch.dtype) -> Tensor:
    """GPTQ packs the inputs of each output, and stores zero points minus one in its first layout."""
    values = _unpacked(parts["values"].T.contiguous(), layout.bits)
    zero = (_unpacked(parts["zeros"], layout.bits).T + layout.zero_offset) % 2**layout.bits
    return _grouped(values, _floats(parts["scales"]).T, zero, layout.block[1], parts.get("groups"))


def _awq(parts: Parts, layout: Format, _: torch.dtype) -> Tensor:
    """AWQ packs the outputs of each input."""

    def columns(packed: Tensor) -> Tensor:
        eights: Tensor = _unpacked(packed, layout.bits).unflatten(1, (-1, 8))
        return eights[:, :, _AWQ_ORDER].flatten(1).T

    values, zeros = columns(parts["values"]), columns(parts["zeros"])
    return _grouped(values, _floats(parts["scales"]).T, zeros, layout.block[1], None)


def _bitsandbytes_8bit(parts: Parts, layout: Format, _: torch.dtype) -> Tensor:
    """Return LLM.int8: the largest magnitude of each row is 127. Layout 0 is by rows; the others are permuted."""
    if "layout" in parts and int(parts["layout"]) != 0:
        raise ValueError(f"the weight_format is {int(parts['layout'])}, and only rows (0) can be read")
    _check_kind(parts["values"], layout.dtype, "values")
    largest = _per_value(_floats(parts["scale"]), layout.block, parts["values"].shape)
    return parts["values"].float() * largest / 127


def _bitsandbytes_4bit(parts: Parts, _: Format, __: torch.dtype) -> Tensor:
    """NF4 and FP4: entries of a table times the largest magnitude of a block; the first value has the high bits.

    With double quantisation, the magnitudes themselves are entries of a table of 256, times that of their own block.
    """
    state = json.loads(bytes(parts["state"].tolist()))
    values, largest = parts["values"], parts["largest"]
    _check_kind(values, "uint8", "values")
    shape = [int(size) for size in state["shape"]]
    if "nested" in parts:
        table, own = parts["nested_table"], parts["nested"].repeat_interleave(int(state["nested_blocksize"]))
        if largest.numel() > own.numel():
            raise ValueError(f"{largest.numel()} magnitudes have {own.numel()} nested ones")
        largest = table[largest.long()] * own[: largest.numel()] + float(state["nested_offset"])
    size, count = int(state["blocksize"]), math.prod(shape)
    if 2 * values.numel() != count or largest.numel() != math.ceil(count / size) or parts["table"].numel() != 16:
        raise ValueError(f"{values.numel()} bytes and {largest.numel()} magnitudes do not fill the shape {shape}")
    packed = values.flatten()
    entries = parts["table"].float()[torch.stack([packed >> 4, packed & 15], dim=1).flatten().long()]
    return (entries * largest.repeat_interleave(size)[:count]).reshape(shape)


def _mxfp4(parts: Parts, _: Format, dtype: torch.dtype) -> Tensor:
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    blocks, scales = parts["blocks"], parts["scales"]
    if blocks.dtype != torch.uint8 or scales.dtype != torch.uint8 or blocks.ndim != 4 or blocks.shape[-1] != 16:
        raise ValueError(f"the blocks have the shape {tuple(blocks.shape)} and the dtype {blocks.dtype}")
    if blocks.shape[:-1] != scales.shape:
        raise ValueError(f"the blocks have the shape {tuple(blocks.shape)}, and the scales {tuple(scales.shape)}")
    matrices: Tensor = convert_moe_packed_tensors(blocks, scales, dtype=dtype)
    return matrices


_GPTQ_ROLES = {"values": (".qweight",), "zeros": (".qzeros",), "scales": (".scales",)}
_ZERO = {"zero": ("_zero_point",)}
_OF_ACTIVATIONS = (
    *(f".{name}_scale" for name in ("input", "activation", "output", "q", "k", "v", "kv", "prob_output")),
    *(f".{name}_zero_point" for name in ("input", "output", "k", "v")),
)
_STATE = tuple(f".weight.quant_state.bitsandbytes__{kind}" for kind in ("nf4", "fp4"))

LAYOUTS = {
    "fp8": Layout("", "scale", {"values": ("",), "scale": ("_scale_inv", "_scale")}, {}, _scaled, _OF_ACTIVATIONS),
    "scaled": Layout("", "scale", {"values": ("",), "scale": ("_scale",)}, _ZERO, _scaled, _OF_ACTIVATIONS),
    "packed": Layout(
        "",
        "packed",
        {"packed": ("_packed",), "scale": ("_scale",), "shape": ("_shape",)},
        {**_ZERO, "groups": ("_g_idx",)},
        _packed,
        _OF_ACTIVATIONS,
    ),
    "mxfp4": Layout("", "blocks", {"blocks": ("_blocks",), "scales": ("_scales",)}, {}, _mxfp4),
    "gptq": Layout(".weight", "values", _GPTQ_ROLES, {"groups": (".g_idx",)}, _gptq),
    "awq": Layout(".weight", "values", _GPTQ_ROLES, {}, _awq),
    "bitsandbytes_8bit": Layout(
        ".weight",
        "scale",
        {"values": (".weight",), "scale": (".SCB",)},
        {"layout": (".weight_format",)},
        _bitsandbytes_8bit,
    ),
    "bitsandbytes_4bit": Layout(
        ".weight",
        "largest",
        {
            "values": (".weight",),
            "largest": (".weight.absmax",),
            "table": (".weight.quant_map",),
            "state": _STATE,
        },
        {"nested": (".weight.nested_absmax",), "nested_table": (".weight.nested_quant_map",)},
        _bitsandbytes_4bit,
    ),
}


def _check_kind(tensor: Tensor, dtype: str, what: str) -> None:
    if tensor.dtype != getattr(torch, dtype):
        raise ValueError(f"the {what} are {str(tensor.dtype).removeprefix('torch.')}, and config.json means {dtype}")


def _floats(scale: Tensor) -> Tensor:
    """Return scales in float32; bytes could be exponents, so they are refused."""
    if not scale.is_floating_point():
        raise ValueError(f"the scales are {str(scale.dtype).removeprefix('torch.')}")
    return scale.float()


def _per_value(scale: Tensor, block: Block, shape: torch.Size) -> Tensor:
    """Return the scale of each value of a matrix, from one for each block; the last blocks may be smaller."""
    rows, columns = (size or whole for size, whole in zip(block, shape[-2:], strict=True))
    wanted = (*shape[:-2], math.ceil(shape[-2] / rows), math.ceil(shape[-1] / columns))
    if scale.numel() != math.prod(wanted) or (scale.ndim == len(wanted) and scale.shape != wanted):
        raise ValueError(f"the scales have the shape {tuple(scale.shape)}, and a matrix {tuple(shape)} needs {wanted}")
    expanded = scale.reshape(wanted).repeat_interleave(rows, -2)[..., : shape[-2], :]
    return expanded.repeat_interleave(columns, -1)[..., : shape[-1]]


def _unpacked(packed: Tensor, bits: int) -> Tensor:
    """Return the values in 32-bit integers, from their lowest bits upwards along the last dimension."""
    _check_kind(packed, "int32", "packed values")
    shifts = torch.arange(0, 32, bits, dtype=torch.int32)
    values: Tensor = (packed[..., None] >> shifts) & (2**bits - 1)
    return values.flatten(-2)


def _grouped(values: Tensor, scale: Tensor, zero: Tensor, size: int | None, groups: Tensor | None) -> Tensor:
    """Return (q − zero) · scale, where `groups` or the size of a group states the group of each column."""
    columns = values.shape[1]
    wanted = (len(values), math.ceil(columns / (size or columns)))
    if scale.shape != wanted or zero.shape != wanted:
        raise ValueError(
            f"the scales have the shape {tuple(scale.shape)} and the zero points {tuple(zero.shape)}, "
            f"and a matrix {tuple(values.shape)} needs {wanted}"
        )
    if groups is None:
        groups = torch.arange(columns) // (size or columns)
    if groups.shape != (columns,) or not bool(((groups >= 0) & (groups < wanted[1])).all()):
        raise ValueError(f"the groups of {columns} columns are not numbers below {wanted[1]}")
    return (values - zero[:, groups.long()]).float() * scale[:, groups.long()]
