"""Gram matrices of token counts against explicit vectors of counts."""

import numpy as np

from theodolite_jobs.statistics.token_counts import gram_of_token_counts

PROMPTS = [(5, 7, 7, 900), (7, 5), (11, 11, 11), (5, 7)]


def test_a_prompt_is_a_vector_of_counts():
    counts = np.array([[1, 2, 0, 1], [1, 1, 0, 0], [0, 0, 3, 0], [1, 1, 0, 0]], dtype=float)  # of 5, 7, 11 and 900
    counts -= counts.mean(axis=0)
    gram = gram_of_token_counts(PROMPTS)
    np.testing.assert_allclose(gram, counts @ counts.T, atol=1e-12)
    np.testing.assert_array_equal(gram[1], gram[3], "the order of the tokens has no effect")


def test_equal_prompts_have_no_counts():
    np.testing.assert_array_equal(gram_of_token_counts([(3, 4, 4)] * 5), np.zeros((5, 5)))
