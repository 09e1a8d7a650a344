"""Check the published numbers, their matching to models, and the deviations of a run from them."""

import re

import numpy as np
import pytest
from support.each import each
from support.finished_runs import REFUSAL, adapter_facts, finished_run, model_facts
from support.sentences import assert_says

from theodolite.groups.curves.record import SAMPLE_SIZES
from theodolite.groups.curves.record import VARIABLES as CURVES
from theodolite.query.published import (
    expected_values,
    has_same_prompts,
    largest_deviation,
    measured_values,
    published_curves,
    selected_directions,
)
from theodolite.spec_parts import PromptSetSpec
from theodolite.store.result_reader import read_group
from theodolite_jobs.report.page import render_report

QWEN = "Qwen/Qwen-1_8B-chat"
MODELS = {
    QWEN: (24, -1),
    "google/gemma-2b-it": (18, -2),
    "meta-llama/Llama-3.2-3B-Instruct": (28, -1),
    "Qwen/Qwen2.5-7B-Instruct": (28, -1),
    "Qwen/Qwen2.5-32B-Instruct": (64, -2),
    "mistralai/Mistral-Nemo-Instruct-2407": (40, -1),
}


def hub(model_id, n_layers=24):
    return model_facts(model_id.split("/")[-1], n_layers, "hub", model_id)


def of(model_id, position=None):
    n_layers, published_position = MODELS[model_id]
    model = hub(model_id, n_layers)
    return published_curves(model, "harmful", "harmless", position or published_position)


def values(model_id, statistic, prompt_set=None):
    (result,) = (curve for curve in of(model_id) if (curve.statistic, curve.prompt_set) == (statistic, prompt_set))
    return result.values


def test_the_published_curve_of_qwen_is_complete():
    cosine, variance = values(QWEN, "cosine_of_means"), values(QWEN, "variance_mean", "harmless")
    assert list(cosine) == list(variance) == list(range(48))
    assert (cosine[0], cosine[1], cosine[38], cosine[47]) == (1, 0.9961, 0.7188, 0.7813)
    assert (variance[0], variance[1], variance[46], variance[47]) == (0, 2.06e-06, 6.719, 8.063)
    assert values(QWEN, "variance_mean", "harmful") == dict(
        zip(range(40, 48), [0.9063, 1.109, 1.242, 1.547, 1.719, 2.047, 2.266, 2.953], strict=True)
    )
    assert values(QWEN, "variance_max", "harmless") == {46: 126, 47: 165}
    assert values(QWEN, "variance_max", "harmful") == {46: 20.875, 47: 22.25}


@each(
    "model_id, cosines, mean, largest",
    [
        ("meta-llama/Llama-3.2-3B-Instruct", {46: 0.461, 55: 0.507}, (0.330, 0.103), (19.9, 9.7)),
        ("Qwen/Qwen2.5-7B-Instruct", {48: 0.645, 55: 0.870}, (15.9, 5.3), (2780, 275)),
        ("Qwen/Qwen2.5-32B-Instruct", {118: 0.559, 127: 0.711}, (67.9, 38.6), (27300, 4330)),
        ("mistralai/Mistral-Nemo-Instruct-2407", {58: 0.786, 79: 0.875}, (2.12, 0.93), (374, 83)),
    ],
)
def test_the_extremes_of_the_published_figures_are_included(model_id, cosines, mean, largest):
    last = 2 * MODELS[model_id][0] - 1
    assert values(model_id, "cosine_of_means") == cosines
    for statistic, (harmless, harmful) in (("variance_mean", mean), ("variance_max", largest)):
        assert values(model_id, statistic, "harmless") == {last: harmless}
        assert values(model_id, statistic, "harmful") == {last: harmful}
    assert all("2 %" in curve.note for curve in of(model_id))


def test_the_norms_of_the_second_source_are_at_block_inputs():
    norms = values(QWEN, "difference_norm")
    assert list(norms) == list(range(0, 48, 2))
    assert (norms[2], norms[46]) == (0.0916, 97.78)
    assert values("google/gemma-2b-it", "difference_norm") == {20: 10.06, 34: 36.72}


@each("model_id", MODELS)
def test_every_published_curve_has_a_source_and_fits_its_model_and_a_stored_statistic(model_id):
    stored = {variable.name: variable.dims for variable in CURVES}
    result = of(model_id)
    assert result
    for curve in result:
        assert curve.source
        assert curve.note
        assert ("set" in stored[curve.statistic]) == (curve.prompt_set is not None)
        assert curve.prompt_set in (None, "harmful", "harmless")
        assert 0 <= min(curve.values) <= max(curve.values) < 2 * MODELS[model_id][0]


