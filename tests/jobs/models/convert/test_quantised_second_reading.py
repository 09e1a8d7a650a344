"""Entries of dequantised matrices, computed one by one, equal those of the conversion; another entry is noticed."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support.each import each
from support.nightly import at_night
from support.quantised_cases import CASES, changed, fetched, saved

from theodolite_jobs.models.convert.quantised_second_reading import differing_entries
from theodolite_jobs.models.quantised import format_of
from theodolite_jobs.models.tensors import TensorFiles


@pytest.mark.parametrize("dtype", [torch.bfloat16, *at_night([torch.float32, torch.float16])], ids=str)
@each("case", CASES)
def test_a_wrong_matrix_of_every_format_is_noticed(tmp_path: Path, case: str, dtype: torch.dtype) -> None:
    saved(case, tmp_path / "model", dtype)
    stored = format_of(json.loads((tmp_path / "model" / "config.json").read_text()))
    assert stored is not None
    original, folder = TensorFiles(tmp_path / "model"), fetched(tmp_path / "model")
    compared, wrong = differing_entries(original, TensorFiles(folder), stored)
    assert (len(compared), wrong) == (3, None)
    name = compared[1]
    file = folder / TensorFiles(folder).headers[name].file
    tensors = load_file(file)
    shifted = torch.roll(tensors[name], 1, dims=-1)  # as from values in a wrong order
    save_file({**tensors, name: shifted.contiguous()}, file, {"format": "pt"})
    assert differing_entries(original, TensorFiles(folder), stored) == (compared[:1], name)


def test_numbers_near_the_smallest_of_half_precision_are_no_mistake(tmp_path: Path) -> None:
    saved("fp8", tmp_path / "model", torch.float16)
    changed(
        tmp_path / "model",
        lambda tensors: tensors.update({name: one * 0.01 for name, one in tensors.items() if "scale" in name}),
    )
    stored = format_of(json.loads((tmp_path / "model" / "config.json").read_text()))
    assert stored is not None
    _, wrong = differing_entries(TensorFiles(tmp_path / "model"), TensorFiles(fetched(tmp_path / "model")), stored)
    assert wrong is None
