"""Logits from the files equal those of the model with its language-model head."""

import pytest
import torch
from support import tiny
from support.each import each
from support.layouts import TAPS
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED
from transformers import AutoModelForCausalLM, CohereConfig, Gemma3TextConfig, GraniteConfig

from theodolite.errors import UnsupportedModelError
from theodolite.sites import Site
from theodolite_jobs.effects.next_token import logit_head, next_token_change
from theodolite_jobs.effects.routes import prepare_variants, run_variants
from theodolite_jobs.effects.variants import Add, Location, Variant
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import load_config, load_model
from theodolite_jobs.models.weights import Weights

# test_every_family.py compares the logits of all families.
DECODERS = [family for family in TAPS if known_anatomy(CONFIGS[family]).causal][::4]
PROMPTS = tiny.random_tokens([7, 7])


def check_logits(whole, folder):
    whole.save_pretrained(folder)
    model = load_model(folder, dtype="float32")
    with torch.inference_mode():
        theirs = whole(input_ids=torch.tensor(PROMPTS)).logits[:, -1]
        ours = logit_head(Weights(folder, load_config(folder))).logits(prepare_variants(model, PROMPTS, []).output)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=float(theirs.abs().max()) * 5e-6)


@each("family", DECODERS)
def test_logits_equal_those_of_the_model_with_its_head(family, tmp_path):
    check_logits(tiny.model_with_head(family), tmp_path)


@each(
    "config",
    [
        CohereConfig(**GROUPED, logit_scale=0.3),
        GraniteConfig(**GROUPED, logits_scaling=8.0),
        Gemma3TextConfig(**GROUPED, head_dim=16, final_logit_softcapping=2.0),
    ],
)
def test_scales_and_soft_caps_of_logits_are_applied(config, tmp_path):
    check_logits(tiny.random_model(config, AutoModelForCausalLM), tmp_path)


def test_an_encoder_has_no_next_token(tmp_path):
    whole = tiny.model_with_head("bert")
    whole.save_pretrained(tmp_path)
    with pytest.raises(UnsupportedModelError, match="predicts no next token"):
        logit_head(Weights(tmp_path, whole.config))


def test_changes_of_the_next_token_follow_from_the_logits(tmp_path):
    whole = tiny.model_with_head("llama")
    whole.save_pretrained(tmp_path)
    model = load_model(tmp_path, dtype="float32")
    head = logit_head(Weights(tmp_path, model.config))
    at = Location(Site.RESID_MID, 2)
    intact = prepare_variants(model, PROMPTS, [at])
    step = intact.states[at][1] - intact.states[at][0]
    doses = [0.0, 0.5, 1.0, 2.0, -1.0]
    outcome = run_variants(model, intact, [Variant({at: Add(step, dose)}) for dose in doses])
    change = next_token_change(head, intact, outcome, [3, 4], [5], rows=2)
    log_p, log_q = (torch.log_softmax(head.logits(one).double(), -1) for one in (intact.output, outcome.output))
    torch.testing.assert_close(
        torch.from_numpy(change.kl), (log_p.exp()[:, None] * (log_p[:, None] - log_q)).sum(-1), rtol=1e-5, atol=1e-9
    )
    odds = log_q[..., [3, 4]].logsumexp(-1) - log_q[..., 5]
    torch.testing.assert_close(torch.from_numpy(change.log_odds), odds, rtol=1e-5, atol=1e-6)
    assert (change.kl[:, 0] == 0).all()
    assert (change.log_odds[:, 0] == change.intact_log_odds).all()
    assert (change.kl[:, 1:] > 1e-6).all()
