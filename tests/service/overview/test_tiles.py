"""The four questions of an overview: planted answers, and what cannot be concluded."""

import numpy as np
import pytest
from support.finished_runs import merged, model_facts
from support.overview_cases import (
    AUROC,
    PLANTED,
    estimate,
    overview_run,
    permuted,
    planted_run,
    twin_difference,
)

from theodolite.overview.facts import read_overview
from theodolite.overview.tiles import NO, PARTLY, UNTESTED, YES


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    run = planted_run(tmp_path_factory.mktemp("planted"))
    return {name: read_overview(run, name) for name in PLANTED}


@pytest.fixture
def tiles_of(tmp_path):
    return lambda **changes: read_overview(overview_run(tmp_path, **changes)).tiles


def test_the_planted_answers_are_found(planted):
    for name, (separable, words, (used, _)) in PLANTED.items():
        by_band = YES if separable == UNTESTED else separable
        assert [tile.answer for tile in planted[name].tiles] == [by_band, words, UNTESTED, used], name


def test_a_sentence_has_at_most_25_words_and_says_the_answers(planted):
    for name, (separable, words, (used, _)) in PLANTED.items():
        sentence = planted[name].sentence
        assert len(sentence.split()) <= 25, sentence
        assert "nan" not in sentence
        assert ("are not shown to separate" in sentence) == (separable == NO)
        assert (", beyond their words" in sentence) == (separable != NO and words == YES)
        assert sentence.endswith("; the model uses the direction.") == (used == YES)
        assert sentence.endswith(("; partly used by the model.", "; it changes the next token.")) == (used == PARTLY)
    assert planted["c0"].sentence == (
        "harmful and harmless separate (0.900 AUROC [0.850, 0.950] at 2 depths), beyond their words; the model uses "
        "the direction."
    )
    assert "(90.0 % pairs ordered [85.0, 95.0] at 2 depths)" in planted["c1"].sentence


def test_each_number_stands_with_its_depth_its_band_and_chance(planted):
    separable, words, _, used = planted["c0"].tiles
    assert (separable.number, words.number, used.number) == (
        "0.900 AUROC, 2 depths",
        "+0.200 AUROC, layer 2 pre",
        "4 of 8 places above controls",
    )
    at = separable.glyph
    assert at is not None
    assert [at.value, at.low, at.high, at.chance, *at.scale] == pytest.approx([0.9, 0.85, 0.95, 0.5, 0, 1])
    assert "(it is 0.01)" in separable.rule
    assert "token counts lies above 0 at a depth (it does at 4 of 8)" in words.rule
    of_pairs = planted["c1"].tiles
    assert of_pairs[0].number == "90.0 % of pairs in order, 2 depths"
    assert of_pairs[1].number == "+20.0 points, layer 2 pre"


def test_the_size_of_a_change_without_a_predicted_sign_answers_partly_at_most(planted):
    unsigned = [planted[name].tiles[3] for name, truth in PLANTED.items() if truth[2][1] == "unsigned"]
    assert {tile.answer for tile in unsigned} == {PARTLY, NO}
    assert all("no sign is predicted" in tile.rule for tile in unsigned)


def test_ridge_regression_alone_answers_partly_as_one_of_two_tests(tiles_of):
    ridge = {"score_auroc": {"ridge": AUROC}, "tested_null": {"ridge_auroc": {"p_family": 0.02}}}
    separable = tiles_of(permutations=merged(permuted(NO, NO), ridge))[0]
    assert (separable.answer, separable.claim) == (PARTLY, "separate by ridge regression alone")
    ridge["tested_null"]["ridge_auroc"]["p_family"] = 0.03
    assert tiles_of(permutations=merged(permuted(NO, NO), ridge))[0].answer == NO


def test_a_test_that_passes_elsewhere_does_not_answer_for_the_largest_value(tiles_of):
    elsewhere = {"tested_null": {"auroc": {"p_family": np.array([0.5, 0.03, 0.06, 0.5])}}}
    assert tiles_of(permutations=merged(permuted(NO, NO), elsewhere))[0].answer == NO


