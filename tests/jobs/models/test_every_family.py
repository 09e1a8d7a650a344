"""What is read of each family is what its own modules compute; one test for each family, which builds it once."""

import copy
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

from theodolite_jobs.models.families import FAMILIES, is_encoder_alone
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.text_part import text_part


def test_every_family_of_the_table_has_a_hand_run():
    assert set(HAND_RUNS) == set(CONFIGS)
    assert set(FAMILIES) - {config.get_text_config().model_type for config in CONFIGS.values()} == set()


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_is_what_its_modules_compute(family, tmp_path, subtests):
    def run(part: str, checks: Iterable[Callable[..., None]], *arguments: Any) -> None:
        for check in checks:
            with subtests.test(f"{part}: {check.__name__}"):
                check(*arguments)

    folder = tmp_path / "with head"
    whole = tiny.model_with_head(family)
    whole.save_pretrained(folder)
    # Attention and experts that compute in float64; some families load their router in float32.
    base = AutoModel.from_pretrained(folder, dtype=torch.float64).double()
    base.set_attn_implementation("eager")
    if base.config.get_text_config()._experts_implementation != "eager":
        base.set_experts_implementation("eager")
    part = base if is_encoder_alone(base.config) else text_part(base)
    part.save_pretrained(tmp_path / "base")
    run("facts", facts.CHECKS, family, part)
    run("sites", sites.CHECKS, family, wrap(part))
    model = wrap(in_float64(text_part(base)))
    run("weights", weights.CHECKS, folder, model)
    run("weights", [weights.logits_of_the_head], folder, model, whole)
    run("weights", [weights.files_of_the_base_model], folder, model, tmp_path / "base")
    if not (model.anatomy.no_circuits or model.anatomy.files.latent):  # test_latent_heads.py tests latent attention
        run("weights", [weights.attention_by_hand], folder, model)
        if hasattr(model.config, "clip_qkv"):
            model.config.clip_qkv = None  # what is clipped depends on the data
        in_float32 = copy.copy(weights.weights_of(folder))  # circuits are read so
        in_float32.dtype = torch.float32
        run("circuits", circuits.CHECKS, in_float32, model)
