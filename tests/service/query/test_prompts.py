"""Prompts of a set with their held-out scores."""

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.serving import surveyed_run

from theodolite.errors import SpecError, TableNotFoundError
from theodolite.query.prompts import Place, read_contrast_prompts, read_prompt_path, read_scored_prompts
from theodolite.store.result_reader import read_finished_table, read_group


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return surveyed_run(tmp_path_factory.mktemp("prompts"))


def scores_at(run, place):
    table = read_finished_table(run, "prompt_scores")
    for name, value in vars(place).items():
        table = table[table[name] == value]
    return table


def test_the_default_is_the_first_contrast_where_it_separates_best(run):
    place = read_scored_prompts(run, "harmful").place
    separation = read_group(run, "separation")
    statistic = "paired_accuracy" if separation.attrs["contrasts"]["refusal"]["paired"] else "auroc"
    values = separation[statistic].sel(contrast="refusal", position=-1, estimate="value")
    assert (place.contrast, place.position) == ("refusal", -1)
    assert float(values.sel(site=place.site, layer=place.layer)) == float(values.max())


def test_scores_are_in_pooled_standard_deviations_and_margins_have_the_sign_of_the_own_side(run):
    place = Place("refusal", "resid_mid", 2, -2)
    stored = scores_at(run, place)
    variances = [stored[stored["side"] == side]["score"].var() for side in ("positive", "negative")]
    for prompt_set, sign in (("harmful", 1), ("harmless", -1)):
        found = read_scored_prompts(run, prompt_set, **vars(place))
        own = stored[stored["set"] == prompt_set]["score"].to_numpy() / np.sqrt(np.mean(variances))
        assert found.place == place
        np.testing.assert_allclose(found.rows["score"], own)
        np.testing.assert_allclose(found.rows["margin"], sign * own)
    n_right = sum(
        (read_scored_prompts(run, one, **vars(place)).rows["margin"] > 0).sum() for one in ("harmful", "harmless")
    )
    accuracy = read_group(run, "separation")["accuracy"].sel(vars(place)).sel(estimate="value")
    assert n_right == round(19 * float(accuracy))


@each("order, sign", [("margin", 1), ("-margin", -1)])
def test_prompts_are_ordered_by_their_margin(run, order, sign):
    margins = read_scored_prompts(run, "harmless", order=order).rows["margin"].to_numpy()
    assert (np.diff(sign * margins) >= 0).all()


@each("order", ["sample", "margin", "-margin"])
def test_the_prompts_of_a_contrast_are_those_of_both_sets_in_one_order(run, order):
    place = Place("subject", "resid_mid", 2, -1)
    found = read_contrast_prompts(run, **vars(place), order=order)
    assert found.place == place
    assert found.rows.columns[:2].tolist() == ["set", "side"]
    of_sides = found.rows.groupby("set")["side"].unique()
    assert (list(of_sides["nouns"]), list(of_sides["harmless"])) == (["positive"], ["negative"])
    for name, of_set in found.rows.groupby("set"):
        alone = read_scored_prompts(run, name, **vars(place), order=order).rows
        pd.testing.assert_frame_equal(of_set[alone.columns].reset_index(drop=True), alone.reset_index(drop=True))
    if order != "sample":
        assert (np.diff(found.rows["margin"]) * (1 if order == "margin" else -1) >= 0).all()


def test_only_prompts_with_scores_in_a_range_are_found(run):
    scores = read_contrast_prompts(run).rows["score"].sort_values().to_numpy()
    for low, high in ((scores[3], scores[9]), (None, scores[9]), (scores[3], None)):
        found = read_contrast_prompts(run, low=low, high=high).rows["score"].sort_values().tolist()
        assert found == scores[None if low is None else 3 : None if high is None else 10].tolist()


def test_a_contrast_that_does_not_exist_is_refused(run):
    with pytest.raises(SpecError, match="contrast: tiny-0 has no 'other' with scores; it has refusal, subject"):
        read_contrast_prompts(run, "other")


def test_only_prompts_with_a_text_are_found_in_any_case(run):
    texts = read_scored_prompts(run, "harmful").rows["text"]
    wanted = texts.iloc[3]
    found = read_scored_prompts(run, "harmful", containing=wanted.upper()).rows
    assert found["text"].tolist() == [text for text in texts if wanted.casefold() in text.casefold()]
    assert read_scored_prompts(run, "harmful", containing="no such words [").rows.empty


