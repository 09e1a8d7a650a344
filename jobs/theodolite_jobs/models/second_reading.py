"""Hold converted weights against the files from which they were converted, read a second way.

A parity check compares captured vectors with a plain run of the same converted weights, so it cannot see a mistake of
the conversion. This check runs beside it, on a handful of tensors.
"""

from pathlib import Path
from typing import Any

from theodolite.errors import ParityError
from theodolite_jobs.models.convert.adapter_second_reading import differing_matrix
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.convert.quantised_second_reading import differing_entries
from theodolite_jobs.models.convert.qwen1 import is_qwen1
from theodolite_jobs.models.gguf.second_reading import held_against_file
from theodolite_jobs.models.quantised import format_of, is_quantised
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

_QWEN1_SETTINGS = {
    **{name: name for name in ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")},
    "seq_length": "max_position_embeddings",
    "layer_norm_epsilon": "rms_norm_eps",
    "rotary_emb_base": "rope_theta",
}
_CHANGED_BY_ADAPTERS = ("vocab_size", "tie_word_embeddings", "text_config")
_CHANGED_BY_DEQUANTISATION = ("quantization_config", "text_config")


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
        tensors = _equal(TensorFiles(original), TensorFiles(folder), _QWEN1)
        held = {"tensors": tensors, "settings": _same_settings(original, folder, _QWEN1_SETTINGS)}
    elif is_quantised(original):
        held = _held_against_quantised(original, folder)
    else:
        held = {}
    if source.adapter is None:
        return held
    adapter, merged = adapter_folder(source.adapter), fetch(source, cache)
    compared, wrong = differing_matrix(folder, adapter, merged)
    if wrong is not None:
        raise _differs(wrong, merged, wrong, adapter)
    settings = _same_settings(folder, merged, _unchanged(folder, _CHANGED_BY_ADAPTERS))
    return {"tensors": [*held.get("tensors", []), *compared], "settings": held.get("settings", settings)}


def _held_against_quantised(original: Path, folder: Path) -> dict[str, Any]:
    """Return the settings and plain tensors, which the conversion must not change, and the compared matrices."""
    theirs, ours = TensorFiles(original), TensorFiles(folder)
    same = [name for name in theirs.headers if name in ours.headers and theirs.shape(name) == ours.shape(name)]
    plain = [name for name in same if theirs.headers[name].dtype == ours.headers[name].dtype]
    settings = _same_settings(original, folder, _unchanged(original, _CHANGED_BY_DEQUANTISATION))
    stored = format_of(read_json(original / "config.json"))
    assert stored is not None, "only quantised checkpoints are compared"
    matrices, wrong = differing_entries(theirs, ours, stored)
    if wrong is not None:
        raise _differs(wrong, folder, wrong, original)
    tensors = [*_equal(theirs, ours, {name: name for name in plain}), *matrices]
    return {"tensors": tensors, "settings": settings}


def _unchanged(folder: Path, changed: tuple[str, ...]) -> dict[str, str]:
    """Return the settings in a folder's configuration that a conversion must leave as they are."""
    return {name: name for name in read_json(folder / "config.json") if name not in changed}


def _same_settings(original: Path, folder: Path, names: dict[str, str]) -> list[str]:
    """Return the settings of the source that the converted model has too, by its names for them.

    Raises:
        ParityError: the two have different values.
    """
    before, after = read_json(original / "config.json"), read_json(folder / "config.json")
    after = (after.get("rope_parameters") or {}) | after
    stated = [name for name in names if name in before]
    for name in stated:
        if before[name] != after.get(names[name]):
            raise ParityError(
                f"{name} is {before[name]} in {original}, and {after.get(names[name])} in the converted model; this is "
                "a mistake of the conversion; please report it"
            )
    return stated


def _equal(theirs: TensorFiles, ours: TensorFiles, names: dict[str, str]) -> list[str]:
    """Return the names whose first rows are equal, bit for bit; raise ParityError if some differ."""
    for name, converted in names.items():
        one, other = theirs.read(name, _ROWS), ours.read(converted, _ROWS)
        if one.dtype != other.dtype or not bool((one == other).all()):
            raise _differs(converted, ours.folder, name, theirs.folder)
    return sorted(names)


def _differs(name: str, folder: Path, source_name: str, source: Path) -> ParityError:
    return ParityError(
        f"{name} in {folder} differs from {source_name} in {source}, read a second way: this is a mistake of the "
        "conversion; please report it"
    )
