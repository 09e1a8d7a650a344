"""A checkpoint with a missing, renamed, reshaped or extra tensor, or a config.json of another, is refused by name."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.errors import only_line
from support.layouts import FILES
from support.nightly import one_in

from theodolite.errors import ModelError
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.weights import Weights

Tensors = dict[str, torch.Tensor]
WEIGHTS = "model.safetensors"
# The fourth block: one with experts in every family that has any. The layers of ALBERT share one or two blocks.
BLOCK = re.compile(r"\b(encoder\.block|layers?|h)\.3\.|layer_groups\.0\.")


# By day, test_every_family.py finds no tensor of the other layouts missing, surplus or of another shape.
@pytest.fixture(scope="module", params=one_in(3, FILES))
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    tiny.model_with_head(request.param).save_pretrained(folder)
    return folder


def mutated(saved: Path, folder: Path, change: Callable[[Tensors], None]) -> Path:
    """Return a copy of a checkpoint with other tensors."""
    shutil.copytree(saved, folder)
    tensors = load_file(folder / WEIGHTS)
    change(tensors)
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    return folder


def matrices_of_a_block(saved: Path) -> list[str]:
    """Return the names of the first, a middle and the last matrix of a block."""
    tensors = load_file(saved / WEIGHTS)
    names = sorted(name for name, one in tensors.items() if BLOCK.search(name) and one.ndim > 1)
    return [names[0], names[len(names) // 2], names[-1]]


def read_everything(folder: Path) -> None:
    """Read all weights of a block, without loading the model."""
    weights = Weights(folder, load_config(folder))
    if weights.anatomy.files is not None and weights.anatomy.files.qkv:
        weights.attention(3)
    for expert in weights.experts(3):
        weights.mlp(3, expert)
    for norm in weights.anatomy.norms:
        weights.norm(3, norm)


def refusal_of(action: Callable[[Path], object], folder: Path) -> str:
    with pytest.raises(ModelError) as caught:
        action(folder)
    return only_line(caught)


def test_a_change_of_a_checkpoint_is_refused_by_name(saved: Path, tmp_path: Path, subtests: pytest.Subtests) -> None:
    for check in (missing_tensor, renamed_tensor, other_shape, surplus_tensor, wrong_width_of_heads):
        with subtests.test(check.__name__):
            folder = tmp_path / check.__name__
            folder.mkdir()
            check(saved, folder)


def missing_tensor(saved: Path, tmp_path: Path) -> None:
    for index, name in enumerate(matrices_of_a_block(saved)):
        folder = mutated(saved, tmp_path / str(index), lambda tensors, name=name: tensors.pop(name))
        assert " lack " in refusal_of(load_model, folder), name
        assert re.search(
            rf"lack.* (albert\.)?{re.escape(name.removeprefix('albert.'))}", refusal_of(read_everything, folder)
        ), name


def renamed_tensor(saved: Path, tmp_path: Path) -> None:
    name = matrices_of_a_block(saved)[1]
    other = name.removesuffix(".weight") + "_of_another.weight"

    def rename(tensors: Tensors) -> None:
        tensors[other] = tensors.pop(name)

    folder = mutated(saved, tmp_path / "renamed", rename)
    assert " lack" in refusal_of(load_model, folder)
    assert " lack" in refusal_of(read_everything, folder)


def other_shape(saved: Path, tmp_path: Path) -> None:
    for index, name in enumerate(matrices_of_a_block(saved)):

        def cut(tensors: Tensors, name: str = name) -> None:
            tensors[name] = tensors[name][:-1].clone()

        folder = mutated(saved, tmp_path / str(index), cut)
        assert "weights" in refusal_of(load_model, folder), name


def surplus_tensor(saved: Path, tmp_path: Path) -> None:
    name = BLOCK.split(matrices_of_a_block(saved)[0])[0] + BLOCK.search(matrices_of_a_block(saved)[0]).group()
    folder = mutated(saved, tmp_path / "extra", lambda tensors: tensors.update({f"{name}extra.weight": torch.ones(3)}))
    for action in (load_model, read_everything):
        assert "extra.weight; use the config.json that belongs to these weights" in refusal_of(action, folder)


def wrong_width_of_heads(saved: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(saved, tmp_path / "heads"))
    whole = json.loads((folder / "config.json").read_text())
    text = whole.get("text_config", whole)
    # Some families compute `head_dim`, and do not read this number; in latent attention, values have their own width.
    text["v_head_dim" if "v_head_dim" in text else "head_dim"] = 6
    (folder / "config.json").write_text(json.dumps(whole))
    said = refusal_of(load_model, folder)
    assert "fit the configuration" in said or said.startswith(("cannot load the ", "cannot build a "))
