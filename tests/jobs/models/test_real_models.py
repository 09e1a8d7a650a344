"""The real 135M chat model and a real encoder: parity of the sites, and weights on disk equal to the modules'."""

from pathlib import Path

import pytest
import torch
from support.reference_blocks import activation_of, after_branch, inputs_of, reference_attention, reference_mlp

from theodolite.settings import Settings
from theodolite.sites import Site
from theodolite.spec_parts import ModelSpec
from theodolite_jobs.capture.parity import certify
from theodolite_jobs.capture.plan import plan_set, probe_prompts
from theodolite_jobs.models.batching import can_share_prefix
from theodolite_jobs.models.load import load_model, load_tokenizer
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.source import fetch, resolve_source
from theodolite_jobs.models.weights import Weights

SENTENCES = [
    "To kill two birds with one stone",
    "How do I bake a loaf of rye bread at home without any yeast at all?",
    "Rain.",
]


@pytest.fixture(scope="module", params=["smollm2-135m-instruct", "all-minilm-l6-v2"])
def real(request):
    folder = fetch(resolve_source(ModelSpec(id=request.param), Path()), Settings().cache)
    tokens = [tuple(ids) for ids in load_tokenizer(folder)(SENTENCES)["input_ids"]]
    return folder, load_model(folder), tokens


def test_every_site_passes_its_certificate(real):
    _, model, tokens = real
    share = can_share_prefix(model.config, model.anatomy)
    plan = plan_set("set", tokens, (-1,), shard_prompts=3, batch_tokens=100, share_prefix=share)
    layers = range(model.dimensions.n_layers)
    certificate = certify(
        model, (*model.anatomy.taps, Site.RESID_FINAL), layers, {"set": plan.layout}, {"set": probe_prompts(tokens)}
    )
    assert certificate.max_error < 1e-5
    assert certificate.identity_error < 1e-6


def test_attention_and_mlp_written_out_from_the_files_equal_the_modules(real):
    folder, model, tokens = real
    weights = Weights(folder, model.config)
    ids = tokens[0]
    read = read_sites(model, ids, range(-len(ids), 0))
    for which, site in (("attention", Site.ATTN_OUT), ("mlp", Site.MLP_OUT)):
        inputs = inputs_of(model, which, ids)
        for layer in (0, 3, model.dimensions.n_layers - 1):
            x = inputs[layer].to(torch.float32)
            if which == "attention":
                out = reference_attention(x.double(), doubled(weights.attention(layer)), layer, model)
            else:
                out = reference_mlp(x, weights.mlp(layer), activation_of(model, layer))
            ours = after_branch(out, layer, f"{which}_output", weights, model)
            assert relative_errors(ours.numpy(), read[site][:, layer]).max() < 2e-5, (which, layer)


def doubled(attention):
    return type(attention)(
        **{
            name: value.double() if isinstance(value, torch.Tensor) else value
            for name, value in vars(attention).items()
        }
    )
