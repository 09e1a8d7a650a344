"""Logits from the files equal those of the model with its language-model head."""

import pytest
import torch
from support import tiny
from transformers import AutoModelForCausalLM, CohereConfig, Gemma3TextConfig, GraniteConfig

from theodolite.errors import UnsupportedModelError
from theodolite_jobs.effects.next_token import logit_head
from theodolite_jobs.effects.routes import prepare_variants
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_model
from theodolite_jobs.models.weights import Weights

DECODERS = [family for family, config in tiny.CONFIGS.items() if known_anatomy(config).causal]
PROMPTS = tiny.random_tokens([7, 7])


def check_logits(whole, folder):
    whole.save_pretrained(folder)
    model = load_model(folder, dtype="float32")
    with torch.inference_mode():
        theirs = whole(input_ids=torch.tensor(PROMPTS)).logits[:, -1]
        ours = logit_head(Weights(folder, model.config)).logits(prepare_variants(model, PROMPTS, []).output)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=float(theirs.abs().max()) * 5e-6)


@pytest.mark.parametrize("family", DECODERS)
def test_logits_equal_those_of_the_model_with_its_head(family, tmp_path):
    check_logits(tiny.model_with_head(family), tmp_path)


@pytest.mark.parametrize(
    "config",
    [
        CohereConfig(**tiny.GROUPED, logit_scale=0.3),
        GraniteConfig(**tiny.GROUPED, logits_scaling=8.0),
        Gemma3TextConfig(**tiny.GROUPED, head_dim=16, final_logit_softcapping=2.0),
    ],
    ids=lambda config: config.model_type,
)
def test_scales_and_soft_caps_of_logits_are_applied(config, tmp_path):
    check_logits(tiny.random_model(config, AutoModelForCausalLM), tmp_path)


def test_an_encoder_has_no_next_token(tmp_path):
    whole = tiny.model_with_head("bert")
    whole.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="predicts no next token"):
        logit_head(Weights(tmp_path, whole.config))
