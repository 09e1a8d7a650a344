"""Lists of tokens, ranks and comparisons of tables, against whole sorts and plain NumPy, for any block size."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr

from theodolite_jobs.statistics import words
from theodolite_jobs.statistics.norms import Norm, normalised
from theodolite_jobs.statistics.words import (
    RankedTokens,
    Request,
    alignment,
    embedding_lengths,
    embedding_sphere,
    standardised_rows,
    token_ranks,
    top_tokens,
)

TOKENS, WIDTH = 53, 12


@pytest.fixture(params=[1, 2, 10, 52, 53, 1000])
def blocks(request, monkeypatch):
    """Blocks of all sizes: one row, some that leave a rest, all but one, all, more than there are."""
    monkeypatch.setattr(words, "BLOCK_TOKENS", request.param)
    return request.param


def integers(*shape, seed=0):
    """Whole numbers, of which float32 loses nothing, so that scores are the same in any block."""
    return np.random.default_rng(seed).integers(-9, 10, size=shape).astype(np.float64)


def draw(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape)


def rows_of(table):
    stored = torch.from_numpy(table.astype(np.float32))
    return lambda some: stored[some]


def sorted_tokens(vectors, table, count, end):
    """Return ids and scores by a whole sort in float64."""
    scores = vectors @ table.T
    order = np.argsort(-scores if end == "top" else scores, axis=-1)[..., :count]
    return order, np.take_along_axis(scores, order, axis=-1)


@pytest.mark.parametrize("count", [1, 7, 53, 60])
def test_top_tokens_are_those_of_a_whole_sort(blocks, count):
    table = draw(60, WIDTH)  # the tokenizer knows fewer than it has rows
    vectors = {"heads": draw(3, 2, WIDTH, seed=1), "one": draw(WIDTH, seed=2)[None], "nouns": draw(4, WIDTH, seed=3)}
    ends = {"heads": ("top", "bottom"), "one": ("bottom",), "nouns": ("top",)}
    requests = [Request(vectors[name], ends[name]) for name in vectors]
    found = top_tokens(rows_of(table), TOKENS, requests, count)
    for name, tops in zip(vectors, found, strict=True):
        assert tuple(tops) == ends[name]
        for end, of_end in tops.items():
            ids, scores = sorted_tokens(vectors[name], table[:TOKENS], count, end)
            np.testing.assert_array_equal(of_end.ids, ids)
            np.testing.assert_allclose(of_end.scores, scores, atol=1e-5)  # sums of a dozen products in float32
            assert of_end.scores.dtype == np.float64


@pytest.mark.parametrize("end", ["top", "bottom"])
def test_tokens_of_equal_score_are_in_the_order_of_their_ids(blocks, end):
    table, vectors = integers(TOKENS, WIDTH) // 2, integers(40, WIDTH, seed=1)
    scores = vectors @ table.T
    expected = np.argsort(-scores if end == "top" else scores, axis=1, kind="stable")[:, :9]
    assert any(len(np.unique(scores[row, ids])) < 9 for row, ids in enumerate(expected))
    (found,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], 9)
    np.testing.assert_array_equal(found[end].ids, expected)


@pytest.mark.parametrize("end", ["top", "bottom"])
def test_tokens_without_a_score_follow_all_others(blocks, end):
    table, vectors = draw(TOKENS, WIDTH), draw(3, WIDTH, seed=1)
    table[[2, TOKENS - 1]] = np.nan
    (found,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], 9)
    known = np.flatnonzero(np.isfinite(table[:, 0]))
    expected, _ = sorted_tokens(vectors, table[known], 9, end)
    np.testing.assert_array_equal(found[end].ids, known[expected])
    (everything,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], TOKENS)
    assert everything[end].ids[:, -2:].tolist() == [[2, TOKENS - 1]] * 3


def test_a_request_uses_its_own_columns_of_the_table(blocks):
    table, narrow, wide = draw(TOKENS, 20), draw(3, 4, seed=1), draw(3, 20, seed=2)
    found = top_tokens(rows_of(table), TOKENS, [Request(narrow, ("top",), 9), Request(wide, ("top",))], 5)
    for tops, vectors, columns in zip(found, (narrow, wide), (slice(9, 13), slice(None)), strict=True):
        np.testing.assert_array_equal(tops["top"].ids, sorted_tokens(vectors, table[:, columns], 5, "top")[0])


def test_a_request_without_vectors_returns_no_lists():
    (found,) = top_tokens(rows_of(draw(TOKENS, WIDTH)), TOKENS, [Request(np.empty((3, 0, WIDTH)), ("top",))], 5)
    assert found["top"].ids.shape == (3, 0, 5)


def test_shifted_scores_keep_their_tokens():
    tops = RankedTokens(np.array([[[4, 2], [1, 0]]]), np.array([[[3.0, 1.0], [2.0, -1.0]]]))
    shifted = tops.shifted(np.array([[10.0, -1.0]]))
    assert shifted.scores.tolist() == [[[13.0, 11.0], [1.0, -2.0]]]
    np.testing.assert_array_equal(shifted.ids, tops.ids)


def test_ranks_count_what_scores_higher_and_ties_rank_alike(blocks):
    table, vectors = integers(TOKENS, WIDTH), integers(40, WIDTH, seed=1)
    table[7] = table[3]  # whole numbers tie elsewhere too
    tokens = np.random.default_rng(2).integers(0, TOKENS, size=40)
    tokens[:2] = 3, 7
    scores = vectors @ table.T
    expected = (scores > scores[np.arange(40), tokens][:, None]).sum(axis=1) + 1
    np.testing.assert_array_equal(token_ranks(rows_of(table), TOKENS, vectors, tokens), expected)


def test_ranks_equal_the_positions_in_a_whole_sort(blocks):
    table, vectors = draw(60, WIDTH), draw(TOKENS, WIDTH, seed=1)
    tokens = np.random.default_rng(2).permutation(TOKENS)
    order, _ = sorted_tokens(vectors, table[:TOKENS], TOKENS, "top")
    expected = [order[row].tolist().index(token) + 1 for row, token in enumerate(tokens)]
    assert token_ranks(rows_of(table), TOKENS, vectors, tokens).tolist() == expected


def test_a_token_is_never_above_itself(blocks):
    """Sums of many float32 products, which differ in the last digit by how many rows are multiplied at once."""
    table = draw(TOKENS, 700)
    ranks = token_ranks(rows_of(table), TOKENS, table * 1e3, np.arange(TOKENS))
    assert ranks.tolist() == [1] * TOKENS


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_standard_rows_have_neither_scale_nor_bias(kind):
    table, scale, bias = draw(TOKENS, WIDTH), *draw(2, WIDTH, seed=1)
    norm = Norm(kind, 1e-5, scale, bias)
    found = standardised_rows(rows_of(table), norm)(slice(3, 9))
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy() * scale + bias, normalised(table, norm)[3:9], atol=1e-6)


def test_alignment_of_three_words_by_hand():
    read = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    # Similarity: word 0 with 1 and 2 is 1 and 0, word 1 with 0 and 2 is 1 and 2, word 2 with 0 and 1 is 0 and 2.
    left = np.array([[0.0], [1.0]])
    right = np.array([[1.0], [0.0]])
    # W = left rightᵀ makes of a query its second component, times a key's first: rows (0 0 0), (1 1 0), (2 2 0).
    found = alignment(read, left, right)
    np.testing.assert_array_equal(found["before"], [1, 2, 1])
    assert np.isnan(found["correlation"][0])  # all alike after
    np.testing.assert_allclose(found["correlation"][1:], [-1, np.nan], rtol=1e-15)
    assert found["after"][1] == 0
    assert found["own_rank"].tolist() == [1, 1, 3]


@pytest.mark.parametrize("n_words", [3, 4, 30])
def test_alignment_is_spearmans_of_the_other_words(n_words):
    read, left, right = integers(n_words, WIDTH), integers(WIDTH, 3, seed=1), integers(WIDTH, 3, seed=2)
    read[1] = read[0]  # a tie, of which both have the mean of their ranks
    found = alignment(read, left, right)
    before, after = read @ read.T, read @ left @ right.T @ read.T
    for word in range(n_words):
        others = np.delete(np.arange(n_words), word)
        if np.ptp(before[word, others]) and np.ptp(after[word, others]):
            expected = spearmanr(before[word, others], after[word, others]).statistic
            np.testing.assert_allclose(found["correlation"][word], expected, atol=1e-14)
        assert found["before"][word] == others[before[word, others].argmax()]
        assert found["after"][word] == others[after[word, others].argmax()]
        assert found["own_rank"][word] == (after[word] > after[word, word]).sum() + 1


def test_the_nearest_of_two_words_is_the_other():
    two = alignment(draw(2, WIDTH), draw(WIDTH, 3, seed=1), draw(WIDTH, 3, seed=2))
    assert two["before"].tolist() == two["after"].tolist() == [1, 0]
    assert np.isnan(two["correlation"]).all()


def test_a_single_word_has_no_alignment():
    one = alignment(draw(1, WIDTH), draw(WIDTH, 3, seed=1), draw(WIDTH, 3, seed=2))
    assert np.isnan(one["correlation"]).all()
    assert one["own_rank"].tolist() == [1]


@pytest.mark.parametrize("kind", ["rms", "layer"])
def test_distances_to_the_sphere_are_those_of_plain_numpy(blocks, kind):
    table = (draw(TOKENS, WIDTH) + draw(WIDTH, seed=1)).astype(np.float32)
    norm = Norm(kind, 1e-3, *draw(2, WIDTH, seed=2))
    exact = table.astype(np.float64)
    sphere = exact - exact.mean(axis=1, keepdims=True) if kind == "layer" else exact
    sphere = sphere / np.sqrt((sphere**2).mean(axis=1, keepdims=True) + 1e-3)
    centred = exact - exact.mean(axis=0)
    factor = WIDTH**0.5 / np.linalg.norm(exact, axis=1).mean()
    changed = {
        "original": exact,
        "centred": centred,
        "scaled": exact * factor,
        "centred and scaled": centred * factor,
    }
    found = embedding_sphere(rows_of(table), TOKENS, norm)
    assert [row["setting"] for row in found] == list(changed)
    for row, values in zip(found, changed.values(), strict=True):
        l2 = np.linalg.norm(values - sphere, axis=1)
        cosine = (values * sphere).sum(axis=1) / np.linalg.norm(values, axis=1) / np.linalg.norm(sphere, axis=1)
        assert row["n"] == TOKENS
        np.testing.assert_allclose([row["l2_mean"], row["l2_std"]], [l2.mean(), l2.std(ddof=1)], rtol=1e-12)
        theirs = [(1 - cosine).mean(), (1 - cosine).std(ddof=1)]
        # 1 − cosine has lost its digits where the two are parallel
        ours = [row["cosine_distance_mean"], row["cosine_distance_std"]]
        np.testing.assert_allclose(ours, theirs, rtol=1e-12, atol=1e-15)


def test_rows_of_zeros_have_no_direction_and_are_left_out(blocks):
    table = draw(TOKENS, WIDTH).astype(np.float32)
    table[[0, 20]] = 0
    norm = Norm("rms", 1e-5, np.ones(WIDTH), np.zeros(WIDTH))
    found = {row["setting"]: row for row in embedding_sphere(rows_of(table), TOKENS, norm)}
    kept = np.delete(table, [0, 20], axis=0).astype(np.float64)
    sphere = kept / np.sqrt((kept**2).mean(axis=1, keepdims=True) + 1e-5)
    assert found["original"]["n"] == found["scaled"]["n"] == TOKENS - 2
    np.testing.assert_allclose(found["original"]["l2_mean"], np.linalg.norm(kept - sphere, axis=1).mean(), rtol=1e-12)


def test_rms_distances_of_what_is_only_scaled_are_known():
    """The sphere keeps directions, and all embeddings of one length are put on it by the scale alone."""
    table = draw(TOKENS, WIDTH)
    table /= np.linalg.norm(table, axis=1, keepdims=True)
    norm = Norm("rms", 0.0, np.ones(WIDTH), np.zeros(WIDTH))
    found = {row["setting"]: row for row in embedding_sphere(rows_of(table), TOKENS, norm)}
    assert found["original"]["cosine_distance_mean"] < 1e-12
    assert found["scaled"]["l2_mean"] < 1e-6  # the table is in float32
    np.testing.assert_allclose(found["original"]["l2_mean"], WIDTH**0.5 - 1, rtol=1e-6)


@pytest.mark.parametrize("biased", [True, False])
def test_lengths_of_embeddings_are_those_of_plain_numpy(blocks, biased):
    table, (scale, bias) = draw(TOKENS, WIDTH).astype(np.float32), draw(2, WIDTH, seed=1)
    found = embedding_lengths(rows_of(table), TOKENS, Norm("layer", 1e-5, scale, bias if biased else 0 * bias))
    exact = table.astype(np.float64)
    plain, scaled = (np.sqrt((values**2).sum(axis=1)) for values in (exact, exact * scale))
    expected = {"norm": plain, "scaled norm": scaled}
    if biased:
        expected |= {"norm + bias": plain + exact @ bias, "scaled norm + bias": scaled + exact @ bias}
    assert list(found) == list(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-12, atol=1e-14)
