"""Two ranks that share a model measure the same effects as one process, also of the heads, which they divide."""

import numpy as np
import pytest
import torch
from support import tiny
from support.nightly import at_night
from support.rank_group import Group

from theodolite.sites import Site
from theodolite_jobs.effects.measure import measure
from theodolite_jobs.effects.next_token import LogitHead
from theodolite_jobs.effects.routes import why_full_route
from theodolite_jobs.effects.work import Question, Vectors
from theodolite_jobs.models.load import load_model

LAYERS = (1, 4)
QUESTION = Question((Site.RESID_PRE,), LAYERS, (-1.0, 1.0), (1, 2), (3,), is_paired=True, has_parts=True)
TOKENS = tiny.random_tokens([9, 12, 9, 9])
DRAWS = 2
BOUND = 5e-5


@pytest.fixture(scope="module")
def group():
    group = Group(2)
    yield group
    group.close()


def effects(folder, ranks):
    """Return all numbers of an analysis, and whether variants run full forwards."""
    model = load_model(folder, dtype="float32", ranks=ranks)
    d, places = model.dimensions.d_model, len(QUESTION.places)
    rng = np.random.default_rng(0)

    def floats(*shape):
        return rng.normal(size=shape).astype(np.float32)

    controls = [floats(DRAWS, places, d) for _ in range(2)]
    vectors = Vectors(floats(places, d), floats(2, places, d), *controls, floats(len(LAYERS), d), LAYERS)
    head = LogitHead(torch.randn(64, d, generator=torch.Generator().manual_seed(0)))
    return measure(model, head, QUESTION, vectors, TOKENS), why_full_route(model) is not None


def effects_of_rank(rank, folder):
    return effects(folder, rank.size)


@pytest.mark.nightly
# Query heads that share keys and values, parallel blocks, and norms behind attention and MLP.
@pytest.mark.parametrize("family", ["gemma2", *at_night(["gpt_neox", "llama"])])
def test_two_ranks_measure_the_same_effects_as_one_process(family, group, tmp_path):
    tiny.tiny_model(family).save_pretrained(tmp_path)
    whole, takes_full_route = effects(tmp_path, 1)
    (first, first_takes_it), (second, second_takes_it) = group.run(effects_of_rank, tmp_path)
    assert (takes_full_route, first_takes_it, second_takes_it) == (False, True, True)
    assert set(first) == set(second) == set(whole) >= {"head_kl", "head_direct", "block_kl", "block_direct"}
    for name in sorted(set(whole) - {"route_error", "intact_error"}):  # these compare the routes
        assert np.isfinite(whole[name]).all(), name
        np.testing.assert_array_equal(first[name], second[name], err_msg=name)
        error = np.abs(first[name] - whole[name]) / np.maximum(np.abs(whole[name]), 1)
        assert error.max() <= BOUND, name
    changed = np.abs(whole["head_log_odds"])
    assert (changed.reshape(-1, changed.shape[-1]).max(axis=0) > 100 * BOUND).all()  # of every head, so of both ranks
