"""What `measure` returns for the prompts of a contrast, on a tiny model and on a planted direction."""

import numpy as np
import pytest
import torch
from support import tiny

from theodolite.sites import Site
from theodolite_jobs.effects import measure as measure_module
from theodolite_jobs.effects.measure import measure
from theodolite_jobs.effects.next_token import LogitHead, next_token_change
from theodolite_jobs.effects.routes import prepare_variants, run_variants
from theodolite_jobs.effects.variants import Location, Patch, Remove, Variant
from theodolite_jobs.effects.work import Question, Vectors
from theodolite_jobs.models.load import wrap

LAYERS, DRAWS = (0, 2, 4), 6
QUESTION = Question((Site.RESID_PRE, Site.RESID_MID), LAYERS, (-1.0, 0.5, 1.0), (1, 2), (3,), True, True)
PLACES = len(QUESTION.places)
TOKENS = tiny.random_tokens([9, 12, 9, 9, 7, 12])


@pytest.fixture(scope="module")
def model():
    return wrap(tiny.tiny_model("llama"))


@pytest.fixture(scope="module")
def head(model):
    generator = torch.Generator().manual_seed(0)
    return LogitHead(torch.randn(64, model.dimensions.d_model, generator=generator))


def vectors_of(d, seed=0):
    rng = np.random.default_rng(seed)

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    differences = floats(PLACES, d)
    scores = differences[: len(LAYERS)]  # of resid_pre
    scores = scores / (scores**2).sum(axis=1, keepdims=True)
    draws = (DRAWS, PLACES, d)
    return Vectors(differences, floats(2, PLACES, d), floats(*draws), floats(*draws), scores, LAYERS)


@pytest.fixture(scope="module")
def measured(model, head):
    return measure(model, head, QUESTION, vectors_of(model.dimensions.d_model), TOKENS)


def test_every_prompt_has_a_number_for_each_place_and_control(measured):
    for name in ("kl", "log_odds"):
        assert measured[f"dose_{name}"].shape == (6, PLACES, 3)
        assert measured[f"remove_matched_{name}"].shape == (6, PLACES, DRAWS)
        assert measured[f"everywhere_permuted_{name}"].shape == (6, DRAWS)
        assert measured[f"head_{name}"].shape == (6, len(LAYERS), 4)
    finite = {name for name, values in measured.items() if np.isfinite(values).all()}
    assert set(measured) - finite == {"route_error"}  # of a sample
    assert np.nanmax(measured["route_error"]) < 5e-5
    assert measured["intact_error"].max() < 5e-5


def test_an_added_difference_is_the_dose_towards_the_other_set(measured):
    np.testing.assert_array_equal(measured["add_kl"][0::2], measured["dose_kl"][0::2, :, 0])
    np.testing.assert_array_equal(measured["add_kl"][1::2], measured["dose_kl"][1::2, :, 2])


def test_a_patch_gives_the_state_of_the_other_prompt_of_the_pair(model, head, measured):
    at = Location(Site.RESID_MID, 2)
    other = prepare_variants(model, [TOKENS[0]], [at]).states[at]
    intact = prepare_variants(model, [TOKENS[1]], [at])
    change = next_token_change(head, intact, run_variants(model, intact, [Variant({at: Patch(other)})]), [1, 2], [3])
    place = QUESTION.places.index((Site.RESID_MID, 2))
    np.testing.assert_allclose(measured["patch_kl"][1, place], change.kl[0, 0], rtol=1e-4)


def test_the_score_of_an_added_difference_is_1_where_it_is_added_and_0_before(measured):
    scores = measured["add_score"][:, 1]  # added at resid_pre of layer 2; read at layers 0, 2 and 4
    np.testing.assert_array_equal(scores[:, 0], 0)
    np.testing.assert_allclose(scores[:, 1], 1, rtol=1e-4)
    assert (scores[:, 2] != 0).all()


def test_the_last_mlp_acts_only_directly(measured):
    np.testing.assert_allclose(measured["mlp_direct"][:, -1], measured["mlp_log_odds"][:, -1], rtol=1e-3, atol=1e-5)
    assert not np.allclose(measured["mlp_direct"][:, 0], measured["mlp_log_odds"][:, 0], rtol=1e-2)


