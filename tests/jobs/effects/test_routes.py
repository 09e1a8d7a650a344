"""The one-token route equals full forwards, in every family of decoders; columns and prompts are independent."""

import pytest
import torch
from support import tiny
from support.each import each
from support.float64 import in_float64
from support.hand_runs import HYBRIDS
from support.nightly import at_night, one_in
from support.tiny_configs import CONFIGS

from theodolite.errors import SiteNotFoundError
from theodolite.sites import Site
from theodolite_jobs.effects.full_route import run_full
from theodolite_jobs.effects.intact import run_intact
from theodolite_jobs.effects.one_token import run_one_token
from theodolite_jobs.effects.outcome import Reading
from theodolite_jobs.effects.routes import why_full_route
from theodolite_jobs.effects.variants import Add, Location, Patch, Remove, Variant
from theodolite_jobs.models.families import known_anatomy
from theodolite_jobs.models.load import wrap

STATES = HYBRIDS | {"falcon_h1", "gemma4"}  # also the keys of other layers
BY_INDEX = ["llama4", "llama4_text"]  # scale scores by the index in the input, so they take the full route
DECODERS = [
    family for family, config in CONFIGS.items() if known_anatomy(config).causal and family not in (*STATES, *BY_INDEX)
]
FIRST, MIDDLE, LAST = LAYERS = (0, 2, 4)
BOUND = 5e-5
ROUNDING = 5e-6
WINDOWED = ["cohere2", "gemma2", "gemma3", "mistral", "olmo3", "starcoder2", "vaultgemma"]  # 6 tokens


def loaded(family, **options):
    return wrap(tiny.tiny_model(family, **options))


def prompts_of(length, count=3):
    return tiny.random_tokens([length] * count)


def locations_of(model, layers=LAYERS):
    """Return every site of the blocks, and two single heads where heads have outputs."""
    sites = [Location(site, layer) for site in model.anatomy.sites for layer in layers]
    heads = (0, 3) if Site.HEAD_OUT in model.anatomy.taps else ()
    return sites + [Location(Site.HEAD_OUT, layer, head) for layer in layers for head in heads]


def changes_at(intact, location):
    """Return a patch with the next prompt's state, a removal, and a dose, at about the scale of the states."""
    states = intact.states[location]
    difference = states[0] - states[1]
    return [Patch(states.roll(1, 0)), Remove(difference), Add(difference, 2.0)]


def everywhere(intact, model):
    """Return the removal of one direction at every layer, before attention and if possible before the MLP."""
    sites = [site for site in (Site.RESID_PRE, Site.RESID_MID) if site in model.anatomy.taps]
    removal = Remove(torch.randn(model.dimensions.d_model, generator=torch.Generator().manual_seed(1)))
    return Variant({Location(site, layer): removal for site in sites for layer in LAYERS})


def variants_of(model, intact):
    variants = [Variant({at: change}) for at in locations_of(model) for change in changes_at(intact, at)]
    return [*variants, everywhere(intact, model)]


def largest_error(ours, theirs):
    pairs = [
        (ours.final, theirs.final),
        (ours.output, theirs.output),
        *zip(ours.readings, theirs.readings, strict=True),
    ]
    return max(relative(one, other) for one, other in pairs)


def relative(ours, theirs):
    return ((ours.double() - theirs.double()).norm(dim=-1) / theirs.double().norm(dim=-1)).max().item()


def error_between_routes(model, length, columns=64):
    intact = run_intact(model, prompts_of(length), locations_of(model), is_cached=True)
    variants = variants_of(model, intact)
    readings = [Reading(location) for location in locations_of(model)]
    ours = run_one_token(model, intact, variants, readings, columns)
    theirs = run_full(model, intact, variants, readings)
    assert ours.intact_error < ROUNDING
    assert relative(theirs.final, intact.final[:, None].expand_as(theirs.final)) > 1e-2  # they do change something
    return largest_error(ours, theirs)


@pytest.mark.parametrize("family", one_in(7, DECODERS))
def test_the_one_token_route_equals_full_forwards(family):
    model = loaded(family)
    assert why_full_route(model) is None
    assert error_between_routes(model, length=30) <= BOUND


