"""Sentences and figures that hold a statistic against its null or control."""

import numpy as np
import xarray as xr
from support.finished_runs import cached_run

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
CKA = "Debiased CKA between the input and the output of {}, median over layers: "


def controls(cka, other, alone, smaller=""):
    """Return a median CKA beside its controls; `smaller` is in how many layers the first control is smaller."""
    counted = f", smaller in {smaller} layers" if smaller else ""
    return f"{cka} (controls: input plus another prompt's step {other}{counted}; step alone {alone})"


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


def starting(section, text):
    """Return the only sentence that starts with this text."""
    (fact,) = (fact for fact in section.facts if fact.startswith(text))
    return fact


def cka_of(section, step):
    return starting(section, CKA.format(step))


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
    gaussian = "an isotropic Gaussian sample of the same size gives 90"
    assert facts[:2] == [
        f"Largest participation ratio over layers at resid_pre: harmful 30.0 in layer 2 (33.3 with standardised "
        f"features; {gaussian}; n = 64); harmless 20.0 in layer 0 (25.0 with standardised features; {gaussian}; n = "
        "63).",
        "Mean cosine between two prompts, over layers at resid_pre: harmful 0.90 to 0.90; harmless -0.20 to 0.30.",
    ]


def test_layers_without_a_variance_have_no_part_in_the_mean_cosine(tmp_path):
    ratios, cosines = np.full((2, 2, 1, 4), 20.0), np.full((2, 2, 1, 4), 0.6)
    ratios[0, 0, 0, 0], cosines[0, 0, 0] = np.nan, [1.0, 0.9, 0.7, 0.8]
    ratios[1, 0, 0, 2], cosines[1, 0, 0] = np.nan, [0.5, 0.6, -0.3, 0.55]
    values = {**SHAPE, "participation_ratio": {"raw": ratios}, "mean_cosine": {"raw": cosines}}
    assert starting(section_of(tmp_path, gram, "gram", values), "Mean cosine") == (
        "Mean cosine between two prompts, over layers at resid_pre: harmful 0.70 to 0.90; harmless 0.50 to 0.60."
    )


def test_sets_without_a_variance_are_named(tmp_path):
    one = np.full((2, 2, 1, 4), 20.0)
    one[0, 0] = np.nan  # at resid_pre; its other site is not described
    constant = "No layer of {} at resid_pre has a variance: a variance needs at least two different prompts."
    facts = section_of(tmp_path, gram, "gram", SHAPE | GAUSSIAN | {"participation_ratio": {"raw": one}}).facts
    assert facts[0] == constant.format("harmful")
    assert facts[1].startswith("Largest participation ratio over layers at resid_pre: harmless 20.0 in layer 0 (")
    assert facts[2] == "Mean cosine between two prompts, over layers at resid_pre: harmless 0.90 to 0.90."
    assert facts[3].startswith("Largest TwoNN dimension over layers at resid_pre: harmless 16.0 in layer 1 (")
    both = section_of(tmp_path / "both", gram, "gram", GAUSSIAN).facts
    assert both[0] == constant.format("harmful or harmless")
    assert not any(fact.startswith(("Largest", "Mean cosine")) for fact in both)


def test_cka_through_a_block_stands_beside_the_step_of_another_prompt_and_the_step_alone(tmp_path):
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **sublayer_cka(THROUGH, BRANCHES), **PERMUTED})
    numbers = {"attention": (0.994, 0.712, 0.763), "the MLP": (0.98, 0.8, 0.9), "the whole block": (0.97, 0.75, 0.85)}
    for step, (cka, other, alone) in numbers.items():
        text = controls(f"{cka:.3f}", f"{other:.3f}", f"{alone:.3f}", "4 of 4")
        assert cka_of(section, step) == f"{CKA.format(step)}harmful {text}; harmless {text}."
    assert not any("leave out" in fact for fact in section.facts)
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 2


