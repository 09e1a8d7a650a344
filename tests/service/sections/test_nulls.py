"""Sentences and figures that hold a statistic against its null or control."""

import re

import numpy as np
import xarray as xr
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.curves import sections as curves
from theodolite.groups.gram import sections as gram
from theodolite.sections import parts

SHAPE = {
    "participation_ratio": {"raw": 20.0, "standardised": 25.0},
    "participation_ratio_gaussian": 90.0,
    "mean_cosine": {"raw": 0.9},
}
THROUGH = {"attention": 0.994, "mlp": 0.98, "block": 0.97}
PERMUTED = {"sublayer_cka_permuted": {"attention": 0.712, "mlp": 0.8, "block": 0.75}}
BRANCHES = {"attention": 0.763, "mlp": 0.9, "block": 0.85}
DIMENSION = np.array([10.0, 16.0, 12.0, 8.0])
GAUSSIAN = {
    "intrinsic_dimension": {"raw": DIMENSION},
    "intrinsic_dimension_null": {"mean": 20.0, "sd": 1.5},
}


def controls(cka, other, alone, smaller=""):
    """Return a median CKA beside its controls; `smaller` is in how many layers the first control is smaller."""
    counted = f" … smaller in {smaller} layers" if smaller else ""
    return f"{cka} … another prompt's step {other}{counted} … step alone {alone}"


def sublayer_cka(through, branches=None):
    """Return the CKA without scaling, from numbers for each sublayer: broadcast to (set, position, layer)."""
    values = np.full((2, 1, 4, 3, 2, 3), np.nan)
    for output, of_sublayers in enumerate((through, branches or {})):
        for name, numbers in of_sublayers.items():
            values[..., list(THROUGH).index(name), output, 0] = numbers
    return {"sublayer_cka": values}


def section_of(tmp_path, module, name, values):
    (section,) = module.sections(cached_run(tmp_path, {"curves": {}, name: values}))
    return section


def about(section, text):
    """Return the only sentence with this text."""
    (fact,) = (fact for fact in section.facts if text in fact)
    return fact


def cka_of(section, step):
    """Return the only sentence about the CKA through a step, which its first words name."""
    (fact,) = (fact for fact in section.facts if re.match(f"[^:]*CKA[^:]*{step}", fact))
    return fact


def lines_of(section, name):
    (figure,) = (one for one in section.figures if one.name == name)
    return [trace.name for trace in figure.draw().data if trace.name]


def test_the_participation_ratio_of_all_sets_stands_beside_that_of_a_gaussian(tmp_path):
    ratios = np.full((2, 2, 1, 4), 20.0)
    ratios[0, 0, 0] = [5.0, 21.5, 30.04, np.nan]
    standardised = np.full((2, 2, 1, 4), 25.0)
    standardised[0, 0, 0] = [1.0, 2.0, 33.3, 4.0]
    counts = {"n_samples": np.array([[64], [63]])}
    cosines = np.full((2, 2, 1, 4), 0.9)
    cosines[1, 0, 0] = [0.1, np.nan, -0.204, 0.3]
    values = {
        "participation_ratio": {"raw": ratios, "standardised": standardised},
        "mean_cosine": {"raw": cosines},
    }
    facts = section_of(tmp_path, gram, "gram", SHAPE | values | counts).facts
    assert_says(
        facts,
        "participation ratio … resid_pre … harmful 30.0 in layer 2 (33.3 … Gaussian … 90 … n = 64",
        "participation ratio … harmless 20.0 in layer 0 (25.0 … Gaussian … 90 … n = 63",
        "mean cosine … resid_pre: harmful 0.90 to 0.90; harmless -0.20 to 0.30",
    )


def test_layers_without_a_variance_have_no_part_in_the_mean_cosine(tmp_path):
    ratios, cosines = np.full((2, 2, 1, 4), 20.0), np.full((2, 2, 1, 4), 0.6)
    ratios[0, 0, 0, 0], cosines[0, 0, 0] = np.nan, [1.0, 0.9, 0.7, 0.8]
    ratios[1, 0, 0, 2], cosines[1, 0, 0] = np.nan, [0.5, 0.6, -0.3, 0.55]
    values = {**SHAPE, "participation_ratio": {"raw": ratios}, "mean_cosine": {"raw": cosines}}
    section = section_of(tmp_path, gram, "gram", values)
    assert_says(section.facts, "mean cosine … resid_pre: harmful 0.70 to 0.90; harmless 0.50 to 0.60")