@pytest.mark.nightly
@each("family", [*WINDOWED, "bloom", "falcon-heads", "gpt_bigcode", "llama-dynamic", "opt-post-norm"])
def test_the_routes_differ_by_rounding_alone(family):
    model = wrap(in_float64(tiny.tiny_model(family).double()))
    assert error_between_routes(model, length=30) < 1e-13


@pytest.mark.parametrize("length", [1, 6, *at_night([2, 5, 7])])
@pytest.mark.parametrize("family", ["mistral", "bloom", *at_night(["gpt2", "falcon-heads"])])
def test_prompts_may_be_shorter_than_a_window_or_have_one_token(family, length):
    assert error_between_routes(loaded(family), length) <= BOUND


@each("family", ["llama", "gemma2", "gpt2", "mistral"])
def test_the_routes_agree_under_eager_attention(family):
    module = tiny.tiny_model(family)
    module.set_attn_implementation("eager")
    assert error_between_routes(wrap(module), length=20) <= BOUND


@each("columns", [2, 3, 7])
def test_the_numbers_do_not_depend_on_the_columns_of_a_forward(columns):
    assert error_between_routes(loaded("llama"), length=12, columns=columns) <= BOUND


@each(
    "family", ["llama", "gemma3_text", "granite", "granitemoeshared", "olmo2", "opt-post-norm", "bloom", "falcon-heads"]
)
def test_the_full_route_sets_the_state_that_the_change_returns(family):
    model = loaded(family)
    intact = run_intact(model, prompts_of(12), locations_of(model), is_cached=False)
    for location in locations_of(model):
        reading = Reading(location)
        changes = changes_at(intact, location)
        outcome = run_full(model, intact, [Variant({location: change}) for change in changes], [reading])
        wanted = torch.stack([change(intact.states[location]) for change in changes], dim=1)
        assert relative(outcome.readings[0], wanted) < 2e-6, location


@each("family", ["llama", "gemma2", "granite", "bloom"])
def test_a_state_between_attention_and_mlp_is_what_the_mlp_is_added_to(family):
    model = loaded(family)
    mid, mlp, post = (Location(site, MIDDLE) for site in (Site.RESID_MID, Site.MLP_OUT, Site.RESID_POST))
    intact = run_intact(model, prompts_of(12), [mid, mlp, post], is_cached=False)
    wanted = intact.states[mid].roll(1, 0)
    outcome = run_full(model, intact, [Variant({mid: Patch(wanted)})], [Reading(mlp), Reading(post)])
    assert relative(outcome.readings[1] - outcome.readings[0], wanted[:, None]) < 2e-6


@each("family", ["llama", "granitemoeshared", "granitemoehybrid"])
def test_a_changed_output_of_the_mlp_is_what_the_block_adds(family):
    model = loaded(family)
    mlp, post = (Location(site, MIDDLE) for site in (Site.MLP_OUT, Site.RESID_POST))
    intact = run_intact(model, prompts_of(12), [mlp, post], is_cached=False)
    middle, wanted = intact.states[post] - intact.states[mlp], intact.states[mlp].roll(1, 0)
    outcome = run_full(model, intact, [Variant({mlp: Patch(wanted)})], [Reading(post)])
    assert relative(outcome.readings[0] - middle[:, None], wanted[:, None]) < 4e-6


@each("family", sorted(STATES - {"gemma4"}))
def test_a_model_with_linear_attention_or_a_state_space_takes_the_full_route(family):
    assert "not only the keys and values of tokens" in why_full_route(loaded(family))


def test_a_patch_of_the_embedding_is_another_last_token():
    model = loaded("llama")
    at = Location(Site.RESID_PRE, FIRST)
    prompts = prompts_of(9)
    intact = run_intact(model, prompts, [at], is_cached=True)
    with_other_token = [(*ids[:-1], other[-1]) for ids, other in zip(prompts, prompts[1:] + prompts[:1], strict=True)]
    theirs = run_intact(model, with_other_token, [at], is_cached=False)
    outcome = run_one_token(model, intact, [Variant({at: Patch(intact.states[at].roll(-1, 0))})])
    assert relative(outcome.final[:, 0], theirs.final) < ROUNDING
    assert relative(outcome.output[:, 0], theirs.output) < ROUNDING