def test_medians_of_cka_are_over_the_layers_of_each_set(tmp_path):
    by_set = np.array([[0.9, 0.8, np.nan, 0.7], [0.1, 0.2, 0.3, 0.4]])[:, None]
    permuted = by_set / [[[10]], [[0.5]]]
    values = SHAPE | sublayer_cka({"block": by_set}, {"block": by_set / 2})
    values["sublayer_cka_permuted"] = {"block": permuted}
    harmful = controls("0.800", "0.080", "0.400", "3 of 3")
    harmless = controls("0.250", "0.500", "0.125", "0 of 4")
    assert cka_of(section_of(tmp_path, gram, "gram", values), "the whole block") == (
        f"{CKA.format('the whole block')}harmful {harmful}; harmless {harmless}."
    )


def test_parallel_blocks_state_only_the_steps_that_they_have(tmp_path):
    values = SHAPE | sublayer_cka({"block": 0.97}, {"block": 0.85})
    section = section_of(tmp_path, gram, "gram", {**values, "sublayer_cka_permuted": {"block": 0.75}})
    assert [fact for fact in section.facts if fact.startswith("Debiased CKA")] == [cka_of(section, "the whole block")]


def test_cka_of_blocks_whose_steps_were_not_captured_has_no_controls(tmp_path):
    section = section_of(tmp_path, gram, "gram", SHAPE | sublayer_cka(THROUGH))
    expected = controls("0.994", "unknown", "unknown")
    assert cka_of(section, "attention").startswith(f"{CKA.format('attention')}harmful {expected}; harmless {expected}.")


def test_medians_of_cka_leave_out_and_name_sets_of_one_direction(tmp_path):
    ratios = np.full((2, 2, 1, 4), 20.0)
    ratios[1, 0, 0] = [1.001, 1.9, 1.5, 60.0]  # below 2 at three of four depths of resid_pre
    cka = np.array([0.9, 0.5])[:, None, None]
    values = SHAPE | sublayer_cka(THROUGH | {"attention": cka}) | {"sublayer_cka_permuted": {"attention": cka / 2}}
    section = section_of(tmp_path, gram, "gram", {**values, "participation_ratio": {"raw": ratios}})
    harmful = f"{CKA.format('attention')}harmful {controls('0.900', '0.450', 'unknown', '4 of 4')}"
    assert cka_of(section, "attention") == f"{harmful}."
    assert starting(section, "The medians of CKA") == (
        "The medians of CKA leave out harmless: the participation ratio is below 2 at most depths, so most of the "
        "variance lies in one direction, which decides the CKA."
    )
    ratios[1, 0, 0, 2] = 2.0
    section = section_of(tmp_path / "half", gram, "gram", {**values, "participation_ratio": {"raw": ratios}})
    harmless = controls("0.500", "0.250", "unknown", "4 of 4")
    assert cka_of(section, "attention") == f"{harmful}; harmless {harmless}."
    assert not any("leave out" in fact for fact in section.facts)


def test_no_median_is_stated_if_all_sets_have_one_direction(tmp_path):
    values = SHAPE | sublayer_cka(THROUGH, BRANCHES) | PERMUTED | {"participation_ratio": {"raw": 1.1}}
    text = " ".join(section_of(tmp_path, gram, "gram", values).facts)
    assert "Debiased CKA" not in text
    assert "leave out harmful, harmless" in text


def test_the_dimension_stands_beside_that_of_gaussian_samples(tmp_path):
    by_set = np.stack([np.tile(DIMENSION, (2, 1)), np.full((2, 4), 30.0)])[:, :, None]
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **GAUSSIAN, "intrinsic_dimension": {"raw": by_set}})
    gaussian = "samples rotated at random give 20.0 ± 1.5; over layers, the estimate is"
    times = "times that of rotated samples, n = 4"
    assert starting(section, "Largest TwoNN") == (
        f"Largest TwoNN dimension over layers at resid_pre: harmful 16.0 in layer 1 ({gaussian} 0.40 to 0.80 "
        f"{times}); harmless 30.0 in layer 0 ({gaussian} 1.50 to 1.50 {times})."
    )
    assert "harmful, Gaussian with the same covariance" in lines_of(section, "gram.shape")