def test_sets_without_a_variance_are_named(tmp_path):
    one = np.full((2, 2, 1, 4), 20.0)
    one[0, 0] = np.nan  # at resid_pre; its other site is not described
    facts = section_of(tmp_path, gram, "gram", SHAPE | GAUSSIAN | {"participation_ratio": {"raw": one}}).facts
    assert_says(
        facts,
        "No layer of harmful at resid_pre has a variance",
        "participation ratio … resid_pre: harmless 20.0 in layer 0",
        "mean cosine … resid_pre: harmless 0.90 to 0.90",
        "TwoNN dimension … resid_pre: harmless 16.0 in layer 1",
    )
    both = section_of(tmp_path / "both", gram, "gram", GAUSSIAN).facts
    assert_says(both, "harmful or harmless … has a variance")
    assert not any("Largest" in fact or "cosine" in fact for fact in both)


def test_cka_through_a_block_stands_beside_the_step_of_another_prompt_and_the_step_alone(tmp_path):
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **sublayer_cka(THROUGH, BRANCHES), **PERMUTED})
    numbers = {"attention": (0.994, 0.712, 0.763), "MLP": (0.98, 0.8, 0.9), "whole block": (0.97, 0.75, 0.85)}
    for step, (cka, other, alone) in numbers.items():
        text = controls(f"{cka:.3f}", f"{other:.3f}", f"{alone:.3f}", "4 of 4")
        assert_says(cka_of(section, step), f"harmful {text} … harmless {text}")
    assert not any("leave out" in fact for fact in section.facts)
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 2


def test_medians_of_cka_are_over_the_layers_of_each_set(tmp_path):
    by_set = np.array([[0.9, 0.8, np.nan, 0.7], [0.1, 0.2, 0.3, 0.4]])[:, None]
    permuted = by_set / [[[10]], [[0.5]]]
    values = SHAPE | sublayer_cka({"block": by_set}, {"block": by_set / 2})
    values["sublayer_cka_permuted"] = {"block": permuted}
    harmful = controls("0.800", "0.080", "0.400", "3 of 3")
    harmless = controls("0.250", "0.500", "0.125", "0 of 4")
    section = section_of(tmp_path, gram, "gram", values)
    assert_says(cka_of(section, "whole block"), f"harmful {harmful} … harmless {harmless}")


def test_parallel_blocks_state_only_the_steps_that_they_have(tmp_path):
    values = SHAPE | sublayer_cka({"block": 0.97}, {"block": 0.85})
    section = section_of(tmp_path, gram, "gram", {**values, "sublayer_cka_permuted": {"block": 0.75}})
    assert [fact for fact in section.facts if "Debiased CKA" in fact] == [cka_of(section, "whole block")]


def test_cka_of_blocks_whose_steps_were_not_captured_has_no_controls(tmp_path):
    section = section_of(tmp_path, gram, "gram", SHAPE | sublayer_cka(THROUGH))
    expected = controls("0.994", "unknown", "unknown")
    assert_says(cka_of(section, "attention"), f"harmful {expected} … harmless {expected}")


def test_medians_of_cka_leave_out_and_name_sets_of_one_direction(tmp_path):
    ratios = np.full((2, 2, 1, 4), 20.0)
    ratios[1, 0, 0] = [1.001, 1.9, 1.5, 60.0]  # below 2 at three of four depths of resid_pre
    cka = np.array([0.9, 0.5])[:, None, None]
    values = SHAPE | sublayer_cka(THROUGH | {"attention": cka}) | {"sublayer_cka_permuted": {"attention": cka / 2}}
    section = section_of(tmp_path, gram, "gram", {**values, "participation_ratio": {"raw": ratios}})
    assert_says(cka_of(section, "attention"), f"harmful {controls('0.900', '0.450', 'unknown', '4 of 4')}")
    assert "harmless" not in cka_of(section, "attention")
    assert_says(section.facts, "CKA leave out harmless … participation ratio … below 2 … one direction")
    ratios[1, 0, 0, 2] = 2.0
    section = section_of(tmp_path / "half", gram, "gram", {**values, "participation_ratio": {"raw": ratios}})
    assert_says(cka_of(section, "attention"), f"harmless {controls('0.500', '0.250', 'unknown', '4 of 4')}")
    assert not any("leave out" in fact for fact in section.facts)