def test_selected_directions_are_matched_like_curves():
    (chosen,) = selected_directions(hub("google/gemma-2b-it", 18), "harmful", "harmless", -2)
    assert chosen.layer == 10
    assert "refusal_direction" in chosen.source
    assert selected_directions(hub("google/gemma-2b-it", 18), "harmful", "harmless", -1) == []
    assert selected_directions(hub("google/gemma-2b-it", 18), "harmful", "nouns", -2) == []


@each(
    "model, matches",
    [
        (hub("Qwen/Qwen-1_8B-Chat"), True),  # as the hub writes it
        (hub("qwen/qwen-1_8b-chat"), True),
        (model_facts("Qwen-1_8B-Chat"), True),  # a local folder of that name
        (hub("somebody/Qwen-1_8B-chat"), False),  # of another owner, perhaps fine-tuned
        (model_facts("Qwen-1_8B-Chat", kind="gguf"), False),  # rounded weights
        (hub(QWEN).model_copy(update={"weights": "random", "seed": 0}), False),  # an untrained twin
        (hub(QWEN).model_copy(update={"adapter": adapter_facts()}), False),  # changed weights
        (hub("Qwen/Qwen-1_8B"), False),
        (hub("Qwen/Qwen2.5-1.5B-Instruct"), False),
    ],
)
def test_a_model_matches_by_its_hub_id_or_its_folder(model, matches):
    assert bool(published_curves(model, "harmful", "harmless", -1)) == matches


@each(
    "positive, negative, position",
    [("harmful", "harmless", -2), ("harmless", "harmful", -1), ("bad", "good", -1), ("harmful", "nouns", -1)],
)
def test_other_contrasts_and_positions_have_no_published_curves(positive, negative, position):
    assert published_curves(hub(QWEN), positive, negative, position) == []


@each("model_id", MODELS)
def test_every_published_number_of_prompts_of_a_cosine_is_predicted(model_id):
    assert {curve.n_per_set for curve in of(model_id) if curve.statistic == "cosine_of_means"} <= set(SAMPLE_SIZES)


def test_a_set_matches_by_its_name_before_the_first_hyphen():
    curves = published_curves(hub(QWEN), "harmful-16", "harmless-16", -1)
    assert {curve.prompt_set for curve in curves} == {None, "harmful-16", "harmless-16"}
    assert published_curves(hub(QWEN), "harmful16", "harmless16", -1) == []


def test_the_same_prompts_are_those_of_the_same_file_column_draw_and_rows():
    draw = {"test_size": 0.2, "random_state": 42}
    harmful = {"source": "file:data/harmful_behaviors.csv", "column": "goal", "draw": draw, "skip": 48, "limit": 16}
    harmless = {**harmful, "source": "hub:tatsu-lab/alpaca", "column": "instruction", "where": {"input": ""}}
    of_sets = {curve.statistic: curve for curve in of(QWEN)}

    def is_same(statistic="cosine_of_means", **changed):
        return has_same_prompts(of_sets[statistic], PromptSetSpec(**{**harmful, **changed}), PromptSetSpec(**harmless))

    assert is_same()
    assert not is_same("difference_norm")  # this source does not state its prompts
    for changed in ({"skip": 0}, {"limit": 64}, {"draw": None}, {"source": "builtin:harmful"}, {"where": {"a": 1}}):
        assert not is_same(**changed), changed


def qwen_run(folder, sites=("resid_pre", "resid_mid"), **changed):
    """Write a run whose plain cosine equals the published one, except that it is 0.02 lower at 17-mid."""
    published = np.array(list(values(QWEN, "cosine_of_means").values()))
    by_site = {"resid_pre": published[::2], "resid_mid": published[1::2].copy()}
    by_site["resid_mid"][17] -= 0.02
    cosine = np.stack([by_site.get(site, np.full(24, 0.1)) for site in sites])
    contents = {"cosine_of_means": {"raw": cosine[None, :, None, :]}, **changed}
    return finished_run(folder, {"curves": contents}, hub("Qwen/Qwen-1_8B-Chat"), sites=sites)


