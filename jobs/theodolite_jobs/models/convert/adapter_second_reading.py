"""Compute some matrices of a merged adapter a second way: from the formulas of LoRA and DoRA, in float64.

Sources: Hu et al. 2021 (arXiv:2106.09685), Liu et al. 2024 (DoRA, arXiv:2402.09353).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file
from torch import Tensor

from theodolite_jobs.models.convert.adapter_config import SETTINGS, TENSORS
from theodolite_jobs.models.convert.files import read_json
from theodolite_jobs.models.tensors import TensorFiles

_PREFIX = "base_model.model."
_A = ".lora_A.weight"
_CONV1D = ("gpt2", "openai-gpt")  # families whose matrices are stored across: inputs are rows


def differing_matrix(base: Path, adapter: Path, merged: Path) -> tuple[list[str], str | None]:
    """Return the first and the last matrix of each kind that were compared, and the first that differs, if one does.

    Matrices of experts and of embeddings, which have forms of their own, are not compared, nor those that the adapter
    adds to a matrix of its own instead of the base's.
    """
    before, after = TensorFiles(base), TensorFiles(merged)
    settings, tensors = read_json(adapter / SETTINGS), load_file(adapter / TENSORS)
    has_conv1d = read_json(base / "config.json").get("model_type") in _CONV1D
    stems = [name.removesuffix(_A) for name in sorted(tensors) if name.endswith(_A)]
    changed = {
        f"{stem}{_A}": f"{stem.removeprefix(_PREFIX)}.weight"
        for stem in stems
        if f"{stem}.base_layer.weight" not in tensors
    }
    saved = {name: name.removeprefix(_PREFIX) for name in sorted(tensors) if ".lora_" not in name}
    compared: list[str] = []
    for names in (changed, saved):
        known = [name for name, weight in names.items() if weight in before.headers and weight in after.headers]
        for name in dict.fromkeys((*known[:1], *known[-1:])):
            weight, result = names[name], after.read(names[name]).double()
            stored = before.read(weight).double()
            expected = (
                _merged(stored, name, settings, tensors, has_conv1d) if names is changed else tensors[name].double()
            )
            if expected.shape != result.shape or not (result - expected).norm() <= 1e-6 * expected.norm():
                return compared, weight
            compared.append(weight)
    return compared, None


def _merged(
    stored: Tensor, name: str, settings: Mapping[str, Any], tensors: Mapping[str, Tensor], has_conv1d: bool
) -> Tensor:
    """Return W + s·BA, with DoRA m·(W + s·BA) / |W + s·BA| for each row; s is α/r, or α/√r with rsLoRA."""
    stem = name.removesuffix(_A)
    a, b = tensors[name].double(), tensors[f"{stem}.lora_B.weight"].double()
    module, rank = stem.removeprefix(_PREFIX), len(a)
    patterns = settings.get("alpha_pattern") or {}
    of_module = (alpha for pattern, alpha in patterns.items() if re.match(rf"(.*\.)?({pattern})$", module))
    alpha = next(of_module, settings["lora_alpha"])
    # peft corrects a wrong fan_in_fan_out by the class of the module.
    shape = (len(b), a.shape[1])
    across = has_conv1d if shape[0] == shape[1] else stored.shape != shape
    weight: Tensor = (stored.mT if across else stored) + alpha / (
        rank**0.5 if settings.get("use_rslora") else rank
    ) * b @ a
    if settings.get("use_dora"):
        lengths = tensors[f"{stem}.lora_magnitude_vector"].double()
        weight = weight * (lengths / weight.norm(dim=1))[:, None]
    return weight.mT if across else weight