def test_no_median_is_stated_if_all_sets_have_one_direction(tmp_path):
    values = SHAPE | sublayer_cka(THROUGH, BRANCHES) | PERMUTED | {"participation_ratio": {"raw": 1.1}}
    text = " ".join(section_of(tmp_path, gram, "gram", values).facts)
    assert "Debiased CKA" not in text
    assert "leave out harmful, harmless" in text


def test_the_dimension_stands_beside_that_of_gaussian_samples(tmp_path):
    by_set = np.stack([np.tile(DIMENSION, (2, 1)), np.full((2, 4), 30.0)])[:, :, None]
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **GAUSSIAN, "intrinsic_dimension": {"raw": by_set}})
    harmful = "harmful 16.0 in layer 1 … rotated … 20.0 ± 1.5 … 0.40 to 0.80 times … n = 4"
    harmless = "harmless 30.0 in layer 0 … rotated … 20.0 ± 1.5 … 1.50 to 1.50 times … n = 4"
    assert_says(section.facts, f"TwoNN dimension … resid_pre … {harmful} … {harmless}")
    assert "harmful, fitted Gaussian" in lines_of(section, "gram.shape")


def test_a_dimension_without_that_of_gaussian_samples_is_not_the_largest(tmp_path):
    gaussian = np.array([20.0, np.nan, 24.0, 20.0])
    null = {"intrinsic_dimension_null": {"mean": gaussian, "sd": 1.5}}
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **GAUSSIAN, **null})
    assert_says(section.facts, "TwoNN … harmful 12.0 in layer 2 … 24.0 ± 1.5 … 0.40 to 0.50 times … n = 4 … harmless")


def test_a_run_without_nulls_of_gram_has_its_other_sentences(tmp_path):
    section = section_of(
        tmp_path, gram, "gram", SHAPE | sublayer_cka(THROUGH) | {"intrinsic_dimension": {"raw": DIMENSION}}
    )
    text = controls("0.980", "unknown", "unknown")
    assert_says(cka_of(section, "MLP"), f"harmful {text} … harmless {text}")
    assert not any("TwoNN" in fact for fact in section.facts)
    assert not any("Gaussian" in name for name in lines_of(section, "gram.shape"))
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 1


def test_equal_signs_of_hidden_units_stand_beside_those_of_units_with_the_same_share(tmp_path):
    active = np.array([[0.5, 0.3, np.nan, 0.2], [0.1, 0.4, 0.25, 0.3]])[:, None]
    overlap = np.array([[0.7, 0.8, np.nan, 0.9], [0.95, 0.6, 0.85, 0.8]])[:, None]
    section = section_of(tmp_path, gram, "gram", {**SHAPE, "orthant_occupancy": active, "orthant_overlap": overlap})
    # p² + (1 - p)² is 50 % for p = 50 %, and 82 % for p = 10 %.
    assert_says(
        section.facts,
        "active units … 10 % to 50 % … agree in 60 % to 95 % … nothing in common … 50 % to 82 %",
    )


def test_hidden_units_that_were_not_counted_have_a_reason(tmp_path):
    section = section_of(tmp_path, gram, "gram", SHAPE)
    assert_says(section.facts, "hidden units … not counted")
    assert not any("agree in" in fact for fact in section.facts)


def test_silhouettes_are_sentences_of_the_permutation_tests_and_numbers_of_the_table(tmp_path):
    values = {**SHAPE, "silhouette": {"raw": 0.375}, "norm_of_centre": {"positive": 1.0}}
    section = section_of(tmp_path, gram, "gram", values)
    assert not any("ilhouette" in fact for fact in section.facts)
    (table,) = section.tables
    assert [row[table.columns.index("silhouette")] for row in table.rows] == ["0.375"] * 4


SHARE = "three features with"
EQUAL = "equal variances … 37.5 %"
"""Of eight features."""


def test_the_share_of_the_leading_features_is_stated_not_assumed(tmp_path):
    share = np.full((2, 2, 1, 4), 0.022)
    share[1, 1, 0, 3], share[1, 0, 0, 2] = 0.9, 0.5
    values = {"variance_max": {"raw": 5.0}, "variance_mean": {"raw": 1.0}, "variance_top3_share": {"raw": share}}
    section = section_of(tmp_path, curves, "curves", values)
    harmful, harmless = "2.2 % to 2.2 % (maximum at layer 0 pre)", "2.2 % to 90.0 % (maximum at layer 3 mid)"
    assert_says(section.facts, f"{SHARE} … total variance … harmful {harmful}; harmless {harmless} … {EQUAL}")