def test_the_largest_deviation_has_its_depth_and_sign(tmp_path):
    curves = read_group(qwen_run(tmp_path), "curves")
    cosine = of(QWEN)[0]
    result = largest_deviation(measured_values(curves, cosine, "refusal", -1), cosine, relative=False)
    assert result.depth == 35
    assert result.difference == pytest.approx(-0.02)
    assert result.published == 0.7305


def test_only_published_depths_are_compared(tmp_path):
    """The output of block 16 has the same depth as the input of block 17, but only the input is compared."""
    cosine = of(QWEN)[0]
    curves = read_group(qwen_run(tmp_path, sites=["resid_pre", "resid_post", "attn_out"]), "curves")
    measured = measured_values(curves, cosine, "refusal", -1)
    assert list(measured) == list(range(0, 48, 2))
    assert largest_deviation(measured, cosine, relative=False).difference == 0
    curves = read_group(qwen_run(tmp_path / "none", sites=["resid_post"]), "curves")
    assert measured_values(curves, cosine, "refusal", -1) == {}
    assert largest_deviation({}, cosine, relative=False) is None


def test_shares_exclude_published_zeros_and_missing_values():
    (variance,) = (curve for curve in of(QWEN) if (curve.statistic, curve.prompt_set) == ("variance_mean", "harmless"))
    measured = {0: 1.0, 46: 6.719 * 1.5, 47: np.nan}
    result = largest_deviation(measured, variance, relative=True)
    assert result.depth == 46
    assert result.share == pytest.approx(0.5)
    assert largest_deviation({0: 1.0}, variance, relative=True) is None


def report_text(run):
    """Return the sentences of a report without their links."""
    return re.sub(r"</?a\b[^>]*>", "", render_report(run))


def test_the_report_contains_the_deviations_from_published_curves(tmp_path):
    page = report_text(qwen_run(tmp_path, variance_mean={"raw": 4.0}, difference_norm={"raw": 97.78}))
    assert "lone17/llm-activation-control, refusal_demo2.ipynb" in page
    assert_says(page, "16 prompts in each set, this run has 4 and 4", "128 prompts in each set")
    # Without a prediction, the difference itself is stated.
    assert_says(page, "cosine of means 0.0200 lower at layer 17 mid (measured: 0.7105, published: 0.7305)")
    assert_says(page, "variance of harmful 341 % higher at layer 20 pre (measured: 4, published: 0.9063)")


def predicting_run(folder, low=0.05, high=0.05, **options):
    """Write a run that predicts the published cosines at 16 prompts, except at 17-mid, and 0.3 at other numbers."""
    published = np.array(list(values(QWEN, "cosine_of_means").values()))
    predicted = np.stack([published[::2], published[1::2]])
    predicted[1, 17] -= 0.02
    by_size = np.stack([predicted, *[np.full_like(predicted, 0.3)] * (len(SAMPLE_SIZES) - 1)], axis=-1)[None, :, None]
    expected = {"value": by_size, "low": by_size - low, "high": by_size + high}
    return qwen_run(folder, cosine_of_means_expected=expected, **options)


def test_predictions_are_those_of_the_sources_number_of_prompts(tmp_path):
    curves = read_group(predicting_run(tmp_path), "curves")
    found = expected_values(curves, of(QWEN)[0], "refusal", -1)
    assert [one.depth for one in found] == list(range(48))
    assert all(one.is_inside for one in found)
    farthest = max(found, key=lambda one: one.distance)
    assert (farthest.depth, farthest.published) == (35, 0.7305)
    # 0.008 is the accuracy of the source's arithmetic
    np.testing.assert_allclose([farthest.value, farthest.low, farthest.high], [0.7105, 0.6525, 0.7685])
    assert farthest.distance == pytest.approx(0.02 / 0.058)
    assert expected_values(curves, of(QWEN)[1], "refusal", -1) == []


def test_the_report_compares_a_published_cosine_with_the_prediction(tmp_path):
    page = report_text(predicting_run(tmp_path, low=0.01, high=0.01))
    assert_says(page, "47 of 48 published … 95 % interval … for 16", "16 prompts in each set, this run has 4 and 4")
    assert_says(page, "at layer 17 mid: published 0.7305, predicted 0.7105 [0.6925, 0.7285]")
    assert "0.0200 lower" not in page


def test_the_report_of_another_model_has_no_published_curves(tmp_path):
    page = report_text(finished_run(tmp_path, {"curves": {"variance_mean": {"raw": 1.0}}}, contrasts=REFUSAL))
    assert "published values (" not in page
    assert "published, " not in page