def test_nothing_can_lie_above_token_counts_that_order_all_prompts(tmp_path):
    overview = read_overview(
        overview_run(tmp_path, permutations=merged(permuted(YES, NO), {"tokens": {"value": 1.0}, "tokens_null": 0.005}))
    )
    words = overview.tiles[1]
    assert (words.answer, words.glyph) == (UNTESTED, None)
    assert ", as their words alone do" in overview.sentence
    assert "words explain all" in [badge.label for badge in overview.badges if badge.is_warning]


def test_token_counts_that_are_equal_in_most_pairs_answer_nothing(tiles_of):
    words = tiles_of(permutations=merged(permuted(YES, YES), {"tokens_equal_pairs": 0.95}))[1]
    assert (words.answer, words.claim) == (UNTESTED, "")
    assert "weak control" in words.rule


def test_too_few_prompts_are_not_called_inseparable(tiles_of):
    few = tiles_of(separation={"n_used": 5}, permutations=permuted(NO, NO))[0]
    assert (few.answer, few.number) == (UNTESTED, "0.900 AUROC, 2 depths")
    assert few.rule == "with fewer than 6 prompts in a set, no p can be at most 0.05"


def test_analyses_that_a_run_lacks_answer_nothing(tiles_of):
    separable, words, twin, used = tiles_of(permutations=None, effects=None)
    assert [tile.answer for tile in (separable, words, twin, used)] == [YES, *[UNTESTED] * 3]
    assert separable.rule.startswith("no permutation test: ✓ if the simultaneous interval")
    (chance, *_) = tiles_of(permutations=None, separation={"auroc": estimate(0.6, 0.05, 0.2)})
    assert (chance.answer, chance.claim) == (NO, "are not shown to separate")
    assert (words.rule, used.rule) == ("token counts were not compared", "the spec has no section effects")
    assert "model: {weights: random}" in twin.rule


def test_identical_activations_and_missing_numbers_conclude_nothing(tmp_path):
    still = overview_run(tmp_path / "still", curves={"variance_mean": {"raw": 0.0}})
    missing = overview_run(tmp_path / "nan", separation={"auroc": dict.fromkeys(AUROC, np.nan)})
    for run in (still, missing):
        overview = read_overview(run)
        assert overview.tiles[0].answer == UNTESTED
        assert overview.tiles[0].number == "not known"
        assert overview.sentence == "Nothing can be concluded about harmful and harmless."
        assert overview.place == overview.places[0 if run is missing else 4]
    assert [tile.answer for tile in read_overview(still).tiles] == [UNTESTED] * 4
    assert "nothing can be concluded about other prompts" in read_overview(still).tiles[0].rule


@pytest.mark.parametrize(
    ("difference", "answer", "text"),
    [
        (estimate(np.array([0.0, 0.1, 0.3, 0.1]), 0.05, 0.08), YES, "+0.300 AUROC, layer 2 pre"),
        (estimate(np.array([0.0, 0.0, 0.02, 0.0]), 0.05, 0.08), NO, "+0.020 AUROC, layer 2 pre"),
        ({"value": 0.3, "low": 0.1, "high": 0.5}, UNTESTED, "not tested"),
    ],
    ids=["beyond", "not beyond", "without a band"],
)
def test_the_untrained_twin_answers_the_third_question(tmp_path, monkeypatch, difference, answer, text):
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 3})
    twin = overview_run(tmp_path, "tiny-random-weights-0", facts)
    monkeypatch.setattr("theodolite.query.twin.auroc_difference", twin_difference(difference))
    tile = read_overview(overview_run(tmp_path)).tiles[2]
    assert (tile.answer, tile.number) == (answer, text)
    of_twin = read_overview(twin).tiles[2]
    assert (of_twin.answer, of_twin.rule) == (UNTESTED, "this model has random weights")
