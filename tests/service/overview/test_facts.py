"""What an overview shows of one contrast: its depth, its scores, and the badges that limit its findings."""

from dataclasses import replace

import numpy as np
import pytest
from support.finished_runs import adapter_facts, cached_run, model_facts
from support.overview_cases import NO, YES, estimate, overview_run, permuted, planted_run, twin_difference
from support.serving import surveyed_run

from theodolite.errors import ResultsNotFoundError, SpecError
from theodolite.overview import facts
from theodolite.overview.facts import MOST_MISPLACED, Place, contrasts_with_overview, read_overview
from theodolite.query.prompts import read_scored_prompts


def badges_of(run):
    return {badge.label: badge for badge in read_overview(run).badges}


@pytest.fixture(scope="module")
def surveyed(tmp_path_factory):
    return surveyed_run(tmp_path_factory.mktemp("surveyed"))


def test_the_depth_of_the_largest_value_is_selected_and_any_other_can_be(tmp_path):
    run = overview_run(tmp_path)
    overview = read_overview(run)
    assert overview.place == Place("resid_pre", 2)
    assert overview.place_names.split()[:3] == ["resid_pre:0", "resid_mid:0", "resid_pre:1"]
    assert (overview.contrast, overview.sets, overview.position) == ("refusal", ("harmful", "harmless"), -1)
    assert read_overview(run, site="resid_mid").place == Place("resid_mid", 2)
    assert read_overview(run, layer=1).place == Place("resid_pre", 1)
    other = read_overview(run, "refusal", "hook_resid_mid", 3)
    assert other.place == Place("resid_mid", 3)
    assert (other.tiles, other.sentence) == (overview.tiles, overview.sentence), "the findings are of all depths"


def test_an_unknown_contrast_or_depth_is_refused_with_what_there_is(tmp_path):
    run = overview_run(tmp_path)
    with pytest.raises(SpecError, match="contrast: tiny-0 has no 'nobody' with separation; it has refusal"):
        read_overview(run, "nobody")
    for place in ({"layer": 4}, {"site": "resid_post"}, {"site": "nowhere", "layer": 0}):
        with pytest.raises(SpecError, match="layer: tiny-0 has no"):
            read_overview(run, **place)


def test_a_run_without_separation_has_no_overview(tmp_path):
    run = overview_run(tmp_path, separation=None, permutations=None)
    assert contrasts_with_overview(run) == []
    with pytest.raises(ResultsNotFoundError, match="separation"):
        read_overview(run)


def test_the_scores_are_those_of_the_prompts_at_the_selected_depth(surveyed):
    assert contrasts_with_overview(surveyed) == ["refusal", "subject"]
    overview = read_overview(surveyed, "subject", "resid_mid", 1)
    for side, name in zip(("positive", "negative"), ("nouns", "harmless"), strict=True):
        rows = read_scored_prompts(surveyed, name, "subject", "resid_mid", 1).rows
        own = overview.scores[overview.scores["side"] == side]
        assert own["set"].eq(name).all()
        assert own["score"].tolist() == rows["score"].tolist()
        assert own["text"].tolist() == rows["text"].tolist()
    wrong = overview.scores[overview.scores["margin"] < 0]
    assert overview.misplaced["margin"].tolist() == sorted(wrong["margin"])[:MOST_MISPLACED]
    assert len(read_overview(surveyed, "refusal").scores) == 10 + 9


def test_a_run_without_scores_of_prompts_has_an_empty_table(tmp_path):
    assert read_overview(overview_run(tmp_path)).scores.empty
    assert read_overview(overview_run(tmp_path)).misplaced.empty


def test_what_the_survey_has_not_computed_yet_is_not_called_untested(tmp_path, monkeypatch):
    run = overview_run(tmp_path, effects=None, permutations=None)
    monkeypatch.setattr(facts, "unfinished_groups", lambda _: ["permutations", "effects"])
    words, used = (
        tile for tile in read_overview(run).tiles if tile.question in ("Beyond words?", "Does the model use it?")
    )
    assert words.number == used.number == "not finished"
    assert "effects not measured" not in badges_of(run)