def test_a_dimension_without_that_of_gaussian_samples_is_not_the_largest(tmp_path):
    gaussian = np.array([20.0, np.nan, 24.0, 20.0])
    null = {"intrinsic_dimension_null": {"mean": gaussian, "sd": 1.5}}
    section = section_of(tmp_path, gram, "gram", {**SHAPE, **GAUSSIAN, **null})
    expected = "harmful 12.0 in layer 2 (samples rotated at random give 24.0 ± 1.5; over layers, the estimate"
    times = "is 0.40 to 0.50 times that of rotated samples, n = 4"
    assert f"{expected} {times}); harmless" in starting(section, "Largest TwoNN")


def test_a_run_without_nulls_of_gram_has_its_other_sentences(tmp_path):
    section = section_of(
        tmp_path, gram, "gram", SHAPE | sublayer_cka(THROUGH) | {"intrinsic_dimension": {"raw": DIMENSION}}
    )
    text = controls("0.980", "unknown", "unknown")
    assert cka_of(section, "the MLP") == f"{CKA.format('the MLP')}harmful {text}; harmless {text}."
    assert not any("TwoNN" in fact for fact in section.facts)
    assert not any("Gaussian" in name for name in lines_of(section, "gram.shape"))
    assert lines_of(section, "gram.blocks").count("harmful, attention") == 1


def test_equal_signs_of_hidden_units_stand_beside_those_of_units_with_the_same_share(tmp_path):
    active = np.array([[0.5, 0.3, np.nan, 0.2], [0.1, 0.4, 0.25, 0.3]])[:, None]
    overlap = np.array([[0.7, 0.8, np.nan, 0.9], [0.95, 0.6, 0.85, 0.8]])[:, None]
    section = section_of(tmp_path, gram, "gram", {**SHAPE, "orthant_occupancy": active, "orthant_overlap": overlap})
    # p² + (1 - p)² is 50 % for p = 50 %, and 82 % for p = 10 %.
    assert starting(section, "A hidden unit") == (
        "A hidden unit of an MLP is active if its activation function gets a positive input. Share of active units, "
        "mean over all prompts that are not left out: 10 % to 50 % over layers and sets. Two prompts of a set agree "
        "in 60 % to 95 % of the hidden units on whether a unit is active. If all units of a layer were active equally "
        "often, and two prompts had nothing in common, they would agree in 50 % to 82 %; units that are active more "
        "often than others make the agreement larger, even if the prompts have nothing in common."
    )


def test_hidden_units_that_were_not_counted_have_a_reason(tmp_path):
    section = section_of(tmp_path, gram, "gram", SHAPE)
    assert section.facts[-1].startswith("The active hidden units of the MLPs were not counted. Possible reasons: ")
    assert not any("agree in" in fact for fact in section.facts)


def test_silhouettes_are_sentences_of_the_permutation_tests_and_numbers_of_the_table(tmp_path):
    values = {**SHAPE, "silhouette": {"raw": 0.375}, "norm_of_centre": {"positive": 1.0}}
    section = section_of(tmp_path, gram, "gram", values)
    assert not any("ilhouette" in fact for fact in section.facts)
    (table,) = section.tables
    assert [row[table.columns.index("silhouette")] for row in table.rows] == ["0.375"] * 4


SHARE = "The three features with the largest variances have this share of the total variance, over depths: "
EQUAL = (  # of eight features
    ". If all features had equal variances, three of them, chosen in advance, would have 37.5 %; the largest three of "
    "a sample have a little more."
)


def test_the_share_of_the_leading_features_is_stated_not_assumed(tmp_path):
    share = np.full((2, 2, 1, 4), 0.022)
    share[1, 1, 0, 3], share[1, 0, 0, 2] = 0.9, 0.5
    values = {"variance_max": {"raw": 5.0}, "variance_mean": {"raw": 1.0}, "variance_top3_share": {"raw": share}}
    section = section_of(tmp_path, curves, "curves", values)
    assert starting(section, SHARE) == (
        f"{SHARE}harmful 2.2 % to 2.2 % (maximum at layer 0 pre); harmless 2.2 % to 90.0 % (maximum at layer 3 mid)"
        f"{EQUAL}"
    )
    assert "In many models" not in section.how_to_read


