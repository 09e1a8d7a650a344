"""The directions around attention, against means of each sample's own norm."""

import numpy as np
import pytest
from support import tiny
from support.analysing import analyse, context_of
from support.stored import store_run
from support.tiny_configs import CONFIGS

from theodolite.spec_options import HeadsSpec
from theodolite.store.result_reader import read_group
from theodolite_jobs.groups.heads.layer import SIDES, decompose_layer
from theodolite_jobs.groups.heads.stream import Directions
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.statistics.permutations import DRAWS

WIDTH, LAYERS, LAYER = 48, 5, 2
CONTRASTS = {"refusal": {"positive": "bad", "negative": "good", "paired": True}}
SITES = ("resid_pre", "resid_mid")


def draw(n, seed):
    """Return samples whose lengths differ widely, so that the norm changes the difference of the means."""
    rng = np.random.default_rng(seed)
    lengths = np.exp(rng.normal(size=(n, 1, LAYERS, 1)))
    return {site: (lengths * (rng.normal(size=(n, 1, LAYERS, WIDTH)) + seed)).astype(np.float32) for site in SITES}


@pytest.fixture(params=["llama", "gpt2", "bert"])
def around(request, tmp_path):
    """Return the weights, both sets at attention's input, the directions, and those around one layer."""
    tiny.tiny_model(request.param).save_pretrained(tmp_path / "model")
    weights = Weights(tmp_path / "model", CONFIGS[request.param])
    arrays = {"bad": draw(12, seed=0), "good": draw(12, seed=1)}
    run = store_run(tmp_path / "store", arrays, contrasts=CONTRASTS)
    analyse(run, CONTRASTS)
    directions = Directions(context_of(run, CONTRASTS, weights=weights), weights)
    sets = [of_set["resid_pre"][:, 0, LAYER].astype(np.float64) for of_set in arrays.values()]
    return weights, sets, directions, directions.around(LAYER), read_group(run, "directions")


def standardised(x, weights):
    """Apply the norm before attention to each sample, without its scale."""
    if weights.anatomy.post_norm:
        return x
    norm = weights.norm(LAYER, "attention")
    x = x - x.mean(axis=1, keepdims=True) if norm.kind == "layer" else x
    return x / np.sqrt((x**2).mean(axis=1, keepdims=True) + norm.epsilon)


def unit(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


def test_the_direction_at_the_input_is_the_difference_of_means_after_the_norm(around):
    weights, (bad, good), directions, stream, stored = around
    expected = unit(standardised(bad, weights).mean(axis=0) - standardised(good, weights).mean(axis=0))
    np.testing.assert_allclose(stream.read[0], expected, atol=1e-12)
    raw = stored["direction"].sel(space="raw", contrast="refusal", site="resid_pre", position=-1)[LAYER].values
    if not weights.anatomy.post_norm:  # the linear part of the norm is another direction
        scale = np.ones(WIDTH)
        centred = raw - raw.mean() if weights.norm(LAYER, "attention").kind == "layer" else raw
        assert unit(centred * scale) @ expected < 0.99
    assert directions.n_prompts == {"refusal": [12, 12]}


def test_draws_have_the_same_statistic_with_other_labels(around):
    weights, (bad, good), directions, stream, _ = around
    (permuted,) = directions._permuted
    both = standardised(np.concatenate([bad, good]), weights)
    assert stream.read_draws.shape == (1, 1 + DRAWS, WIDTH)
    for index in (0, 1, DRAWS):
        labels = permuted.labels[index]
        expected = unit(both[labels].mean(axis=0) - both[~labels].mean(axis=0))
        np.testing.assert_allclose(stream.read_draws[0, index], expected, atol=1e-11)


def test_the_direction_at_the_output_is_the_stored_one(around):
    _, _, _, stream, stored = around
    raw = stored["direction"].sel(space="raw", contrast="refusal", site="resid_mid", position=-1)[LAYER].values
    np.testing.assert_allclose(stream.written[0], raw, atol=1e-12)


@pytest.mark.parametrize("fold_norm", [False, True])
def test_alignments_of_the_reading_sides_are_those_of_the_difference_of_normed_means(around, fold_norm):
    weights, (bad, good), _, stream, _ = around
    heads = HeadsSpec(vectors=2, fold_norm=fold_norm)
    found = decompose_layer(weights, LAYER, heads, stream, (0, 0), None)
    d = standardised(bad, weights).mean(axis=0) - standardised(good, weights).mean(axis=0)
    attention = weights.attention(LAYER)
    value, output = (getattr(attention, name).double().numpy() for name in ("v", "o"))
    norm = None if weights.anatomy.post_norm else weights.norm(LAYER, "attention")
    group = len(output) // len(value)
    for head in range(len(output)):
        whole = value[head // group] @ output[head]
        read = d
        if norm is not None and fold_norm:
            whole = norm.scale[:, None] * whole
            whole = whole - whole.mean(axis=0) if norm.kind == "layer" else whole
        elif norm is not None:
            read = d * norm.scale
        alignment = np.linalg.norm(unit(read) @ whole) / np.linalg.norm(whole, 2)
        np.testing.assert_allclose(found["direction_alignment"][0, SIDES.index("ov_read"), head], alignment, rtol=1e-9)
    np.testing.assert_allclose(found["alignment_draws"][:, :3, 0], found["direction_alignment"][:, :3], rtol=1e-11)


def test_keys_of_an_earlier_layer_have_the_directions_that_this_layer_reads(tmp_path):
    tiny.tiny_model("gemma4").save_pretrained(tmp_path / "model")
    weights = Weights(tmp_path / "model", CONFIGS["gemma4"].text_config)
    run = store_run(tmp_path / "store", {"bad": draw(12, seed=0), "good": draw(12, seed=1)}, contrasts=CONTRASTS)
    analyse(run, CONTRASTS)
    directions = Directions(context_of(run, CONTRASTS, weights=weights), weights)
    around = [directions.around(layer) for layer in range(LAYERS)]
    assert [stream.source_read is None for stream in around] == [True, True, True, False, False]
    for layer, source in ((3, 1), (4, 2)):
        np.testing.assert_array_equal(around[layer].source_read, around[source].read)
        np.testing.assert_array_equal(around[layer].source_draws, around[source].read_draws)
        assert np.abs(around[layer].source_read - around[layer].read).max() > 0.01
