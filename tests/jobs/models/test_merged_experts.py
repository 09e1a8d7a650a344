"""Files that hold all experts of a block in two tensors give the same weights as files with a tensor for each expert.

`save_pretrained(save_original_format=False)` writes such files, for each mixture of experts.
"""

import shutil
from dataclasses import fields
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from support import tiny
from support.each import together
from support.errors import only_line
from support.layouts import FILES
from support.nightly import at_night
from support.tiny_configs import CONFIGS

from theodolite.errors import ModelError
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.weights import Weights

WEIGHTS = "model.safetensors"
TOKENS = torch.tensor([[5, 60, 17, 33, 9]])


def is_mixture(family: str) -> bool:
    anatomy = known_anatomy(CONFIGS[family])
    return anatomy is not None and anatomy.files is not None and bool(anatomy.files.experts) and "dense" not in family


MIXTURES = list(filter(is_mixture, CONFIGS))


@pytest.fixture(scope="module", params=[family if family in FILES else at_night([family])[0] for family in MIXTURES])
def twins(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Return the folders of one model, as published and with merged experts."""
    folder, model = tmp_path_factory.mktemp(request.param), tiny.model_with_head(request.param)
    model.save_pretrained(folder / "published")
    model.save_pretrained(folder / "merged", save_original_format=False)
    return folder / "published", folder / "merged"


def weights_equal_those_of_the_published_twin(twins: tuple[Path, Path]) -> None:
    published, merged = (Weights(folder, load_config(folder)) for folder in twins)
    for layer in range(published.dimensions.n_layers):
        assert published.experts(layer) == merged.experts(layer)
        for expert in published.experts(layer):
            ours, theirs = merged.mlp(layer, expert), published.mlp(layer, expert)
            for field in fields(ours):
                one, other = getattr(ours, field.name), getattr(theirs, field.name)
                assert (one is None) == (other is None)
                assert one is None or torch.equal(one, other)
        for norm in published.anatomy.norms:
            assert (merged.norm(layer, norm) is None) == (published.norm(layer, norm) is None)
    assert torch.equal(published.embedding(), merged.embedding())
    assert torch.equal(published.unembedding(), merged.unembedding())


@torch.inference_mode()
def activations_equal_those_of_the_published_twin(twins: tuple[Path, Path]) -> None:
    one, other = (load_model(folder).run(input_ids=TOKENS, use_cache=False).last_hidden_state for folder in twins)
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)  # kernels add in another order for another alignment


def a_block_with_fewer_merged_experts_is_refused(twins: tuple[Path, Path], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(twins[1], tmp_path / "fewer"))
    tensors = load_file(folder / WEIGHTS)
    for name in [name for name in tensors if ".experts." in name]:
        tensors[name] = tensors[name][:-1].clone()
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    with pytest.raises(ModelError) as caught:
        load_model(folder)
    assert "experts in the weights" in only_line(caught)


test_merged_experts_are_those_of_the_published_twin = together(
    weights_equal_those_of_the_published_twin,
    activations_equal_those_of_the_published_twin,
    a_block_with_fewer_merged_experts_is_refused,
)
