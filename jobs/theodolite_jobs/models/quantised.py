"""Recognise a checkpoint with quantised weights by its configuration, and name the format.

`convert.quantised` writes such a checkpoint once as a plain one, with dequantised weights. Everything else (captures,
the parity check, heads, words, random weights, plans) sees a configuration without `quantization_config`; its
attribute `dequantised_from` is the name of the format.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from theodolite.errors import ModelError, UnsupportedModelError
from theodolite_jobs.models.convert.files import read_json

_KEY = "quantization_config"
NAME_KEY = "dequantised_from"
"""The entry of a plain configuration that names the format of the original weights."""

DEQUANTISATION = 1
"""Version of the rules that dequantise. Raise it if a changed rule gives other numbers."""

_READ = "FP8, MXFP4, GPTQ, AWQ, bitsandbytes or compressed-tensors with integers or FP8"
_INSTEAD = f"use the original checkpoint, or one whose weights are {_READ}"

Block = tuple[int | None, int | None]
"""Rows and columns of a matrix that share a scale; None is all."""


@dataclass(frozen=True)
class Format:
    """How the matrices of a checkpoint are stored."""

    method: str  # `quant_method` in config.json, or `bitsandbytes_4bit`, `bitsandbytes_8bit`, `packed` or `scaled`
    name: str  # in reports
    bits: int  # of a stored value
    block: Block = (None, None)
    dtype: str = "float8_e4m3fn"  # of the stored values, if they are not packed
    zero_offset: int = 0  # what the stored zero points of GPTQ lack


def is_quantised(folder: Path) -> bool:
    """Return whether config.json describes quantised weights; False if it cannot be read.

    Raises:
        UnsupportedModelError: the format is not known.
    """
    try:
        raw = read_json(folder / "config.json")
    except ModelError:
        return False
    return format_of(raw) is not None


def format_of(raw: Mapping[str, Any]) -> Format | None:
    """Return the format of a checkpoint's quantised weights from its config.json, or None if they are not quantised.

    Raises:
        UnsupportedModelError: the format is not known, or its settings are wrong.
    """
    settings = _settings(raw)
    if settings is None:
        return None
    method = str(settings.get("quant_method") or "")
    if not method and (settings.get("load_in_4bit") or settings.get("load_in_8bit")):
        method = "bitsandbytes"  # older files do not name it
    if method not in _FORMATS:
        stated = f"quantised with {method!r}" if method else "quantised with a method that config.json does not name"
        raise UnsupportedModelError(f"the weights are {stated}, which cannot be dequantised here; {_INSTEAD}")
    try:
        return _FORMATS[method](settings)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise UnsupportedModelError(
            f"{_KEY} of config.json does not describe {method} weights ({type(error).__name__}: {error}); {_INSTEAD}"
        ) from error


def plain_config(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of config.json without the quantisation, with the name of the format; raises like `format_of`.

    A configuration without quantisation is returned as it is.
    """
    found = format_of(raw)
    if found is None:
        return dict(raw)
    plain = {key: value for key, value in raw.items() if key != _KEY}
    if isinstance(text := plain.get("text_config"), Mapping):
        plain["text_config"] = {key: value for key, value in text.items() if key != _KEY}
    return {**plain, NAME_KEY: found.name}


def dequantised_from(config: Any) -> str | None:
    """Return the name of the format from which the weights of a configuration are dequantised, or None."""
    name = getattr(config, NAME_KEY, None)
    return None if name is None else str(name)


def _settings(raw: Mapping[str, Any]) -> Mapping[str, Any] | None:
    text = raw.get("text_config")
    settings = raw.get(_KEY) or (text.get(_KEY) if isinstance(text, Mapping) else None)
    return settings if settings is None or isinstance(settings, Mapping) else {}


def _refused(what: str) -> UnsupportedModelError:
    return UnsupportedModelError(f"the weights are {what}, which cannot be dequantised here; {_INSTEAD}")


def _number(settings: Mapping[str, Any], name: str, allowed: tuple[int, ...] | None = None) -> int:
    value = settings[name]
    if type(value) is not int or value == 0 or (allowed is not None and value not in allowed):
        raise ValueError(f"{name} is {value!r}")
    return value


def _sizes(name: str, value: Any) -> tuple[int, int]:
    rows, columns = value
    if not all(type(one) is int and one > 0 for one in value):
        raise ValueError(f"{name} is {value!r}")
    return rows, columns


def _groups(size: int) -> tuple[int | None, str]:
    """Return the columns that share a scale, and words for them; -1 is one group for a whole row."""
    return (None, "one scale per row") if size < 0 else (size, f"groups of {size}")