def test_the_badges_of_prompts_say_how_many_and_what_was_changed(tmp_path):
    alone = badges_of(overview_run(tmp_path / "one"))
    assert list(alone) == ["20 + 20 prompts", "last token", "no twin", "effects: 12 prompts"]
    assert [label for label, badge in alone.items() if badge.is_warning] == ["20 + 20 prompts", "no twin"]
    unchanged = badges_of(overview_run(tmp_path / "two", effects=None))
    assert "not what the model uses" in unchanged["effects not measured"].text
    run = planted_run(tmp_path / "three")
    assert read_overview(run, "c1").badges[0].label == "20 pairs"
    assert read_overview(run, "c1").badges[-1].label == "effects: 12 pairs"


def test_a_common_token_and_words_that_separate_the_sets_have_badges(tmp_path):
    entering = np.ones((2, 2, 1, 4))
    entering[:, 0, 0, 0] = 0  # no prompt differs at the input of the first block
    common = {"variance_mean": {"raw": entering}, "difference_norm": {"raw": 0.0}}
    assert "same final token" in badges_of(overview_run(tmp_path / "common", curves=common))
    explained = {"tokens_null": {"auroc": {"means": {"p": 0.5}, "ridge": {"p": 0.02}}}}
    badge = badges_of(overview_run(tmp_path / "words", permutations=explained))["words explain part"]
    assert badge.is_warning
    one_of_two = {"tokens_null": {"auroc": {"means": {"p": 0.5}, "ridge": {"p": 0.03}}}}
    assert "words explain part" not in badges_of(overview_run(tmp_path / "chance", permutations=one_of_two))


def test_the_model_and_the_templates_have_badges(tmp_path):
    random = model_facts().model_copy(update={"weights": "random", "seed": 3})
    untrained = badges_of(overview_run(tmp_path / "random", model=random))
    assert "seed 3" in untrained["random weights"].text
    assert "no twin" not in untrained
    assert "dequantised weights" in badges_of(overview_run(tmp_path / "gguf", model=model_facts(kind="gguf")))
    adapted = model_facts(adapter=adapter_facts())
    assert "lora" in badges_of(overview_run(tmp_path / "lora", model=adapted))["with adapter"].text
    run = overview_run(tmp_path / "templates")
    sets = {name: facts.model_copy(update={"template": name}) for name, facts in run.record.sets.items()}
    differ = badges_of(replace(run, record=run.record.model_copy(update={"sets": sets})))
    assert differ["different templates"].is_warning


@pytest.mark.parametrize("is_partial", [False, True])
def test_a_twin_that_is_compared_takes_the_warning_away(tmp_path, monkeypatch, is_partial):
    known = twin_difference({} if is_partial else estimate(0.1, 0.05, 0.08))
    monkeypatch.setattr("theodolite.query.twin.auroc_difference", known)
    facts = model_facts().model_copy(update={"name": "tiny (random weights)", "weights": "random", "seed": 3})
    overview_run(tmp_path, "tiny-random-weights-0", facts)
    run = overview_run(tmp_path, permutations=permuted(YES, NO))
    assert ("no twin" in badges_of(run)) == is_partial


def test_a_contrast_without_the_last_position_is_measured_at_its_own_one(tmp_path):
    counts = np.array([[20, 20], [0, 20]])
    groups = {"separation": {"auroc": 0.9, "n_used": counts}, "curves": {"n_used": 20}, "directions": {}}
    run = cached_run(tmp_path, groups, positions=[-2, -1])
    assert read_overview(run).position == -2
    assert "position -2" in badges_of(run)


def test_depths_of_other_sites_have_their_own_names(tmp_path):
    groups = {"separation": {"auroc": 0.9, "n_used": 20}, "curves": {"n_used": 20}, "directions": {}}
    overview = read_overview(cached_run(tmp_path, groups, sites=["resid_post", "attn_out"]))
    assert overview.measured.places == [f"layer {layer} post" for layer in range(4)]
