"""Lists of tokens, ranks and comparisons of tables, against whole sorts and plain NumPy, for any block size."""

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from support.each import each

from theodolite_jobs.groups.words import formulas as words
from theodolite_jobs.groups.words.formulas import (
    RankedTokens,
    Request,
    alignment,
    augmented,
    standardisation,
    standardised_rows,
    token_ranks,
    top_tokens,
    with_bias,
)
from theodolite_jobs.statistics.norms import Norm, normalised, standardised

TOKENS, WIDTH = 53, 12
CPU = torch.device("cpu")


MORE_BLOCKS = [(2, 2, 1), (53, 64, 1000), (1000, 53, 2), (52, 2, 1000)]


@pytest.fixture(
    params=[
        (1, 1, 1000),
        (10, 1, 3),
        (52, 4, 7),
        *(pytest.param(sizes, marks=pytest.mark.nightly) for sizes in MORE_BLOCKS),
    ],
    ids=str,
)
def blocks(request, monkeypatch):
    """Blocks of all sizes: one row, some that leave a rest, all but one, all, more than there are.

    With each, groups of tokens that fill a block or not, and parts of the vectors.
    """
    block, group, n_vectors = request.param
    monkeypatch.setattr(words, "BLOCK_TOKENS", block)
    monkeypatch.setattr(words, "GROUP_TOKENS", group)
    monkeypatch.setattr(words, "SCORE_BYTES", 4 * block * n_vectors)
    return block


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


@each("count", [1, 7, 53, 60])
def test_top_tokens_are_those_of_a_whole_sort(blocks, count):
    table = draw(60, WIDTH)  # the tokenizer knows fewer than it has rows
    vectors = {"heads": draw(3, 2, WIDTH, seed=1), "one": draw(WIDTH, seed=2)[None], "nouns": draw(4, WIDTH, seed=3)}
    ends = {"heads": ("top", "bottom"), "one": ("bottom",), "nouns": ("top",)}
    requests = [Request(vectors[name], ends[name]) for name in vectors]
    found = top_tokens(rows_of(table), TOKENS, requests, count, CPU)
    for name, tops in zip(vectors, found, strict=True):
        assert tuple(tops) == ends[name]
        for end, of_end in tops.items():
            ids, scores = sorted_tokens(vectors[name], table[:TOKENS], count, end)
            np.testing.assert_array_equal(of_end.ids, ids)
            np.testing.assert_allclose(of_end.scores, scores, atol=1e-5)  # sums of a dozen products in float32
            assert of_end.scores.dtype == np.float64


@each("end", ["top", "bottom"])
def test_tokens_of_equal_score_are_in_the_order_of_their_ids(blocks, end):
    table, vectors = integers(TOKENS, WIDTH) // 2, integers(40, WIDTH, seed=1)
    scores = vectors @ table.T
    expected = np.argsort(-scores if end == "top" else scores, axis=1, kind="stable")[:, :9]
    assert any(len(np.unique(scores[row, ids])) < 9 for row, ids in enumerate(expected))
    (found,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], 9, CPU)
    np.testing.assert_array_equal(found[end].ids, expected)


@each("end", ["top", "bottom"])
def test_tokens_without_a_score_follow_all_others(blocks, end):
    table, vectors = draw(TOKENS, WIDTH), draw(3, WIDTH, seed=1)
    table[[2, TOKENS - 1]] = np.nan
    (found,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], 9, CPU)
    known = np.flatnonzero(np.isfinite(table[:, 0]))
    expected, _ = sorted_tokens(vectors, table[known], 9, end)
    np.testing.assert_array_equal(found[end].ids, known[expected])
    (everything,) = top_tokens(rows_of(table), TOKENS, [Request(vectors, (end,))], TOKENS, CPU)
    assert everything[end].ids[:, -2:].tolist() == [[2, TOKENS - 1]] * 3


def ranked(values, count, end):
    """Return the ids of a list by a stable sort of Python's, in which a token without a score is last."""
    sign = 1 if end == "top" else -1

    def rank(token):
        return (bool(np.isnan(values[token])), 0.0 if np.isnan(values[token]) else -sign * values[token], token)

    return sorted(range(len(values)), key=rank)[:count]


@each("count", [1, 20, 300])
def test_lists_of_a_table_with_bias_are_exact_also_with_ties_and_missing_scores(monkeypatch, count):
    """Whole numbers, so each score is exact, in blocks of two groups and a rest, and parts of five vectors."""
    monkeypatch.setattr(words, "BLOCK_TOKENS", 128)
    monkeypatch.setattr(words, "SCORE_BYTES", 4 * 128 * 5)
    n_tokens, vectors = 300, integers(17, WIDTH, seed=1)
    table, bias = integers(n_tokens, WIDTH) // 3, integers(n_tokens, seed=2)
    table[40:60] = table[5]  # more ties than a list is long
    table[[3, 130, 299]], bias[200] = np.nan, np.nan
    stored = torch.from_numpy(bias.astype(np.float32))
    request = Request(augmented(vectors, stored), ("top", "bottom"))
    (found,) = top_tokens(with_bias(rows_of(table), stored), n_tokens, [request], count, CPU)
    scores = vectors @ table.T + bias
    for end, tokens in found.items():
        expected = np.array([ranked(row, count, end) for row in scores])
        np.testing.assert_array_equal(tokens.ids, expected)
        np.testing.assert_array_equal(tokens.scores, np.take_along_axis(scores, expected, axis=1))