def test_a_path_has_every_depth_and_the_quantiles_of_both_sets(run):
    path, place = read_prompt_path(run, "nouns", 2, "subject")
    assert place.contrast == "subject"
    assert path["depth"].tolist() == list(range(8))
    at = scores_at(run, Place("subject", "resid_mid", 1, -1))
    deviation = np.sqrt(at.groupby("side", observed=True)["score"].var().mean())
    row = path[(path["site"] == "resid_mid") & (path["layer"] == 1)].iloc[0]
    own = at[(at["set"] == "nouns") & (at["sample"] == 2)]["score"].item() / deviation
    assert row["score"] == pytest.approx(own)
    for side in ("positive", "negative"):
        expected = at[at["side"] == side]["score"].quantile([0.05, 0.95]).to_numpy() / deviation
        np.testing.assert_allclose(row[[f"low_{side}", f"high_{side}"]].to_numpy(float), expected)


@each(
    "choices, message",
    [
        ({"prompt_set": "none"}, "set: tiny-0 has no 'none'; it has harmful, harmless, nouns"),
        ({"contrast": "subject"}, "contrast: tiny-0 has no 'subject' with scores; it has refusal"),
        ({"site": "attn_out"}, "site: tiny-0 has no 'attn_out' with scores; it has resid_pre, resid_mid"),
        ({"layer": 9}, "layer: tiny-0 has no 9 with scores; it has 0 to 3"),
        ({"position": -3}, "position: tiny-0 has no -3 with scores; it has -2, -1"),
    ],
)
def test_a_wrong_choice_is_refused_with_the_allowed_ones(run, choices, message):
    with pytest.raises(SpecError, match=message):
        read_scored_prompts(run, **{"prompt_set": "harmful", **choices})


def test_a_prompt_that_does_not_exist_or_has_no_score_is_refused(run, monkeypatch):
    with pytest.raises(SpecError, match="sample: harmful has no 10; it has 0 to 9"):
        read_prompt_path(run, "harmful", 10)

    def without_scores(opened, name, *filters):
        table = read_finished_table(opened, name, *filters)
        return table.iloc[:0] if name == "prompt_scores" else table

    monkeypatch.setattr("theodolite.query.prompts.read_finished_table", without_scores)
    with pytest.raises(SpecError, match="prompt 1 of harmful has no score"):
        read_prompt_path(run, "harmful", 1)


def test_a_run_without_scores_has_its_prompts_and_says_how_to_get_scores(run, monkeypatch):
    monkeypatch.setattr("theodolite.query.prompts.finished_tables", lambda _run: [])
    found = read_scored_prompts(run, "harmful", order="margin")
    assert found.place is None
    assert found.rows["sample"].tolist() == list(range(10))
    assert found.rows["margin"].isna().all()
    assert isinstance(found.rows, pd.DataFrame)
    both = read_contrast_prompts(run)
    assert both.place is None
    assert (len(both.rows), both.rows["score"].notna().sum()) == (19, 0)
    assert read_contrast_prompts(run, low=0).rows.empty
    with pytest.raises(TableNotFoundError, match="theodolite run analyse tiny-0"):
        read_scored_prompts(run, "harmful", "refusal")
    with pytest.raises(TableNotFoundError, match="no scores of the prompts of harmful"):
        read_prompt_path(run, "harmful", 1)


def test_a_place_that_is_requested_of_a_set_without_scores_is_refused(run, monkeypatch):
    monkeypatch.setattr("theodolite.query.prompts.finished_tables", lambda _run: [])
    for choice in ({"layer": 1}, {"site": "resid_pre"}, {"position": -1}):
        with pytest.raises(TableNotFoundError, match="no scores of single prompts"):
            read_scored_prompts(run, "harmful", **choice)


def test_a_contrast_with_one_empty_side_gives_prompts_without_scores(run, monkeypatch):
    separation = read_group(run, "separation").copy(deep=True)
    separation["n_used"][..., 1] = 0
    monkeypatch.setattr("theodolite.query.prompts.read_group", lambda *_: separation)
    assert read_scored_prompts(run, "harmful").place is None
    with pytest.raises(TableNotFoundError, match="no scores of the prompts of harmful"):
        read_prompt_path(run, "harmful", 0)
