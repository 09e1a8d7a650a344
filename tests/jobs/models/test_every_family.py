"""What is read of each family is what its own modules compute; one test for each family, which builds it once."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from families import circuits, facts, sites, weights
from support import tiny
from support.float64 import in_float64
from support.hand_runs import HAND_RUNS
from support.tiny_configs import CONFIGS
from transformers import AutoModel

from theodolite_jobs.models.families import FAMILIES
from theodolite_jobs.models.load import load_config, wrap
from theodolite_jobs.models.text_part import text_part
from theodolite_jobs.models.weights import Weights


def test_every_family_of_the_table_has_a_hand_run():
    assert set(HAND_RUNS) == set(CONFIGS)
    assert set(FAMILIES) - {config.get_text_config().model_type for config in CONFIGS.values()} == set()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_is_what_its_modules_compute(family, tmp_path, subtests):
    def run(part: str, checks: Iterable[Callable[..., None]], *arguments: Any) -> None:
        for check in checks:
            with subtests.test(f"{part}: {check.__name__}"):
                check(*arguments)

    small = tiny.tiny_model(family)
    run("facts", facts.CHECKS, family, small)
    run("sites", sites.CHECKS, family, sites.eager_float64(small))
    folder = tmp_path / "with head"
    tiny.model_with_head(family).save_pretrained(folder)
    model = loaded_in_float64(folder)
    run("weights", weights.CHECKS, folder, model)
    run("weights", [weights.files_of_the_base_model], folder, model, tmp_path / "base")
    if not (model.anatomy.no_circuits or model.anatomy.files.latent):  # test_latent_heads.py tests latent attention
        run("weights", [weights.attention_by_hand], folder, model)
        if hasattr(model.config, "clip_qkv"):
            model.config.clip_qkv = None  # what is clipped depends on the data
        run("circuits", circuits.CHECKS, Weights(folder, load_config(folder)), model)


def loaded_in_float64(folder):
    base = AutoModel.from_pretrained(folder, dtype=torch.float64).double()  # some load their router in float32
    if base.config.get_text_config()._experts_implementation != "eager":
        base.set_experts_implementation("eager")
    return wrap(in_float64(text_part(base)))
