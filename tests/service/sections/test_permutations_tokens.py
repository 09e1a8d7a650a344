"""Sentences about words and length as controls of the separation of two sets."""

import numpy as np
import pytest
from support.finished_runs import cached_run
from support.sentences import assert_says

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
    assert_says(
        token_facts(read_tests(tmp_path, **TOKENS_AND_PAIRS)),
        "0.565 [0.519, 0.610] … difference of means … 0.700 [0.650, 0.750] … ridge regression",
        "72.7 [66.8, 78.0] % … pairs … difference of means … 80.0 [75.0, 85.0] % … ridge regression",
        "words alone separate … p = 0.005 and 0.005",
    )


@pytest.mark.parametrize(("p", "verdict"), [(0.02, "separate"), (0.03, "are not shown to separate")])
def test_the_better_of_two_classifiers_must_pass_a_stricter_test(tmp_path, p, verdict):
    tests = {"tokens_null": {"p": {"means": p, "ridge": 0.2}}}
    *_, last = token_facts(read_tests(tmp_path, **TOKENS | tests))
    assert_says(last, f"words alone {verdict} … p = {p:.3f} and 0.200")


@pytest.mark.parametrize(("equal", "is_weak"), [(0.95, True), (0.5, False)])
def test_token_counts_that_are_equal_in_most_pairs_say_little(tmp_path, equal, is_weak):
    tests = read_tests(tmp_path, **TOKENS_AND_PAIRS, tokens_equal_pairs=equal)
    _, pairs, last = token_facts(tests)
    assert_says(pairs, f"{100 * equal:.1f} % have equal scores")
    for text in (token_finding(tests), last):
        assert ("occur in no other prompt" in text) == is_weak


def test_without_token_counts_their_sentences_are_left_out(tmp_path):
    tests = read_tests(tmp_path)
    assert list(token_facts(tests)) == list(beyond_facts(tests)) == []


def test_the_finding_has_the_better_classifier_of_words(tmp_path):
    by_ridge = token_finding(read_tests(tmp_path / "ridge", **TOKENS))
    assert_says(by_ridge, "0.700 [0.650, 0.750] … ridge regression")
    by_means = token_finding(read_tests(tmp_path / "means", **TOKENS | {"tokens_is_ridge": 0.0}))
    assert_says(by_means, "0.565 [0.519, 0.610] … difference of means")
    assert "difference of means" not in by_ridge
    assert "ridge" not in by_means


def test_depths_at_which_activations_exceed_words_and_length_are_counted(tmp_path):
    some = difference([-1, -1, 0.1, 0.1, 0.1, -1, -1, -1], [-0.1, 1, 1, 1, 1, 1, 1, 1])
    more = difference([-1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1, 0.1], [1] * 8)
    pairs = difference([0.1] * 8, [1] * 8)
    words = {"auroc": some, "ridge_auroc": more, "paired_accuracy": pairs}
    length = dict.fromkeys(("auroc", "ridge_auroc"), difference([0.1] * 8, [1] * 8))
    tests = read_tests(tmp_path, **TOKENS, beyond={"words": words, "length": length})
    counts = "3 of 8 depths (layers 1 pre to 2 pre) … means … 7 of 8 depths (layers 0 mid to 3 mid) … ridge"
    assert_says(
        beyond_facts(tests),
        f"larger AUROC … words … {counts} … smaller … 1 depth … difference of means",
        "larger AUROC … length … 8 of 8 depths … both classifiers",
        "difference of means … pairs … words … 8 of 8 depths",
    )
    assert_says(token_finding(tests), f"ridge regression … exceed it … {counts}")
