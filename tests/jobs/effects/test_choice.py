"""Models whose caches do not allow the one-token route take the full route, and say why."""

from dataclasses import replace

import pytest
import torch
from accelerate.hooks import AlignDevicesHook, add_hook_to_module
from support import tiny
from support.each import each
from support.sentences import assert_says
from support.tiny_configs import CONFIGS
from support.tiny_sizes import GROUPED, PLAIN
from transformers import AutoModel, Lfm2Config, PersimmonConfig

from theodolite.errors import SiteNotFoundError
from theodolite.sites import Site
from theodolite_jobs.effects.intact import run_intact
from theodolite_jobs.effects.outcome import Reading
from theodolite_jobs.effects.routes import prepare_variants, route_error, run_variants, why_full_route
from theodolite_jobs.effects.variants import Location, Patch, Variant
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap

ENCODERS = [family for family, config in CONFIGS.items() if not known_anatomy(config).causal]
PRE = [Location(Site.RESID_PRE, layer) for layer in (0, 2, 4)]
PROMPTS = tiny.random_tokens([12] * 3)


def loaded(family):
    return wrap(tiny.tiny_model(family))


@pytest.fixture(scope="module")
def recurrent():
    """A family outside the table: three of five blocks keep the state of a convolution."""
    kinds = ["conv", "full_attention", "conv", "conv", "full_attention"]
    return wrap(tiny.random_model(Lfm2Config(**GROUPED, layer_types=kinds), AutoModel))


def patched(model):
    """Return the patch of each location with the next prompt's state, and its outcome by the route of the model."""
    intact = prepare_variants(model, PROMPTS, PRE)
    variants = [Variant({at: Patch(intact.states[at].roll(1, 0))}) for at in PRE]
    return intact, variants, run_variants(model, intact, variants, [Reading(at) for at in PRE])


def check_full_route(model):
    intact, variants, outcome = patched(model)
    assert not intact.calls
    for index, variant in enumerate(variants):
        assert torch.equal(outcome.readings[index][:, index], variant.changes[PRE[index]].values)
        changed = (outcome.final[:, index] - intact.final).norm(dim=-1) / intact.final.norm(dim=-1)
        assert (changed > 1e-3).all()
    assert route_error(model, intact, PRE) == 0


@each("family", ENCODERS)
def test_an_encoder_takes_the_full_route(family):
    model = loaded(family)
    assert_says(why_full_route(model), "other tokens attend to the last")
    check_full_route(model)


def test_a_recurrent_model_takes_the_full_route(recurrent):
    assert_says(why_full_route(recurrent), "cache has LinearAttentionLayer")
    check_full_route(recurrent)


def test_layers_that_use_the_keys_of_another_layer_take_the_full_route():
    model = loaded("gemma4")
    assert_says(why_full_route(model), "keys and values of another layer")
    check_full_route(model)


def test_a_state_between_the_steps_needs_the_output_of_attention(recurrent):
    with pytest.raises(SiteNotFoundError, match="no change of resid_mid, because attn_out is not known"):
        prepare_variants(recurrent, PROMPTS, [Location(Site.RESID_MID, 1)])


def test_a_kernel_without_masks_takes_the_full_route():
    model = loaded("llama")
    model.config._attn_implementation = "flash_attention_2"
    assert_says(why_full_route(model), "'flash_attention_2' takes no mask")


def test_sharded_matrices_take_the_full_route():
    assert_says(why_full_route(replace(loaded("llama"), ranks=2)), "sharded over processes")


def test_a_family_outside_the_table_takes_the_one_token_route_if_it_caches_keys_and_values():
    model = wrap(tiny.random_model(PersimmonConfig(**PLAIN), AutoModel))
    assert model.anatomy.known_by == "probe"
    assert why_full_route(model) is None
    assert route_error(model, prepare_variants(model, PROMPTS, PRE), PRE) <= 5e-5


@each("family", ["llama", "gpt2"])
def test_blocks_that_accelerate_places_keep_their_forward(family):
    model = loaded(family)
    for block in model.blocks:
        add_hook_to_module(block, AlignDevicesHook("cpu", io_same_device=True))  # as with a device_map
    forwards = [block.forward for block in model.blocks]
    assert why_full_route(model) is None
    assert route_error(model, prepare_variants(model, PROMPTS, PRE), PRE) <= 5e-5
    assert [block.forward for block in model.blocks] == forwards


@each("family", ["llama", "gemma3", "falcon-heads"])
def test_the_error_between_the_routes_is_measured(family):
    model = loaded(family)
    intact = prepare_variants(model, PROMPTS, PRE)
    assert 0 < route_error(model, intact, PRE) <= 5e-5
    wrong = replace(intact, cached=[(keys * 1.01, values) for keys, values in intact.cached])
    assert route_error(model, wrong, PRE) > 5e-5


def test_scales_by_the_index_in_the_input_take_the_full_route():
    model = tuned(True)
    assert_says(why_full_route(model), "scales each token by its index")
    check_full_route(model)


@each("is_tuned, is_exact", [(False, True), (True, False)])
def test_the_comparison_of_the_routes_notices_scales_by_the_index(is_tuned, is_exact):
    model = tuned(is_tuned)
    error = route_error(model, run_intact(model, PROMPTS, PRE, is_cached=True), PRE)
    assert (error <= 5e-5) is is_exact


def tuned(is_tuned):
    """Return a Llama 4 whose scores depend on the index of a token, if it is tuned."""
    config = CONFIGS["llama4_text"].__class__.from_dict(
        {**CONFIGS["llama4_text"].to_dict(), "attn_temperature_tuning": is_tuned, "floor_scale": 1, "attn_scale": 1.0}
    )
    return wrap(tiny.random_model(config, AutoModel))