def test_fewer_columns_at_once_change_only_rounding(model, head, measured):
    small = measure(model, head, QUESTION, vectors_of(model.dimensions.d_model), TOKENS, columns=8)
    for name in ("patch_kl", "remove_permuted_kl", "head_log_odds", "everywhere_kl"):
        np.testing.assert_allclose(small[name], measured[name], rtol=1e-3, atol=1e-6)


def test_a_direction_of_length_0_changes_nothing(model, head):
    vectors = vectors_of(model.dimensions.d_model)
    for name in ("differences", "matched", "permuted"):
        getattr(vectors, name)[..., 0, :] = 0
    found = measure(model, head, QUESTION, vectors, TOKENS[:2])
    for name in ("remove_kl", "add_kl", "remove_matched_kl", "add_matched_log_odds"):
        assert (found[name][:, 0] == 0).all()
        assert (found[name][:, 1] != 0).all()


def test_unpaired_prompts_get_the_mean_state_of_the_other_set(model, head):
    question = Question((Site.RESID_PRE,), (2,), (-1.0, 1.0), (1, 2), (3,), is_paired=False, has_parts=False)
    d = model.dimensions.d_model
    own = prepare_variants(model, [TOKENS[0]], [Location(Site.RESID_PRE, 2)]).states[Location(Site.RESID_PRE, 2)]
    means = np.stack([np.ones((1, d)), own.numpy()]).astype(np.float32)  # the negative mean is prompt 0's own state
    none = np.zeros((DRAWS, 1, d), dtype=np.float32)
    vectors = Vectors(np.zeros((1, d), np.float32), means, none, none, np.zeros((0, d), np.float32))
    found = measure(model, head, question, vectors, TOKENS[:2])
    assert found["patch_kl"][0, 0] == 0
    assert found["patch_kl"][1, 0] > 0
    assert "head_kl" not in found


def test_a_removal_ignores_what_the_means_of_both_sets_have_along_the_direction(model, head):
    """A prompt at the midpoint of the means has nothing to remove, whatever its own coordinate is."""
    question = Question((Site.RESID_PRE,), (2,), (-1.0, 1.0), (1, 2), (3,), is_paired=False, has_parts=False)
    at = Location(Site.RESID_PRE, 2)
    own = prepare_variants(model, [TOKENS[0]], [at]).states[at].numpy()
    direction = np.random.default_rng(0).normal(size=own.shape).astype(np.float32)
    means = np.stack([own + direction, own - direction]).astype(np.float32)
    none = np.zeros((DRAWS, *own.shape), dtype=np.float32)
    vectors = Vectors(2 * direction, means, none, none, np.zeros((0, own.shape[1]), np.float32))
    found = measure(model, head, question, vectors, TOKENS[:2])
    assert found["remove_kl"][0, 0] < 1e-9
    assert found["remove_kl"][1, 0] > 1e-4


def test_a_state_moves_as_far_along_a_permuted_direction_as_along_the_removed_one(model):
    at = Location(Site.RESID_PRE, 2)
    intact = prepare_variants(model, [TOKENS[0], TOKENS[2]], [at])
    step, other, centre = (torch.randn(model.dimensions.d_model) for _ in range(3))
    states = intact.states[at]
    removed, moved = Remove(step, centre)(states) - states, Remove(step, centre, other)(states) - states
    np.testing.assert_allclose(removed.norm(dim=1), moved.norm(dim=1), rtol=1e-5)
    np.testing.assert_allclose(moved, (moved @ other)[:, None] * other / (other @ other), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(removed @ step / step.norm(), moved @ other / other.norm(), rtol=1e-4, atol=1e-5)


def test_the_routes_are_compared_for_a_longest_prompt_at_the_ends_and_between(model, head, monkeypatch):
    compared = []

    def record(_, intact, places):
        compared.append((intact.tokens.shape[1], [at.order for at in places]))
        return 1e-7 * intact.tokens.shape[1]

    monkeypatch.setattr(measure_module, "route_error", record)
    found = measure(model, head, QUESTION, vectors_of(model.dimensions.d_model), TOKENS)
    places = [Location(*QUESTION.places[index]).order for index in (0, PLACES // 2, PLACES - 1)]
    assert compared == [(12, places)]
    assert np.nanmax(found["route_error"]) == 1.2e-6
    assert np.isfinite(found["route_error"]).sum() == 1