def test_a_set_without_shares_is_left_out(tmp_path):
    share = np.full((2, 2, 1, 4), 0.25)
    share[0] = np.nan
    section = section_of(tmp_path, curves, "curves", {"variance_top3_share": {"raw": share}})
    assert starting(section, SHARE) == f"{SHARE}harmless 25.0 % to 25.0 % (maximum at layer 0 pre){EQUAL}"


LARGEST = "Largest variance of a feature over prompts (the curves end before the output of the last block): "


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
    assert starting(section_of(tmp_path, curves, "curves", values), LARGEST) == (
        f"{LARGEST}harmful 5 (feature 3 at layer 0 pre, 2.5 times the mean over features there); harmless 1.23e+03 "
        "(feature 7 at layer 2 mid, 617.2 times the mean over features there)."
    )
    largest[0] = np.nan
    section = section_of(tmp_path / "one", curves, "curves", values)
    assert starting(section, LARGEST).startswith(f"{LARGEST}harmless 1.23e+03 (feature 7")
    assert not any(fact.startswith(LARGEST) for fact in section_of(tmp_path / "none", curves, "curves", {}).facts)


def test_sets_whose_prompts_share_their_last_token_are_told_from_the_others(tmp_path):
    variances = np.full((2, 2, 1, 4), 2.0)
    variances[0, 0, 0, 0] = 0.0  # harmful, as it enters the first block
    run = cached_run(tmp_path, {"curves": {"variance_mean": {"raw": variances}}, "gram": SHAPE})
    (section,) = gram.sections(run)
    assert section.notes == [
        "at position -1, all prompts of harmful have the same token; the prompts of harmless have different tokens. "
        "This alone can make the statistics of harmless differ from those of harmful; so can a different template",
        parts.LARGEST,
        gram._SIZES,
        gram._ROTATED,
        gram.CKA_NOTE,
    ]
    variances[1, 0, 0, 0] = 0.0
    (equal,) = gram.sections(
        cached_run(tmp_path / "equal", {"curves": {"variance_mean": {"raw": variances}}, "gram": SHAPE})
    )
    assert equal.notes == [parts.LARGEST, gram._SIZES, gram._ROTATED, gram.CKA_NOTE]


def test_several_sets_that_share_a_token_are_not_independent(monkeypatch):
    dims = ("set", "site", "position", "layer", "space")
    labels = {"set": ["a", "b", "c"], "site": ["resid_pre"], "position": [-1], "layer": [0], "space": ["raw"]}
    entering = xr.Dataset({"variance_mean": (dims, np.array([0.0, 2.0, 0.0]).reshape(3, 1, 1, 1, 1))}, labels)
    entering["difference_norm"] = ("contrast", *dims[1:]), np.array([2.0, 0.0]).reshape(2, 1, 1, 1, 1)
    entering.attrs["contrasts"] = {name: {"positive": name, "negative": "c"} for name in ("a", "c")}
    entering = entering.assign_coords(contrast=["a", "c"])
    monkeypatch.setattr(parts, "read_group", lambda *_: entering)
    assert parts.token_notes(None, {"a": "one", "b": "two", "c": "three"}, -1) == [
        "at position -1, all prompts of one have the same token, and so have those of three; the prompts of two have "
        "different tokens. This alone can make the statistics of two differ from those of one and three; so can a "
        "different template. The shared tokens can also make the statistics of one and three agree, so equal results "
        "of these sets are not independent findings"
    ]
    assert parts.same_token_notes(None, ["a", "c"], {"a": "one", "c": "three"}, -1) == [
        "at position -1, all prompts of one have the same token, and so have those of three. This alone makes the "
        "activations of a set similar, and equal at the input of the first block"
    ]
    assert parts.same_token_notes(None, ["c", "c"], {"c": "three"}, -1) == [
        "at position -1, all prompts of three have the same token. This alone makes activations similar, within and "
        "between sets, and equal at the input of the first block"
    ]
    assert parts.same_token_notes(None, ["a", "b"], {"a": "one", "b": "two"}, -1) == []