@each("family", ["llama", "gpt2", "gemma2"])
@each("route", [run_one_token, run_full])
def test_an_identity_patch_and_dose_zero_give_exactly_the_intact_numbers(family, route):
    model = loaded(family)
    at = locations_of(model)
    intact = run_intact(model, prompts_of(12), at, is_cached=True)
    step = torch.ones(1)
    variants = [Variant({one: Patch(intact.states[one])}) for one in at]
    variants += [Variant({one: Add(step.expand_as(intact.states[one]), 0.0)}) for one in at]
    variants += [Variant({at[-1]: Add(intact.states[at[-1]], 1.0)})]  # one that does change
    outcome = route(model, intact, variants, [Reading(one) for one in at])
    for column in range(len(variants) - 1):
        assert torch.equal(outcome.final[:, column], intact.final)
        assert torch.equal(outcome.output[:, column], intact.output)
        for one, values in zip(at, outcome.readings, strict=True):
            assert torch.equal(values[:, column], intact.states[one])
    assert not torch.equal(outcome.final[:, -1], intact.final)


def test_a_patch_that_changes_one_prompt_leaves_the_other_exactly_intact():
    model = loaded("llama")
    at = Location(Site.RESID_MID, MIDDLE)
    intact = run_intact(model, prompts_of(12), [at], is_cached=True)
    values = intact.states[at].clone()
    values[1] += 1
    final = run_one_token(model, intact, [Variant({at: Patch(values)})]).final[:, 0]
    assert torch.equal(final[[0, 2]], intact.final[[0, 2]])
    assert relative(final[1], intact.final[1]) > 1e-3


def test_states_before_the_first_change_are_exactly_intact():
    model = loaded("llama")
    before, at, after = (Location(Site.RESID_PRE, layer) for layer in LAYERS)
    intact = run_intact(model, prompts_of(12), [before, at, after], is_cached=True)
    variants = [Variant({at: Remove(intact.final[0])}), Variant({before: Remove(intact.final[0])})]
    readings = run_one_token(model, intact, variants, [Reading(before), Reading(after)]).readings
    assert torch.equal(readings[0][:, 0], intact.states[before])
    assert not torch.equal(readings[0][:, 1], intact.states[before])
    assert not torch.equal(readings[1][:, 0], intact.states[after])


def test_variants_do_not_influence_each_other():
    model = loaded("mistral")
    intact = run_intact(model, prompts_of(20), locations_of(model), is_cached=True)
    variants = variants_of(model, intact)
    together = run_one_token(model, intact, variants)
    for index in range(0, len(variants), 5):
        alone = run_one_token(model, intact, [variants[index]])
        assert relative(together.final[:, index], alone.final[:, 0]) < ROUNDING


def test_a_variant_of_infinite_numbers_leaves_the_others_as_they_are():
    model = loaded("llama")
    at = Location(Site.RESID_PRE, MIDDLE)
    intact = run_intact(model, prompts_of(12), [at], is_cached=True)
    good = Variant({at: Remove(intact.final[0])})
    bad = Variant({at: Add(torch.full((model.dimensions.d_model,), 1e30), 1e30)})
    alone, among = (run_one_token(model, intact, some).final for some in ([good], [bad, good]))
    assert relative(among[:, 1], alone[:, 0]) < ROUNDING
    assert among[:, 0].isnan().any()


def test_prompts_of_a_batch_do_not_influence_each_other():
    model = loaded("gemma2")
    prompts = prompts_of(20, count=4)
    at = [Location(site, layer) for site in (Site.RESID_PRE, Site.RESID_MID) for layer in LAYERS]
    change = Remove(torch.randn(model.dimensions.d_model, generator=torch.Generator().manual_seed(0)))
    variants = [Variant({one: change}) for one in at]
    together = run_one_token(model, run_intact(model, prompts, at, is_cached=True), variants)
    for row, ids in enumerate(prompts):
        alone = run_one_token(model, run_intact(model, [ids], at, is_cached=True), variants)
        assert relative(together.final[row], alone.final[0]) < ROUNDING