@each("n_vectors", [1, 1024, 1025, 10_000])
def test_the_scores_of_any_number_of_vectors_fit_the_limit(n_vectors):
    parts = words._parts(np.zeros((n_vectors, 1)), CPU)
    assert sum(len(part) for part in parts) == n_vectors
    assert max(4 * len(part) * words.BLOCK_TOKENS for part in parts) <= words.SCORE_BYTES


def test_a_request_uses_its_own_columns_of_the_table(blocks):
    table, narrow, wide = draw(TOKENS, 20), draw(3, 4, seed=1), draw(3, 20, seed=2)
    found = top_tokens(rows_of(table), TOKENS, [Request(narrow, ("top",), 9), Request(wide, ("top",))], 5, CPU)
    for tops, vectors, columns in zip(found, (narrow, wide), (slice(9, 13), slice(None)), strict=True):
        np.testing.assert_array_equal(tops["top"].ids, sorted_tokens(vectors, table[:, columns], 5, "top")[0])


def test_a_request_without_vectors_returns_no_lists():
    (found,) = top_tokens(rows_of(draw(TOKENS, WIDTH)), TOKENS, [Request(np.empty((3, 0, WIDTH)), ("top",))], 5, CPU)
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
    np.testing.assert_array_equal(token_ranks(rows_of(table), TOKENS, vectors, tokens, CPU), expected)


def test_ranks_equal_the_positions_in_a_whole_sort(blocks):
    table, vectors = draw(60, WIDTH), draw(TOKENS, WIDTH, seed=1)
    tokens = np.random.default_rng(2).permutation(TOKENS)
    order, _ = sorted_tokens(vectors, table[:TOKENS], TOKENS, "top")
    expected = [order[row].tolist().index(token) + 1 for row, token in enumerate(tokens)]
    assert token_ranks(rows_of(table), TOKENS, vectors, tokens, CPU).tolist() == expected


def test_a_token_is_never_above_itself(blocks):
    """Sums of many float32 products, which differ in the last digit by how many rows are multiplied at once."""
    table = draw(TOKENS, 700)
    ranks = token_ranks(rows_of(table), TOKENS, table * 1e3, np.arange(TOKENS), CPU)
    assert ranks.tolist() == [1] * TOKENS


@each("kind", ["rms", "layer"])
def test_standard_rows_have_neither_scale_nor_bias(blocks, kind):
    table, scale, bias = draw(TOKENS, WIDTH), *draw(2, WIDTH, seed=1)
    norm, rows = Norm(kind, 1e-5, scale, bias), rows_of(table)
    found = standardised_rows(rows, standardisation(rows, TOKENS, norm), CPU)(slice(3, 9))
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), standardised(table.astype(np.float32), norm)[3:9])
    np.testing.assert_allclose(found.numpy() * scale + bias, normalised(table, norm)[3:9], atol=1e-6)


def test_alignment_of_three_words_by_hand():
    read = np.array([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]])
    # Similarity: word 0 with 1 and 2 is 1 and 0, word 1 with 0 and 2 is 1 and 2, word 2 with 0 and 1 is 0 and 2.
    left = np.array([[0.0], [1.0]])
    right = np.array([[1.0], [0.0]])
    # W = left rightᵀ makes of a query its second component, times a key's first: rows (0 0 0), (1 1 0), (2 2 0).
    found = alignment(read, read @ left, read @ right)
    np.testing.assert_array_equal(found["before"], [1, 2, 1])
    assert np.isnan(found["correlation"][0])  # all alike after
    np.testing.assert_allclose(found["correlation"][1:], [-1, np.nan], rtol=1e-15)
    assert found["after"][1] == 0
    assert found["own_rank"].tolist() == [1, 1, 3]


@each("n_words", [3, 4, 30])
def test_alignment_is_spearmans_of_the_other_words(n_words):
    read, left, right = integers(n_words, WIDTH), integers(WIDTH, 3, seed=1), integers(WIDTH, 3, seed=2)
    read[1] = read[0]  # a tie, of which both have the mean of their ranks
    found = alignment(read, read @ left, read @ right)
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
    two = alignment(draw(2, WIDTH), draw(2, 3, seed=1), draw(2, 3, seed=2))
    assert two["before"].tolist() == two["after"].tolist() == [1, 0]
    assert np.isnan(two["correlation"]).all()


def test_a_single_word_has_no_alignment():
    one = alignment(draw(1, WIDTH), draw(1, 3, seed=1), draw(1, 3, seed=2))
    assert np.isnan(one["correlation"]).all()
    assert one["own_rank"].tolist() == [1]
