"""One layer's statistics of nouns against the tables of the same layer, and against dense matrices."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from support import tiny
from transformers import AutoModel, AutoModelForCausalLM, AutoModelForMaskedLM

from theodolite.groups.schema import NULL_AND_LIMIT
from theodolite.groups.words.record import CONTROLS
from theodolite_jobs.groups.words.formulas import standardisation
from theodolite_jobs.groups.words.formulas_nouns import random_bases
from theodolite_jobs.groups.words.layer import READ_VECTORS, Decoding, layer_words
from theodolite_jobs.groups.words.nouns import (
    OFFSETS,
    layer_nouns,
    noun_results,
    own_key_chance,
    own_key_shares,
    spellings_of,
)
from theodolite_jobs.models.load import wrap
from theodolite_jobs.models.rotary import rotations
from theodolite_jobs.models.weights import Weights
from theodolite_jobs.results.circuits import input_embeddings, input_norm
from theodolite_jobs.statistics.permutations import DRAWS

LAYER, KNOWN, COUNT, HEADS, WIDTH = 2, 61, 5, 4, 48
NOUNS = np.array([40, 7, 23, 58, 11, 3])


@pytest.fixture(scope="module", params=["bert", "cohere", "gpt2", "llama", "llama-yarn", "olmo2"])
def weights(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    head = AutoModelForMaskedLM if request.param == "bert" else AutoModelForCausalLM
    tiny.tiny_model(request.param, auto_class=head).save_pretrained(folder)
    return Weights(folder, AutoModel.from_pretrained(folder).config)


@pytest.fixture(scope="module")
def decoding(weights):
    rows, norm = input_embeddings(weights), input_norm(weights, 0)  # layer 0's serves all, as in a survey
    embeddings = rows(slice(0, KNOWN)).double().numpy()
    standardised = None if norm is None else standardisation(rows, KNOWN, norm)
    tied = bool(weights.config.tie_word_embeddings)
    return Decoding(COUNT, KNOWN, NOUNS, embeddings[NOUNS], False, tied, standardised)


@pytest.fixture(scope="module")
def bases(weights):
    return random_bases(WIDTH, weights.dimensions.d_head, len(NOUNS))


@pytest.fixture(scope="module")
def nouns(weights, decoding, bases):
    return layer_nouns(weights, LAYER, decoding, bases)


@pytest.fixture(scope="module")
def frames(weights, decoding):
    none = {name: np.empty((HEADS, 0, WIDTH), dtype=np.float32) for name in (*READ_VECTORS, "ov right")}
    return layer_words(weights, LAYER, decoding, none, torch.device("cpu"))


def test_the_statistics_are_means_of_the_table_of_alignments(nouns, frames):
    by_head = frames["noun_alignment"].groupby("head")
    np.testing.assert_allclose(nouns.relatedness[0], by_head["correlation"].mean(), atol=1e-10)
    np.testing.assert_allclose(nouns.random[0], nouns.relatedness[0])
    firsts = by_head["own_rank"].agg(lambda ranks: (ranks == 1).mean())
    np.testing.assert_allclose(nouns.own_first[0], firsts)
    for values in (nouns.relatedness, nouns.random, nouns.own_first):
        assert values.shape == (1 + DRAWS, HEADS)
        assert np.isfinite(values).all()


def dense_keys(weights, offset):
    """Return the tokens with the largest scores for each noun at an offset, (head, noun, COUNT)."""
    attention, sizes = weights.attention(LAYER), weights.dimensions
    model = wrap(AutoModel.from_config(weights.config))
    embeddings = input_embeddings(weights)(slice(0, KNOWN)).double()
    read = embeddings
    if "attention" in model.anatomy.norms and not model.anatomy.post_norm:
        norm = weights.norm(LAYER, "attention")
        centred = read - read.mean(-1, keepdim=True) if norm.kind == "layer" else read
        scaled = centred / (centred.square().mean(-1, keepdim=True) + norm.epsilon).sqrt()
        read = scaled * torch.from_numpy(norm.scale) + torch.from_numpy(norm.bias)
    query, key = attention.q.double(), attention.k.double()
    for part, scale in (("q", attention.q_norm), ("k", attention.k_norm)):
        if scale is not None:
            projection = query if part == "q" else key
            if model.anatomy.norm_kind == "layer":
                projection = projection - projection.mean(-1, keepdim=True)
            projection = projection * scale.double()[:, None]
            query, key = (projection, key) if part == "q" else (query, projection)
    turned = torch.from_numpy(rotations(weights.config, model.anatomy, LAYER, [offset])[0])
    group = sizes.n_heads // sizes.n_kv_heads
    scores = [read[NOUNS] @ query[head] @ turned @ key[head // group].T @ read.T for head in range(HEADS)]
    return torch.stack(scores).topk(COUNT).indices.numpy()


def test_keys_at_other_offsets_are_compared_with_those_at_offset_zero(weights, nouns):
    if not weights.anatomy.positions.startswith("rotary"):
        assert nouns.offsets is None
        return
    table = nouns.offsets.set_index(["offset", "head"])["share_kept"]
    assert len(table) == len(OFFSETS) * HEADS
    assert (nouns.offsets["n"] == len(NOUNS)).all()
    at_zero = dense_keys(weights, 0)
    for offset in OFFSETS:
        at_offset = dense_keys(weights, offset)
        for head in range(HEADS):
            lists = zip(at_zero[head], at_offset[head], strict=True)
            shares = [len(set(first) & set(second)) / COUNT for first, second in lists]
            np.testing.assert_allclose(table[offset, head], np.mean(shares), atol=1e-12)


def test_results_have_each_head_and_the_scores_of_the_largest_z(weights, decoding, nouns):
    arrays, tables = noun_results(weights, decoding, lambda *_: None)
    n_layers = weights.dimensions.n_layers
    assert {values.shape[:2] for values in arrays.values()} == {(n_layers, HEADS)}
    np.testing.assert_allclose(arrays["relatedness"][LAYER], nouns.relatedness[0])
    null = dict(zip(NULL_AND_LIMIT, np.moveaxis(arrays["relatedness_null"], -1, 0), strict=True))
    for control, draws in (("permuted", nouns.relatedness), ("random", nouns.random)):
        mean = null["mean"][LAYER, :, CONTROLS.index(control)]
        np.testing.assert_allclose(mean, draws[1:].mean(axis=0), atol=1e-12)
    assert ("noun_offsets" in tables) == weights.anatomy.positions.startswith("rotary")
    scores = tables["noun_scores"]
    layer, head = np.unravel_index(np.nanargmax(null["z"][..., CONTROLS.index("permuted")]), (n_layers, HEADS))
    assert len(scores) == len(NOUNS) ** 2
    assert set(zip(scores["layer"], scores["head"], strict=True)) == {(layer, head)}
    others = scores[scores["noun_id"] != scores["key_id"]]
    correlations = [rows["similarity"].corr(rows["score"], method="spearman") for _, rows in others.groupby("noun_id")]
    np.testing.assert_allclose(np.mean(correlations), arrays["relatedness"][layer, head], atol=1e-10)


def test_without_nouns_all_statistics_are_missing(weights, decoding):
    none = replace(decoding, nouns=NOUNS[:0], noun_embeddings=decoding.noun_embeddings[:0])
    arrays, tables = noun_results(weights, none, lambda *_: None)
    assert all(np.isnan(values).all() for values in arrays.values())
    assert tables == {}


def test_a_noun_is_a_key_of_itself_in_any_case_and_with_spaces():
    spellings = spellings_of([" Time", "time", "TIME ", "year", " times"])
    assert spellings[0] == spellings[1] == spellings[2]
    assert len(set(spellings.tolist())) == 3
    keys = pd.DataFrame(
        [(0, 1, 3), (0, 1, 0), (0, 3, 4), (0, 3, 0), (1, 1, 4), (1, 1, 3), (1, 3, 4), (1, 3, 0)],
        columns=["head", "noun_id", "token_id"],
    )
    np.testing.assert_allclose(own_key_shares(keys, spellings, 3), [0.5, 0, np.nan])
    # One of five tokens is a random key: it is a spelling of “time” with the probability 3/5 or so, of “year” with 1/5.
    np.testing.assert_allclose(own_key_chance(np.array([1, 3]), spellings, 1), np.mean([1 - 0.8**3, 0.2]))
    assert np.isnan(own_key_chance(NOUNS[:0], spellings, 1))
