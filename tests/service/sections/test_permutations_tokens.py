"""Sentences about the separation of two sets by the counts of their prompts' tokens."""

import pytest
from support.finished_runs import finished_run

from theodolite.sections.permutations import token_facts, token_finding
from theodolite.store.result_reader import read_group


def of_tokens(name, value, low, high, mean, sd, p):
    ends = {"": value, "_low": low, "_high": high, "_null_mean": mean, "_null_sd": sd, "_p": p}
    return {f"{name}{end}": number for end, number in ends.items()}


TOKENS = of_tokens("tokens_auroc", 0.565, 0.519, 0.61, 0.5, 0.0149, 0.00498)
PAIRS_OF_TOKENS = of_tokens("tokens_paired_accuracy", 0.727, 0.668, 0.78, 0.501, 0.03, 0.00498)
WITH_TOKENS = (
    "With counts of the prompts' tokens in place of activations, and the same folds: AUROC 0.565 [0.519, 0.610] "
)


def read_tests(tmp_path, **values):
    """Return the permutation tests of one contrast with these values."""
    tests = read_group(finished_run(tmp_path, {"permutations": values}), "permutations")
    return tests.sel(contrast="refusal", position=-1)


def test_token_counts_stand_beside_the_activations(tmp_path):
    assert list(token_facts(read_tests(tmp_path, **TOKENS, **PAIRS_OF_TOKENS))) == [
        f"{WITH_TOKENS}(permuted labels give 0.500 ± 0.015, p = 0.005); share of held-out pairs in the right order "
        "0.727 [0.668, 0.780] (permuted labels give 0.501 ± 0.030, p = 0.005). So the sets can be separated to "
        "some degree without a model; another classifier of words may separate them better."
    ]


def test_token_counts_that_chance_explains_separate_nothing(tmp_path):
    assert list(token_facts(read_tests(tmp_path, **TOKENS | {"tokens_auroc_p": 0.2}))) == [
        f"{WITH_TOKENS}(permuted labels give 0.500 ± 0.015, p = 0.200). This test does not show that words alone "
        "separate the sets."
    ]


@pytest.mark.parametrize(("equal", "is_weak"), [(0.95, True), (0.5, False)])
def test_token_counts_that_are_equal_in_most_pairs_say_little(tmp_path, equal, is_weak):
    tests = read_tests(tmp_path, **TOKENS, **PAIRS_OF_TOKENS, tokens_equal_pairs=equal)
    for text in (token_finding(tests), *token_facts(tests)):
        assert f"({100 * equal:.1f} % of the pairs have equal scores, which count half)" in text
        assert text.endswith("because they occur in no other prompt.") == is_weak


def test_without_token_counts_their_sentence_is_left_out(tmp_path, older_run):
    assert list(token_facts(read_tests(tmp_path))) == []
    older = read_group(older_run("permutations", {}, "tokens_auroc"), "permutations")
    assert list(token_facts(older.sel(contrast="refusal", position=-1))) == []


@pytest.mark.parametrize(
    ("of_pairs", "expected"),
    [(PAIRS_OF_TOKENS, " and 72.7 [66.8, 78.0] % of the pairs in the right order"), ({}, "")],
    ids=["pairs", "no"],
)
def test_the_finding_has_the_intervals_of_token_counts_alone(tmp_path, of_pairs, expected):
    assert token_finding(read_tests(tmp_path, **TOKENS, **of_pairs)) == (
        f"Token counts alone, without a model, give an AUROC of 0.565 [0.519, 0.610]{expected}; another classifier of "
        "words may do better."
    )
