"""Sentences about words and length as controls of the separation of two sets."""

import numpy as np
import pytest
from support.finished_runs import cached_run

from theodolite.groups.separation.sections_permutations import beyond_facts, token_facts, token_finding
from theodolite.store.result_reader import read_group


def of_tokens(means, ridge):
    """Return the value and the interval of both classifiers."""
    return {
        name: dict(zip(("value", "low", "high"), one, strict=True))
        for name, one in (("means", means), ("ridge", ridge))
    }


TOKENS = {
    "tokens": {"auroc": of_tokens((0.565, 0.519, 0.61), (0.7, 0.65, 0.75))},
    "tokens_null": {"p": 0.00498},
    "tokens_is_ridge": {"auroc": 1.0},
}
TOKENS_AND_PAIRS = TOKENS | {
    "tokens": {**TOKENS["tokens"], "paired_accuracy": of_tokens((0.727, 0.668, 0.78), (0.8, 0.75, 0.85))}
}


def read_tests(tmp_path, **values):
    """Return the permutation tests of one contrast with these values."""
    tests = read_group(cached_run(tmp_path, {"permutations": values}), "permutations")
    return tests.sel(contrast="refusal", position=-1)


def difference(low, high):
    """Return a difference with its band at depths 0 pre, 0 mid, 1 pre, …"""
    low, high = (np.array(ends, dtype=float).reshape(4, 2).T[None, :, None] for ends in (low, high))
    return {"value": (low + high) / 2, "band_low": low, "band_high": high}


def test_both_classifiers_of_token_counts_are_stated(tmp_path):
    assert list(token_facts(read_tests(tmp_path, **TOKENS_AND_PAIRS))) == [
        "Token counts alone, without a model, give an AUROC of 0.565 [0.519, 0.610] by difference of means and 0.700 "
        "[0.650, 0.750] by ridge regression.",
        "They put 72.7 [66.8, 78.0] % of the held-out pairs in the right order by difference of means, and 80.0 [75.0, "
        "85.0] % by ridge regression.",
        "So words alone separate the sets better than chance (p = 0.005 and 0.005 against permuted labels).",
    ]


@pytest.mark.parametrize(("p", "verdict"), [(0.02, "separate"), (0.03, "are not shown to separate")])
def test_the_better_of_two_classifiers_must_pass_a_stricter_test(tmp_path, p, verdict):
    tests = {"tokens_null": {"p": {"means": p, "ridge": 0.2}}}
    *_, last = token_facts(read_tests(tmp_path, **TOKENS | tests))
    assert (
        last == f"So words alone {verdict} the sets better than chance (p = {p:.3f} and 0.200 against permuted labels)."
    )


@pytest.mark.parametrize(("equal", "is_weak"), [(0.95, True), (0.5, False)])
def test_token_counts_that_are_equal_in_most_pairs_say_little(tmp_path, equal, is_weak):
    tests = read_tests(tmp_path, **TOKENS_AND_PAIRS, tokens_equal_pairs=equal)
    _, pairs, last = token_facts(tests)
    assert f"({100 * equal:.1f} % have equal scores, which count half)" in pairs
    for text in (token_finding(tests), last):
        assert text.endswith("because they occur in no other prompt.") == is_weak


def test_without_token_counts_their_sentences_are_left_out(tmp_path):
    tests = read_tests(tmp_path)
    assert list(token_facts(tests)) == list(beyond_facts(tests)) == []


def test_the_finding_has_the_better_classifier_of_words(tmp_path):
    by_ridge = "Token counts alone, without a model, give an AUROC of 0.700 [0.650, 0.750] by ridge regression."
    assert token_finding(read_tests(tmp_path / "ridge", **TOKENS)) == by_ridge
    by_means = "Token counts alone, without a model, give an AUROC of 0.565 [0.519, 0.610] by difference of means."
    assert token_finding(read_tests(tmp_path / "means", **TOKENS | {"tokens_is_ridge": 0.0})) == by_means


def test_depths_at_which_activations_exceed_words_and_length_are_counted(tmp_path):
    some = difference([-1, -1, 0.1, 0.1, 0.1, -1, -1, -1], [-0.1, 1, 1, 1, 1, 1, 1, 1])
    more = difference([-1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], [1] * 8)
    pairs = difference([0.1] * 8, [1] * 8)
    words = {"auroc": some, "ridge_auroc": more, "paired_accuracy": pairs}
    length = dict.fromkeys(("auroc", "ridge_auroc"), difference([0.1] * 8, [1] * 8))
    tests = read_tests(tmp_path, **TOKENS, beyond={"words": words, "length": length})
    counts = (
        "at 3 of 8 depths (layers 1 pre to 2 pre) by difference of means and at 7 of 8 depths (layers 0 mid to 3 mid) "
        "by ridge regression"
    )
    assert list(beyond_facts(tests)) == [
        f"By simultaneous bands, activations have a larger AUROC than the better classifier of words {counts}. They "
        "have a smaller one at 1 depth by difference of means.",
        "By simultaneous bands, activations have a larger AUROC than their own length at 8 of 8 depths by both "
        "classifiers.",
        "By difference of means, activations put more pairs in the right order than words do at 8 of 8 depths.",
    ]
    assert token_finding(tests).endswith(f" by ridge regression; activations are shown to exceed it {counts}.")
