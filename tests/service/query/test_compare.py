"""Check comparisons of one curve of several runs: relative depths, milestones, and errors."""

import numpy as np
import pytest
from support.each import each
from support.finished_runs import REFUSAL, finished_run, model_facts
from support.stored import store_run

from theodolite.errors import SpecError, StoreError
from theodolite.query.compare import (
    Question,
    comparison,
    contrast_choices,
    labels,
    milestones,
    records,
)
from theodolite.query.curves import STATISTICS
from theodolite.store.labels import Labels, change_labels
from theodolite.store.runs import open_run

# (contrast, site, position, layer): pre and mid of four layers
COSINES = np.array([[[[1.0, 0.9, 0.7, 0.8]], [[0.95, 0.6, 0.75, 0.85]]]])


def curves(**values):
    return {"curves": {"cosine_of_means_debiased": raw(COSINES), **values}}


def raw(value, **ends):
    """Return a statistic of unscaled activations, with some ends of its interval and band."""
    return {end: {"raw": numbers} for end, numbers in {"value": value, **ends}.items()}


def test_points_have_relative_depths_in_ascending_order(tmp_path):
    run = finished_run(tmp_path, curves())
    frame = comparison([run], Question())
    assert frame["relative_depth"].tolist() == [0, 0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875]
    assert frame["value"].tolist() == [1.0, 0.95, 0.9, 0.6, 0.7, 0.75, 0.8, 0.85]
    assert frame["site"].tolist() == ["resid_pre", "resid_mid"] * 4
    assert frame["layer"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert set(frame["run_id"]) == {"tiny-0"}
    assert set(frame["statistic"]) == {"cosine_of_means_debiased"}


def test_relative_depth_refers_to_all_layers_of_the_model(tmp_path):
    values = {"curves": {"cosine_of_means_debiased": raw(COSINES[..., 2:])}}
    run = finished_run(tmp_path, values, model_facts(n_layers=10), layers=[4, 9])
    assert comparison([run], Question(site="resid_mid"))["relative_depth"].tolist() == [0.45, 0.95]


def test_models_with_different_numbers_of_layers_share_one_table(tmp_path):
    deep = finished_run(
        tmp_path, {"curves": {"cosine_of_means_debiased": raw(0.5)}}, model_facts("deep", 6), run_id="deep-0"
    )
    shallow = finished_run(tmp_path, curves())
    frame = comparison([deep, shallow], Question())
    assert frame.groupby("model", sort=False).size().to_dict() == {"deep": 12, "tiny": 8}


@each("group", sorted({one.group for one in STATISTICS.values()}))
def test_every_kind_of_statistic_along_depth_can_be_compared(tmp_path, group):
    statistics = {name: one.variable for name, one in STATISTICS.items() if one.group == group}
    run = finished_run(tmp_path, {group: {variable.name: 3 for variable in statistics.values()}})
    for name in {variable.dims: name for name, variable in statistics.items()}.values():
        dims = statistics[name].dims
        frame = comparison([run], Question(name, prompt_set="harmless" if "set" in dims else None))
        assert len(frame) == (8 if "site" in dims else 4)
        assert set(frame["value"]) == {3}


def test_a_statistic_of_whole_blocks_has_the_depth_of_the_block_input(tmp_path):
    run = finished_run(tmp_path, {"travel": {"step_norm": {"mean": np.arange(1, 5)[:, None]}}})
    frame = comparison([run], Question("step_norm@sublayer=block,summary=mean", prompt_set="harmful"))
    assert frame["relative_depth"].tolist() == [0, 0.25, 0.5, 0.75]
    assert set(frame["site"]) == {""}


def test_intervals_are_returned_if_the_statistic_has_one(tmp_path):
    debiased = raw(COSINES, low=0.3, high=0.6)
    run = finished_run(tmp_path, curves(cosine_of_means={"raw": 0.4}, cosine_of_means_debiased=debiased))
    frame = comparison([run], Question())
    assert (set(frame["low"]), set(frame["high"])) == ({0.3}, {0.6})
    # The interval belongs to the debiased cosine, so the plain one has none.
    assert comparison([run], Question("cosine_of_means"))[["low", "high"]].isna().all(axis=None)


def test_each_run_is_compared_at_its_last_measured_position(tmp_path):
    at_minus_two = np.concatenate([COSINES, np.full_like(COSINES, np.nan)], axis=2)
    runs = [
        finished_run(tmp_path, {"curves": {"cosine_of_means_debiased": raw(at_minus_two)}}, positions=[-2, -1]),
        finished_run(tmp_path, curves(), run_id="other-0"),
    ]
    frame = comparison(runs, Question())
    assert frame.groupby("run_id")["position"].unique().map(list).to_dict() == {"tiny-0": [-2], "other-0": [-1]}
    with pytest.raises(SpecError, match="position: other-0 has no values at -2; it has: -1"):
        comparison(runs, Question(position=-2))


def test_only_block_inputs_and_middles_are_compared_by_default(tmp_path):
    """A block's output is the next block's input, so the comparison uses only block inputs and middles by default."""
    values = {"curves": {"cosine_of_means_debiased": raw(0.5)}}
    run = finished_run(tmp_path, values, sites=["resid_pre", "resid_mid", "resid_post", "attn_out"])
    assert set(comparison([run], Question())["site"]) == {"resid_pre", "resid_mid"}
    after = comparison([run], Question(site="resid_post"))
    assert after["relative_depth"].tolist() == [0.25, 0.5, 0.75, 1]


def test_milestones_are_the_smallest_cosine_and_the_depth_from_which_on_sets_are_separated(tmp_path):
    low = np.array([[[[0.5, 0.8, 0.96, 0.99]], [[0.6, 0.94, 0.97, 0.96]]]])
    cosine = raw(COSINES, band_low=COSINES - 0.1, band_high=COSINES + 0.1)
    auroc = np.array([[[[0.5, 0.6, 0.7, 0.8]], [[0.5, 0.6, 0.7, 0.97]]]])
    p = np.array([[[[np.nan, 0.05, 0.01, 0.01]], [[0.06, 0.01, 0.01, 0.01]]]])
    groups = {
        "separation": {"auroc": {"value": auroc, "band_low": low}},
        "permutations": {"tested_null": {"auroc": {"p_family": p}}},
    }
    run = finished_run(tmp_path, curves(cosine_of_means_debiased=cosine) | groups)
    (row,) = records(milestones([run], Question()))
    assert row == {
        "run_id": "tiny-0",
        "model": "tiny",
        "contrast": "refusal",
        "position": -1,
        "least_cosine": 0.6,
        "least_cosine_low": 0.5,
        "least_cosine_high": 0.7,
        "least_cosine_at": "1-mid",
        "least_cosine_relative_depth": 0.375,
        "separates_at": "2-pre",
        "separates_relative_depth": 0.5,
        "largest_auroc": 0.97,
        "largest_auroc_at": "3-mid",
        "largest_auroc_low": 0.99,
        "above_chance_at": "1-pre",
    }
    (lower,) = records(milestones([run], Question(), bound=0.94))
    assert lower["separates_at"] == "1-mid"
    (scattered,) = records(milestones([run], Question(), bound=0.965))
    assert scattered["separates_at"] == "never", "the last depth is below the bound again"
    (at_pre,) = records(milestones([run], Question(site="resid_pre")))
    assert (at_pre["least_cosine_at"], at_pre["separates_at"]) == ("2-pre", "2-pre")


def test_milestones_may_be_never_not_measured_or_not_resolved(tmp_path):
    separation = {"separation": {"auroc": {"band_low": 0.9}}}
    runs = [
        finished_run(tmp_path, curves() | separation, run_id="never-0"),
        finished_run(tmp_path, curves(), run_id="unmeasured-0"),
        finished_run(tmp_path, {"curves": {}} | separation, run_id="unresolved-0"),
        finished_run(tmp_path, {"curves": {"variance_mean": {"raw": 1}}}, run_id="alone-0", contrasts={}),
    ]
    milestones_at = {
        row["run_id"]: (row["least_cosine_at"], row["separates_at"], row["largest_auroc_low"])
        for row in records(milestones(runs, Question()))
    }
    assert milestones_at == {
        "never-0": ("1-mid", "never", 0.9),
        "unmeasured-0": ("1-mid", "not measured", None),
        "unresolved-0": ("not resolved", "never", 0.9),
        "alone-0": ("not measured", "not measured", None),
    }
    assert all(row["separates_relative_depth"] is None for row in records(milestones(runs, Question())))


@each("p, expected", [(np.nan, "not measured"), (0.06, "never"), (0.05, "0-pre")])
def test_the_first_depth_above_chance_may_be_never_or_not_measured(tmp_path, p, expected):
    auroc = {"value": 0.9, "band_low": 0.8}
    groups = {"separation": {"auroc": auroc}, "permutations": {"tested_null": {"auroc": {"p_family": p}}}}
    (row,) = records(milestones([finished_run(tmp_path, curves() | groups)], Question()))
    assert (row["above_chance_at"], row["largest_auroc_at"]) == (expected, "0-pre")


def test_the_labels_of_runs_of_one_model_contain_their_names(tmp_path):
    for run_id, name in (("one-0a", "chat"), ("two-0b", "plain"), ("three-0c", None)):
        change_labels(finished_run(tmp_path, curves(), run_id=run_id), Labels(name=name))
    runs = [open_run(str(tmp_path), run_id) for run_id in ("one-0a", "two-0b", "three-0c")]
    assert list(labels(comparison(runs, Question())).values()) == ["tiny (chat)", "tiny (plain)", "tiny (0c)"]
    change_labels(runs[1], Labels(name="chat"))
    assert list(labels(comparison(runs, Question())).values()) == ["tiny (0a)", "tiny (0b)", "tiny (0c)"]


def test_the_separation_of_another_contrast_is_ignored(tmp_path):
    other = {"other": REFUSAL["refusal"]}
    run = finished_run(tmp_path, curves(), contrasts=REFUSAL)
    finished_run(tmp_path, {"separation": {"auroc": {"band_low": 1.0}}}, contrasts=other)
    (row,) = records(milestones([run], Question()))
    assert row["separates_at"] == "not measured"


@each(
    "question, message",
    [
        (
            Question("cosine"),
            r"statistic: given 'cosine', .* of the \d+ allowed names, these are the most similar: .*cosine_of_means",
        ),
        (Question("mean"), "statistic: given 'mean'"),  # it has the dimension d_model
        (Question(contrast="subject"), "contrast: tiny-0 has no 'subject'; it has: refusal"),
        (Question("variance_mean"), "set: not given, and tiny-0 has 2; choose one of: harmful, harmless"),
        (Question("variance_mean", prompt_set="nouns"), "set: tiny-0 has no 'nouns'; it has: harmful, harmless"),
        (
            Question(prompt_set="harmful"),
            "set: given 'harmful', but .* is no statistic of single sets",
        ),
        (Question(site="attn_out"), "site: tiny-0 has no 'attn_out'; it has: resid_pre, resid_mid"),
        (Question(position=-5), "position: tiny-0 has no values at -5; it has: -1"),
    ],
)
def test_the_error_for_an_invalid_question_lists_the_allowed_values(tmp_path, question, message):
    run = finished_run(tmp_path, curves(variance_mean={"raw": 1}))
    with pytest.raises(SpecError, match=message):
        comparison([run], question)


def test_a_contrast_is_required_if_a_run_has_several(tmp_path):
    contrasts = {**REFUSAL, "other": REFUSAL["refusal"]}
    run = finished_run(tmp_path, {"curves": {"cosine_of_means_debiased": raw(0.5)}}, contrasts=contrasts)
    with pytest.raises(SpecError, match="contrast: not given, and tiny-0 has 2; choose one of: refusal, other"):
        comparison([run], Question())
    assert len(comparison([run], Question(contrast="other"))) == 8


def test_a_site_is_rejected_for_a_statistic_of_whole_blocks(tmp_path):
    run, name = finished_run(tmp_path, {"travel": {"step_norm": 1}}), "step_norm@sublayer=attention,summary=mean"
    with pytest.raises(SpecError, match=f"site: given 'resid_pre', but {name} is a statistic of whole blocks"):
        comparison([run], Question(name, prompt_set="harmful", site="resid_pre"))


def test_the_error_for_an_incomplete_run_or_missing_group_names_it(tmp_path):
    run = finished_run(tmp_path, curves())
    with pytest.raises(StoreError, match=r"tiny-0 has no results 'gram'; .*analyses: \[gram\]"):
        comparison([run], Question("mean_cosine", prompt_set="harmful"))
    values = {"resid_pre": np.ones((4, 1, 3, 8), np.float32)}
    captured = store_run(tmp_path, {"bad": values, "good": values}, run_id="captured-0")
    with pytest.raises(StoreError, match="captured-0 is not complete: its state is captured"):
        comparison([run, captured], Question())


def test_labels_of_runs_of_one_model_contain_part_of_their_ids(tmp_path):
    one, other, third = (
        finished_run(tmp_path, curves(), model_facts(name), run_id=run_id)
        for name, run_id in (("tiny", "tiny-0123456789ab"), ("tiny", "tiny-ba9876543210"), ("else", "else-0"))
    )
    assert labels(comparison([one, other, third], Question())) == {
        "tiny-0123456789ab": "tiny (012345)",
        "tiny-ba9876543210": "tiny (ba9876)",
        "else-0": "else",
    }


def two_of_other_names(tmp_path):
    """Two runs, the second with two contrasts that have other names than the contrast of the first."""
    first = finished_run(tmp_path, curves())
    both = {name: {**REFUSAL["refusal"]} for name in ("harm", "danger")}
    values = {"curves": {"cosine_of_means_debiased": raw(np.concatenate([COSINES, COSINES / 2]))}}
    return [first, finished_run(tmp_path, values, contrasts=both, run_id="tiny-1")]


def test_contrasts_of_other_names_are_compared(tmp_path):
    runs = two_of_other_names(tmp_path)
    choices = contrast_choices(["refusal", "tiny-1:danger"], ["tiny-0", "tiny-1"])
    frame = comparison(runs, Question(**choices))
    assert frame.groupby("run_id")["contrast"].unique().map(list).to_dict() == {
        "tiny-0": ["refusal"],
        "tiny-1": ["danger"],
    }
    assert frame["value"].tolist()[8:] == [value / 2 for value in frame["value"][:8]]
    assert labels(frame) == {"tiny-0": "tiny (0), refusal", "tiny-1": "tiny (1), danger"}
    assert milestones(runs, Question(**choices))["contrast"].tolist() == ["refusal", "danger"]


def test_a_contrast_of_one_run_must_name_a_compared_run_and_only_one(tmp_path):
    with pytest.raises(SpecError, match="given for tiny-2, which is not one of the compared runs"):
        contrast_choices(["tiny-2:danger"], ["tiny-0", "tiny-1"])
    for given in (["a", "b"], ["tiny-0:a", "tiny-0:b"]):
        with pytest.raises(SpecError, match="given twice for the same run"):
            contrast_choices(given, ["tiny-0"])
    runs = two_of_other_names(tmp_path)
    with pytest.raises(SpecError, match="tiny-1 has no 'refusal'; it has: harm, danger"):
        comparison(runs, Question(**contrast_choices(["refusal"], ["tiny-0", "tiny-1"])))