def _fp8(settings: Mapping[str, Any]) -> Format:
    kind = str(settings.get("fmt") or "e4m3")
    dtype = {"e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2"}[kind]
    size = settings.get("weight_block_size")
    if size is None:
        return Format("fp8", f"FP8 ({kind}, one scale per matrix or row)", 8, dtype=dtype)
    rows, columns = _sizes("weight_block_size", size)
    return Format("fp8", f"FP8 ({kind}, blocks of {rows} × {columns})", 8, (rows, columns), dtype)


def _gptq(settings: Mapping[str, Any]) -> Format:
    bits = _number(settings, "bits", (2, 4, 8))
    size, words = _groups(_number(settings, "group_size"))
    kind = str(settings.get("checkpoint_format") or settings.get("format") or "gptq").lower()
    if kind not in {"gptq", "gptq_v2"}:
        raise _refused(f"GPTQ in the layout {kind!r}")
    # The first layout stores zero points minus one.
    return Format("gptq", f"GPTQ ({bits} bits, {words})", bits, (1, size), zero_offset=int(kind == "gptq"))


def _awq(settings: Mapping[str, Any]) -> Format:
    bits = _number(settings, "bits" if "bits" in settings else "w_bit", (4,))
    size, words = _groups(_number(settings, "group_size" if "group_size" in settings else "q_group_size"))
    version = str(settings.get("version") or settings.get("format") or "gemm").lower()
    if version != "gemm" or settings.get("zero_point") is False:
        raise _refused(f"AWQ in the layout {version!r}{'' if version != 'gemm' else ' without zero points'}")
    return Format("awq", f"AWQ ({bits} bits, {words})", bits, (1, size))


def _bitsandbytes(settings: Mapping[str, Any]) -> Format:
    if settings.get("load_in_8bit"):
        return Format("bitsandbytes_8bit", "bitsandbytes (8 bits, one scale per row)", 8, (1, None), "int8")
    if not settings.get("load_in_4bit"):
        raise ValueError("neither load_in_4bit nor load_in_8bit is set")
    kind = settings["bnb_4bit_quant_type"]
    return Format("bitsandbytes_4bit", f"bitsandbytes ({kind.upper()}, 4 bits)", 4)


def _compressed(settings: Mapping[str, Any]) -> Format:
    """Return the format of compressed-tensors; all its groups of modules must have the same settings of weights."""
    if (settings.get("sparsity_config") or {}).get("format", "dense") != "dense":
        raise _refused("sparse compressed-tensors")
    if settings.get("transform_config"):
        raise _refused("compressed-tensors with rotations")
    groups = settings["config_groups"].values()
    weights = [group["weights"] for group in groups]
    one = weights[0]
    names = ("num_bits", "type", "strategy", "group_size", "block_structure")
    if any(other.get(name) != one.get(name) for other in weights for name in names):
        raise _refused("compressed-tensors with several formats")
    kind = next((group["format"] for group in groups if group.get("format")), settings.get("format"))
    bits, number = _number(one, "num_bits", (2, 4, 8)), str(one["type"])
    block, words = _block_of(one)
    if kind in {"float-quantized", "naive-quantized"} and (number, bits) == ("float", 8):
        return Format("scaled", f"FP8 (e4m3, {words}, compressed-tensors)", 8, block)
    if kind in {"int-quantized", "naive-quantized"} and (number, bits) == ("int", 8):
        return Format("scaled", f"INT8 ({words}, compressed-tensors)", 8, block, "int8")
    if kind == "pack-quantized" and number == "int":
        return Format("packed", f"INT{bits} ({words}, compressed-tensors)", bits, block)
    raise _refused(f"compressed-tensors in the layout {kind!r} ({number}, {bits} bits)")


def _block_of(weights: Mapping[str, Any]) -> tuple[Block, str]:
    """Return the values that share a scale in compressed-tensors, and words for them."""
    strategy = weights["strategy"]
    if strategy == "tensor":
        return (None, None), "one scale per matrix"
    if strategy == "channel":
        return (1, None), "one scale per row"
    if strategy == "group":
        size, words = _groups(_number(weights, "group_size"))
        return (1, size), words
    if strategy == "block":
        rows, columns = _sizes("block_structure", weights["block_structure"])
        return (rows, columns), f"blocks of {rows} × {columns}"
    raise ValueError(f"strategy is {strategy!r}")


_FORMATS = {
    "fp8": _fp8,
    "fbgemm_fp8": lambda _: Format("fp8", "FP8 (e4m3, one scale per row)", 8, (1, None)),
    "mxfp4": lambda _: Format("mxfp4", "MXFP4 (4 bits, blocks of 32)", 4),
    "gptq": _gptq,
    "awq": _awq,
    "bitsandbytes": _bitsandbytes,
    "compressed-tensors": _compressed,
}


def check_plain(folder: Path) -> None:
    """Raise UnsupportedModelError for weights in a quantised format, which `fetch` converts."""
    if stored := format_of(read_json(folder / "config.json")):
        raise UnsupportedModelError(f"the weights in {folder} are {stored.name}; a survey dequantises them first")