def test_a_set_without_shares_is_left_out(tmp_path):
    share = np.full((2, 2, 1, 4), 0.25)
    share[0] = np.nan
    section = section_of(tmp_path, curves, "curves", {"variance_top3_share": {"raw": share}})
    assert_says(section.facts, f"{SHARE} … harmless 25.0 % to 25.0 % (maximum at layer 0 pre) … {EQUAL}")
    assert "harmful" not in about(section, SHARE)


LARGEST = "Largest variance of a feature"


def test_the_largest_variance_of_both_sets_stands_beside_the_mean_over_features(tmp_path):
    largest = np.full((2, 2, 1, 4), 5.0)
    largest[1, 1, 0, 2], largest[1, 0, 0, 0] = 1234.5, np.nan
    features = np.full((2, 2, 1, 4), 3)
    features[1, 1, 0, 2] = 7
    values = {
        "variance_max": {"raw": largest},
        "variance_mean": {"raw": 2.0},
        "variance_max_feature": {"raw": features, "sphere": 4},
    }
    assert_says(
        section_of(tmp_path, curves, "curves", values).facts,
        f"{LARGEST} … harmful 5 (feature 3 at layer 0 pre, 2.5 times … harmless 1.23e+03 (feature 7",
        f"{LARGEST} … harmless 1.23e+03 (feature 7 at layer 2 mid, 617.2 times",
    )
    largest[0] = np.nan
    section = section_of(tmp_path / "one", curves, "curves", values)
    assert_says(section.facts, f"{LARGEST} … harmless 1.23e+03 (feature 7")
    assert "harmful" not in about(section, LARGEST)
    assert not any(LARGEST in fact for fact in section_of(tmp_path / "none", curves, "curves", {}).facts)


def test_sets_whose_prompts_share_their_last_token_are_told_from_the_others(tmp_path):
    variances = np.full((2, 2, 1, 4), 2.0)
    variances[0, 0, 0, 0] = 0.0  # harmful, as it enters the first block
    run = cached_run(tmp_path, {"curves": {"variance_mean": {"raw": variances}}, "gram": SHAPE})
    (section,) = gram.sections(run)
    constant = [parts.LARGEST, gram._SIZES, gram._ROTATED, gram.CKA_NOTE]
    first, *others = section.notes
    assert_says(first, "position -1 … harmful have … same token … harmless have different tokens")
    assert others == constant
    variances[1, 0, 0, 0] = 0.0
    (equal,) = gram.sections(
        cached_run(tmp_path / "equal", {"curves": {"variance_mean": {"raw": variances}}, "gram": SHAPE})
    )
    assert equal.notes == constant


def test_several_sets_that_share_a_token_are_not_independent(monkeypatch):
    dims = ("set", "site", "position", "layer", "space")
    labels = {"set": ["a", "b", "c"], "site": ["resid_pre"], "position": [-1], "layer": [0], "space": ["raw"]}
    entering = xr.Dataset({"variance_mean": (dims, np.array([0.0, 2.0, 0.0]).reshape(3, 1, 1, 1, 1))}, labels)
    entering["difference_norm"] = ("contrast", *dims[1:]), np.array([2.0, 0.0]).reshape(2, 1, 1, 1, 1)
    entering.attrs["contrasts"] = {name: {"positive": name, "negative": "c"} for name in ("a", "c")}
    entering = entering.assign_coords(contrast=["a", "c"])
    monkeypatch.setattr(parts, "read_group", lambda *_: entering)
    (note,) = parts.token_notes(None, {"a": "one", "b": "two", "c": "three"}, -1)
    same = "position -1 … one have … same token … three"
    assert_says(note, f"{same} … two have different tokens … two differ from … one and three agree")
    (note,) = parts.same_token_notes(None, ["a", "c"], {"a": "one", "c": "three"}, -1)
    assert_says(note, f"{same} … activations of a set similar")
    (note,) = parts.same_token_notes(None, ["c", "c"], {"c": "three"}, -1)
    assert_says(note, "three have … same token … within and between sets")
    assert parts.same_token_notes(None, ["a", "b"], {"a": "one", "b": "two"}, -1) == []
