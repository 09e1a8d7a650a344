"""Where a model's norms are in a run, against what its own norm modules read and put out."""

import numpy as np
import pytest
import torch
from support import tiny
from support.each import together
from support.stored import record_of
from transformers import AutoModel

from theodolite.sites import Site
from theodolite.store.runs import ModelFacts, Run
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.reference import read_sites, relative_errors
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.passes.norm_layers import norm_layers
from theodolite_jobs.statistics.norms import normalised

TOKENS = (5, 60, 17, 33, 9)
POSITIONS = [-3, -2, -1]
BOUND = 2e-6  # some families' norms compute in float32 whatever comes in
FAMILIES = [
    "bert",  # norms follow the sums
    "bloom",
    "cohere",  # one norm for both branches, without bias
    "falcon-groups",  # parallel, a norm for each branch
    "gemma2",  # norms before and after branches, scale 1 + γ
    "gpt2",
    "gpt_neox",  # parallel, both norms read what enters
    "granite",  # branches are scaled after their modules
    "llama",
    "mixtral",
    "modernbert",  # no norm before the first attention
    "olmo",  # no scale and no bias
    "olmo2",  # norms of branches alone
    "opt",
    "opt-post-norm",
]


class Model:
    """A tiny model of a family, its weights, and what its norms read and put out for one prompt."""

    def __init__(self, family, folder):
        tiny.model_with_head(family).save_pretrained(folder)
        base = AutoModel.from_pretrained(folder, dtype=torch.float64)
        if base.config._experts_implementation != "eager":
            base.set_experts_implementation("eager")
        self.loaded = wrap(base)
        self.weights = Weights(folder, self.loaded.config, torch.float64)
        self.anatomy, self.n_layers = self.loaded.anatomy, self.loaded.dimensions.n_layers
        self.passed = {}
        handles = [
            module.register_forward_hook(lambda _, args, output, key=key: self._keep(key, args, output))
            for key, module in self._modules()
        ]
        self.sites = read_sites(self.loaded, TOKENS, POSITIONS)
        for handle in handles:
            handle.remove()

    def _modules(self):
        for layer, block in enumerate(self.loaded.blocks):
            for which, path in self.anatomy.norms.items():
                if not isinstance(block.get_submodule(path), torch.nn.Identity):
                    yield (which, layer), block.get_submodule(path)
        if self.anatomy.final_norm is not None:
            yield ("final", -1), self.loaded.module.get_submodule(self.anatomy.final_norm)

    def _keep(self, key, args, output):
        rows = [value.detach().reshape(-1, value.shape[-1])[POSITIONS].double().numpy() for value in (args[0], output)]
        self.passed[key] = rows

    def run(self, sites=None, layers=None):
        """Return a run that would have captured these."""
        layers = list(range(self.n_layers)) if layers is None else layers
        sites = self.anatomy.sites if sites is None else sites
        arrays = {"words": {str(site): np.zeros((1, 1, len(layers), 48)) for site in sites}}
        sizes = {"n_layers": self.n_layers, "d_model": 48, "n_heads": 4, "n_kv_heads": 2, "d_head": 12}
        words = {"kind": "folder", "place": "x", "revision": "0", "family": "x", "dtype": "float32", "attention": "x"}
        facts = ModelFacts(name="tiny", **sizes, **words, context_length=128)
        return Run("nowhere", record_of(arrays, 1, model=facts, layers=layers))

    def vectors(self, norm_layer, layers):
        """Return what a run holds of a norm, (position, d_model)."""
        rows = [
            self.sites[site] if site is Site.RESID_FINAL else self.sites[site][:, layers[norm_layer.layer_index]]
            for site in norm_layer.sites
        ]
        return sum(rows[1:], rows[0])


@pytest.fixture(scope="module", params=FAMILIES)
def model(request, tmp_path_factory):
    return Model(request.param, tmp_path_factory.mktemp(request.param))


def assert_right(model, norm_layer, layers):
    """What is captured of a norm is what its module read, or put out; and the norm does what the module does."""
    read, put_out = model.passed[(norm_layer.which, norm_layer.layer)]
    captured = model.vectors(norm_layer, layers)
    assert relative_errors(captured, read if norm_layer.reads else put_out).max() < BOUND, norm_layer.label
    assert relative_errors(normalised(read, norm_layer.norm), put_out).max() < BOUND, norm_layer.label


def with_all_sites_every_norm_has_captured_inputs_or_outputs(model):
    layers = list(range(model.n_layers))
    all_norms = norm_layers(model.run(), model.weights)
    assert {(norm_layer.which, norm_layer.layer) for norm_layer in all_norms} == set(model.passed)
    along = [norm_layer.layer if norm_layer.layer >= 0 else model.n_layers for norm_layer in all_norms]
    assert along == sorted(along)  # in the order of the stream, the final one last
    for norm_layer in all_norms:
        assert norm_layer.sites, norm_layer.label
        assert_right(model, norm_layer, layers)
        assert norm_layer.reads or norm_layer.which.endswith("_output")


def without_branch_sites_norms_before_the_sum_have_no_captured_vectors(model):
    stream = [site for site in (Site.RESID_PRE, Site.RESID_MID) if site in model.anatomy.taps]
    layers = list(range(model.n_layers))
    for norm_layer in norm_layers(model.run(stream), model.weights):
        if norm_layer.which.endswith("_output") and not model.anatomy.post_norm:
            assert not norm_layer.sites
        else:
            assert_right(model, norm_layer, layers)
            assert norm_layer.reads != model.anatomy.post_norm or norm_layer.which == "final"


def with_some_layers_only_their_norms_have_captured_vectors(model):
    layers = [1, 2, 4]
    for norm_layer in norm_layers(model.run(layers=layers), model.weights):
        if norm_layer.sites:
            assert_right(model, norm_layer, layers)
        else:
            assert norm_layer.layer in (0, 3)
    known = {
        norm_layer.layer for norm_layer in norm_layers(model.run(layers=layers), model.weights) if norm_layer.sites
    }
    assert {1, 2, 4} <= known


def test_resid_final_of_a_post_norm_model_is_the_output_of_its_last_norm(tmp_path):
    model = Model("bert", tmp_path)
    last = norm_layers(model.run([Site.RESID_PRE]), model.weights)[-1]
    assert (last.label, last.sites, last.reads) == ("4.mlp_output", (Site.RESID_FINAL,), False)
    assert_right(model, last, [])


test_captured_vectors_of_norms_are_those_of_their_modules = together(
    with_all_sites_every_norm_has_captured_inputs_or_outputs,
    without_branch_sites_norms_before_the_sum_have_no_captured_vectors,
    with_some_layers_only_their_norms_have_captured_vectors,
)