def test_blocks_before_the_first_location_do_not_run():
    model = loaded("llama")
    at = [Location(Site.RESID_PRE, layer) for layer in range(5)]
    intact = run_intact(model, prompts_of(12), at, is_cached=True)
    columns = []
    handles = [
        block.mlp.register_forward_hook(lambda _, __, output, layer=layer: columns.append((layer, output.shape[1])))
        for layer, block in enumerate(model.blocks)
    ]
    variants = [Variant({one: Add(intact.final[0], dose)}) for dose in (1.0, 2.0) for one in at]
    run_one_token(model, intact, variants, columns=3)
    for handle in handles:
        handle.remove()
    # Two variants and an intact column start at each layer.
    assert columns == [(layer, 3) for start in range(5) for layer in range(start, 5)]


@each("dtype", [torch.bfloat16, torch.float16])
@each("family", ["llama", "gemma2"])
def test_the_routes_agree_in_half_precision(family, dtype):
    model = wrap(tiny.tiny_model(family).to(dtype))
    at = [Location(site, layer) for site in (Site.RESID_PRE, Site.RESID_MID) for layer in LAYERS]
    intact = run_intact(model, prompts_of(20), at, is_cached=True)
    variants = [Variant({one: change}) for one in at for change in changes_at(intact, one)]
    ours, theirs = run_one_token(model, intact, variants), run_full(model, intact, variants)
    assert relative(ours.final, theirs.final) < 4e-2
    same = run_one_token(model, intact, [Variant({one: Patch(intact.states[one].float())}) for one in at])
    assert torch.equal(same.final, intact.final[:, None].expand_as(same.final))


def test_a_reading_with_directions_holds_products_with_them():
    model = loaded("llama")
    at, later = Location(Site.RESID_PRE, FIRST), Location(Site.RESID_POST, LAST)
    intact = run_intact(model, prompts_of(12), [at, later], is_cached=True)
    directions = torch.eye(model.dimensions.d_model)[[3, 7]]
    variant = Variant({at: Remove(intact.states[at][0])})
    outcome = run_one_token(model, intact, [variant], [Reading(later), Reading(later, directions)])
    assert torch.equal(outcome.readings[0], outcome.final)
    assert torch.equal(outcome.readings[1], outcome.final[..., [3, 7]].double())


def test_a_forward_leaves_neither_hooks_nor_changed_blocks():
    model = loaded("llama")
    at = Location(Site.RESID_MID, MIDDLE)
    intact = run_intact(model, prompts_of(12), [at], is_cached=True)
    wrong = Variant({at: Patch(torch.ones(3))})  # not as wide as the state
    with pytest.raises(RuntimeError):
        run_one_token(model, intact, [wrong])
    run_one_token(model, intact, [Variant({at: Remove(intact.final[0])})])
    for module in model.module.modules():
        assert "forward" not in vars(module)
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_prompts_of_several_lengths_are_refused():
    with pytest.raises(ValueError, match=r"lengths \[3, 5\]; group them by length"):
        run_intact(loaded("llama"), tiny.random_tokens([3, 5]), [], is_cached=True)
    with pytest.raises(ValueError, match="at least one in a group"):
        run_intact(loaded("llama"), [], [], is_cached=True)


@each(
    "location, problem",
    [
        (Location(Site.RESID_PRE, 5), "no layer 5; this model has 0 to 4"),
        (Location(Site.RESID_MID, 0), "no resid_mid: attention and MLP run in parallel"),
        (Location(Site.HEAD_OUT, 0, 4), "no head 4; this model has 0 to 3"),
        (Location(Site.MLP_OUT, 0, 1), "mlp_out has no heads"),
        (Location(Site.RESID_FINAL, 4), "no resid_final: it is not a site of a block"),
    ],
)
def test_a_location_that_the_model_does_not_have_is_refused(location, problem):
    with pytest.raises(SiteNotFoundError, match=problem):
        run_intact(loaded("gptj"), prompts_of(5), [location], is_cached=True)


def test_the_one_token_route_needs_an_intact_forward_with_a_cache():
    model = loaded("llama")
    intact = run_intact(model, prompts_of(5), [], is_cached=False)
    with pytest.raises(ValueError, match="is_cached=True"):
        run_one_token(model, intact, [])
