"""Hold converted weights against the files from which they were converted, read a second way.

A parity check compares captured vectors with a plain run of the same converted weights, so it cannot see a mistake of
the conversion. This check runs beside it, on a handful of tensors.
"""

from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from theodolite.errors import ParityError
from theodolite_jobs.models.convert.adapter_config import SETTINGS, TENSORS
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.convert.qwen1 import is_qwen1
from theodolite_jobs.models.gguf.second_reading import held_against_file
from theodolite_jobs.models.quantised import is_quantised
from theodolite_jobs.models.source import ModelSource, adapter_folder, base_folder, fetch, original_folder
from theodolite_jobs.models.tensors import TensorFiles

_ROWS = slice(16)
"""Compared rows of a matrix."""

_QWEN1 = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "transformer.ln_f.weight": "model.norm.weight",
    "transformer.h.0.ln_1.weight": "model.layers.0.input_layernorm.weight",
    "transformer.h.0.attn.c_attn.weight": "model.layers.0.self_attn.q_proj.weight",  # its first rows are queries
    "transformer.h.0.mlp.w2.weight": "model.layers.0.mlp.gate_proj.weight",
    "transformer.h.0.mlp.c_proj.weight": "model.layers.0.mlp.down_proj.weight",
}


def held_against_source(source: ModelSource, cache: Path) -> dict[str, Any]:
    """Return the tensors and settings of converted weights that equal those of their source; {} if none are converted.

    Raises:
        ParityError: a tensor or a setting differs.
    """
    if source.weights == "random":
        return {}
    folder = base_folder(source, cache, weights=True)
    if source.kind == "gguf":
        held = held_against_file(Path(source.location), folder)
    elif is_qwen1(original := original_folder(source, weights=True)):
        held = {"tensors": _equal(TensorFiles(original), TensorFiles(folder), _QWEN1)}
    elif is_quantised(original):
        held = _held_against_quantised(original, folder)
    else:
        held = {}
    if source.adapter is None:
        return held
    changed = _held_against_adapter(folder, adapter_folder(source.adapter), fetch(source, cache))
    return {**held, "tensors": [*held.get("tensors", []), *changed]}


def _held_against_quantised(original: Path, folder: Path) -> dict[str, Any]:
    """Return the settings, and the tensors that are stored plain, which the conversion must not change."""
    theirs, ours = TensorFiles(original), TensorFiles(folder)
    same = [name for name in theirs.file_of if name in ours.file_of and theirs.shape(name) == ours.shape(name)]
    plain = [name for name in same if theirs.read(name, _ROWS).dtype == ours.read(name, _ROWS).dtype]
    before, after = read_json(original / "config.json"), read_json(folder / "config.json")
    settings = [key for key in before if key in after and key not in ("quantization_config", "text_config")]
    for key in settings:
        if before[key] != after[key]:
            raise ParityError(f"{key} is {before[key]} in {original}, and {after[key]} in the converted model")
    return {"tensors": _equal(theirs, ours, {name: name for name in plain}), "settings": settings}


def _equal(theirs: TensorFiles, ours: TensorFiles, names: dict[str, str]) -> list[str]:
    """Return the names whose first rows are equal, bit for bit; raise ParityError if some differ."""
    for name, converted in names.items():
        one, other = theirs.read(name, _ROWS), ours.read(converted, _ROWS)
        if one.dtype != other.dtype or not bool((one == other).all()):
            raise _differs(converted, ours.folder, name, theirs.folder)
    return sorted(names)


def _held_against_adapter(base: Path, adapter: Path, merged: Path) -> list[str]:
    """Return the first and the last matrix that equal W + s·BA, in float64, of an adapter with one scale s for all."""
    settings = read_json(adapter / SETTINGS)
    if any(settings.get(key) for key in ("use_dora", "rank_pattern", "alpha_pattern", "fan_in_fan_out")):
        return []
    rank = settings["r"]
    scale = settings["lora_alpha"] / (rank**0.5 if settings.get("use_rslora") else rank)
    before, after = TensorFiles(base), TensorFiles(merged)
    with safe_open(adapter / TENSORS, framework="pt") as tensors:
        stems = [
            name.removesuffix(".lora_A.weight") for name in sorted(tensors.keys()) if name.endswith(".lora_A.weight")
        ]
        names = {stem: f"{stem.removeprefix('base_model.model.')}.weight" for stem in stems}
        known = [stem for stem in stems if names[stem] in before.file_of and names[stem] in after.file_of]
        for stem in {*known[:1], *known[-1:]}:
            change: Tensor = tensors.get_tensor(f"{stem}.lora_B.weight").double()
            change = scale * change @ tensors.get_tensor(f"{stem}.lora_A.weight").double()
            expected = before.read(names[stem]).double() + change
            if not (after.read(names[stem]).double() - expected).norm() <= 1e-6 * expected.norm():
                raise _differs(names[stem], merged, stem, adapter)
    return sorted({names[stem] for stem in (*known[:1], *known[-1:])})


def _differs(name: str, folder: Path, source_name: str, source: Path) -> ParityError:
    return ParityError(
        f"{name} in {folder} differs from {source_name} in {source}, read a second way: this is a mistake of the "
        "conversion; please report it"
    )
