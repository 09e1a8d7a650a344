"""Sentences about the separation of two sets, and sentences and a table of its tests with permuted labels."""

from dataclasses import replace

import numpy as np
import pytest
from support.analysed_runs import draw, silent
from support.analysing import analyse
from support.each import each
from support.finished_runs import cached_run, merged
from support.nightly import at_night
from support.stored import store_run

from theodolite.groups.curves import sections as curves
from theodolite.groups.directions import sections as directions
from theodolite.groups.separation import sections as separation
from theodolite.query.compare import BOUND
from theodolite.sections.parts import CHANCE, Table, in_brackets
from theodolite.store.cache import Cache

Z = {
    "auroc": np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 9.0, 8.0, 7.0]]),
    "paired_accuracy": np.array([[np.nan, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 6.04]]),
    "difference_norm": np.array([[5.0, 1.0, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]),
    "silhouette": np.array([[-1.0, 1.0, 12.0, 1.0], [1.0, 1.0, 1.0, 1.0]]),
    "on_sphere_auroc": np.array([[1.0, 2.0, 3.0, 4.0], [2.0, 9.0, 8.0, 7.0]]),
    "norm_auroc": np.zeros((2, 4)),
    "ridge_auroc": np.zeros((2, 4)),
}
"""z of each statistic, (site, layer)."""

NULLS = {
    "auroc": (0.5, 0.05),
    "paired_accuracy": (0.5, 0.08),
    "difference_norm": (2.0, 0.5),
    "silhouette": (0.004, 0.01),
    "on_sphere_auroc": (0.5, 0.05),
    "norm_auroc": (0.55, 0.05),
    "ridge_auroc": (0.5, 0.05),
}
AUROC = ["AUROC by difference of means", "4 of 8", "9.0", "layer 1 mid", "0.95", "0.5 ± 0.05", "0.005"]
RIDGE = ["AUROC by ridge regression", "0 of 8", "0.0", "layer 0 pre", "0.5", "0.5 ± 0.05", "0.3"]
PAIRS = ["share of pairs in the right order", "1 of 7", "6.0", "layer 3 mid", "0.983", "0.5 ± 0.08", "0.005"]
DISTANCE = ["distance of the two means", "1 of 8", "5.0", "layer 0 pre", "4.5", "2 ± 0.5", "0.005"]
WHERE = {
    AUROC[0]: "layers 1 mid, 2 mid to 3 mid",
    PAIRS[0]: "layer 3 mid",
    DISTANCE[0]: "layer 0 pre",
    "silhouette of the two sets": "layer 2 pre",
}
CLUSTERS = "largest value 0.124; near 0 the sets form no clusters"
SILHOUETTE = ["silhouette of the two sets", "1 of 8", "12.0", "layer 2 pre", "0.124", "0.004 ± 0.01", "0.005"]
COLUMNS = ["statistic", "depths above chance", "largest z", "depth", "value there", "permuted labels", "p"]
CAPTION = (
    "Statistics and their values under permuted labels, mean ± standard deviation, at the depth with the largest z; "
    "the silhouette lies between -1 and 1, and a value near 0 or below means that the sets form no clusters (Euclidean "
    "distance over all features)"
)
DEPTHS = (
    "Number of depths at which a statistic exceeds its values under permuted labels (family-wise p of at most 0.05, 64 "
    "and 63 prompts): "
)
SEPARATION = {
    "auroc": {"value": 0.9, "band_low": 0.8, "band_high": 0.95},
    "accuracy": {"value": 0.75},
    "n_used": [64, 63],
}
SIDE = "At layer 0 pre, 75.0 % of held-out prompts lie on their own set's side of the midpoint; "


def permuted(**changed):
    """Return the variables of the permutation tests; a depth passes if its z is above 4.5 or is 4 exactly."""
    nulls = {}
    for name, (mean, sd) in NULLS.items():
        z = Z[name][:, None]
        p = np.where(z > 4.5, 0.005, np.where(z == 4.0, 0.05, 0.3))
        nulls[name] = {"mean": mean, "sd": sd, "z": z, "p_family": np.where(np.isnan(z), np.nan, p)}
    return merged({"n_used": [64, 63], "tested_null": nulls}, changed)


def section_of(tmp_path, tests=None, moments=None, **changed):
    groups = {"curves": {}, "moments": moments or {}, "directions": {}, "separation": merged(SEPARATION, changed)}
    (section,) = separation.sections(cached_run(tmp_path, groups | ({"permutations": tests} if tests else {})))
    assert section.notes[4:] == ([CHANCE, separation._DEPENDENT] if tests else [])
    return section


def facts_of(tmp_path, tests=None, moments=None, **changed):
    return section_of(tmp_path, tests, moments, **changed).facts


def starting(facts, text):
    """Return the only sentence that starts with this text."""
    (fact,) = (fact for fact in facts if fact.startswith(text))
    return fact


def counted(*rows):
    """Return the sentence about the statistics in these rows of the table."""
    details = {
        name: [WHERE.get(name, "")] * (passed[0] != "0") + [CLUSTERS] * (name == SILHOUETTE[0])
        for name, passed, *_ in rows
    }
    texts = [f"{name} {passed}{in_brackets(*details[name])}" for name, passed, *_ in rows]
    return f"{DEPTHS}{'; '.join(texts)}."


def test_without_tests_the_band_decides_and_without_a_band_nothing_is_concluded(tmp_path):
    verdicts = {
        0.8: "separate better than chance",
        0.4: "do not separate better than chance",
        np.nan: "are too few to test",
    }
    for low, verdict in verdicts.items():
        section = section_of(tmp_path / str(low), auroc={"band_low": low})
        assert f"63 harmless prompts {verdict}." in section.finding


def test_a_sentence_counts_the_depths_of_all_tested_statistics_and_a_table_has_their_largest_z(tmp_path):
    section = section_of(tmp_path, permuted())
    assert starting(section.facts, "Number of depths") == (
        f"{DEPTHS}AUROC by difference of means 4 of 8 (layers 1 mid, 2 mid to 3 mid); AUROC by ridge regression 0 of "
        "8; share of pairs in the right order 1 of 7 (layer 3 mid); distance of the two means 1 of 8 (layer 0 pre); "
        "silhouette of the two sets 1 of 8 (layer 2 pre; "
        f"{CLUSTERS})."
    )
    assert section.tables == [Table(CAPTION, COLUMNS, [AUROC, RIDGE, PAIRS, DISTANCE, SILHOUETTE])]


def test_the_note_on_chance_says_what_is_permuted_and_tested():
    assert "in a paired contrast, labels are exchanged only inside a pair. " in CHANCE
    assert "z is a statistic minus its mean with permuted labels, divided by their standard deviation. " in CHANCE
    assert "Each statistic is tested by itself. " in CHANCE
    assert "tests are one-sided: they look for values above chance, unless the text says otherwise. " in CHANCE
    assert CHANCE.endswith("so with 200 random permutations the smallest possible p is 1/201 ≈ 0.005")


def test_a_statistic_without_a_test_is_left_out(tmp_path):
    """A contrast without pairs has no paired accuracy, and equal sets have no silhouette."""
    unknown = {"z": np.nan, "p_family": np.nan}
    section = section_of(tmp_path, permuted(tested_null={"paired_accuracy": unknown, "silhouette": unknown}))
    assert starting(section.facts, "Number of depths") == counted(AUROC, RIDGE, DISTANCE)
    assert [table.rows for table in section.tables] == [[AUROC, RIDGE, DISTANCE]]


def test_a_statistic_that_never_passes_has_its_largest_z(tmp_path):
    silhouette = ["silhouette of the two sets", "0 of 8", "12.0", "layer 2 pre", "0.124", "0.004 ± 0.01", "0.06"]
    section = section_of(tmp_path, permuted(tested_null={"silhouette": {"p_family": 0.06}}))
    assert starting(section.facts, "Number of depths") == counted(AUROC, RIDGE, PAIRS, DISTANCE, silhouette)
    assert [table.rows for table in section.tables] == [[AUROC, RIDGE, PAIRS, DISTANCE, silhouette]]


def test_the_largest_silhouette_can_lie_at_another_depth_than_the_largest_z(tmp_path):
    mean = np.full((2, 4), 0.004)[:, None]
    mean[1, 0, 3] = 0.3  # z is 1 there, and the standard deviation 0.01
    section = section_of(tmp_path, permuted(tested_null={"silhouette": {"mean": mean}}))
    assert starting(section.facts, "Number of depths").endswith(
        "silhouette of the two sets 1 of 8 (layer 2 pre; largest value 0.310; near 0 the sets form no clusters)."
    )
    assert [table.rows[-1] for table in section.tables] == [SILHOUETTE]


def test_controls_state_their_largest_auroc_beside_permuted_labels(tmp_path):
    values = np.array([[0.5, 0.6, 0.7, 0.8], [0.6, 0.9512, 0.9, 0.85]])[:, None]
    on_sphere = {"value": values, "band_low": values - 0.1, "band_high": 0.99}
    norm = {"value": 0.6, "band_low": 0.45, "band_high": 0.7}
    facts = facts_of(tmp_path, permuted(score_auroc={"on_sphere": on_sphere, "norm": norm}))
    assert starting(facts, "Scaled to the same norm") == (
        "Scaled to the same norm, activations separate the sets by difference of means better than chance at 4 of 8 "
        "depths. The largest AUROC is 0.951 [0.851, 0.990], at layer 1 mid (permuted labels give 0.50 ± 0.05 there, p "
        "= 0.005 over all depths)."
    )
    assert starting(facts, "By their length alone") == (
        "By their length alone, activations separate the sets better than chance at 0 of 8 depths. The largest AUROC "
        "(a value below 0.5 counts as 1 - AUROC) is 0.600 [0.450, 0.700], at layer 0 pre (permuted labels give 0.55 ± "
        "0.05 there, p = 0.3 over all depths)."
    )


def test_the_set_with_the_smaller_mean_length_is_named(tmp_path):
    """The norms of harmful are smaller at three of the four depths where lengths separate the sets."""
    p = np.array([[0.01, 0.01, 0.01, 0.2], [0.2, 0.2, 0.2, 0.01]])[:, None]
    harmful = np.array([[0.9, 0.9, 1.1, 0.5], [0.5, 0.5, 0.5, 0.9]])[:, None]
    norms = np.stack([harmful, np.ones_like(harmful)])
    lengths = {"value": 0.6, "band_low": 0.45, "band_high": 0.7}
    tests = permuted(score_auroc={"norm": lengths}, tested_null={"norm_auroc": {"p_family": p}})
    facts = facts_of(tmp_path, tests, {"norm_mean": norms})
    assert starting(facts, "By their length").endswith(" At 3 of these 4 depths, harmful has the smaller mean length.")


def test_controls_without_values_are_left_out(tmp_path):
    facts = facts_of(tmp_path, permuted(score_auroc=np.nan))
    assert not any(fact.startswith(("Scaled", "By their length")) for fact in facts)


def test_without_tests_the_interval_decides_whether_chance_can_explain_the_auroc(tmp_path):
    chance = "The interval of the largest AUROC contains 0.5, so chance can explain it."
    assert chance not in facts_of(tmp_path)
    section = section_of(tmp_path / "low", auroc={"band_low": 0.45})
    assert chance in section.facts
    assert not any("permuted labels" in fact for fact in section.facts)
    assert section.tables == []


LARGEST = "By difference of means, the largest AUROC of held-out prompts is "
SEARCHED = (
    "The search covers the {} depths at which the means of the two sets differ, without the output of the last block."
)


def at_depths(*values):
    """Return one number for each depth, 0 pre, 0 mid, 1 pre, …, as (contrast, site, position, layer)."""
    return np.array(values, dtype=float).reshape(4, 2).T[None, :, None]


@each(
    "located, expected",
    [
        ([0, 0, 0, 0, 1, 0, 0, 0], " By paired differences, all 7 other depths can be told from this one."),
        (
            [1, 0, 0, 1, 1, 1, 0, 0],
            " 3 of the 7 other depths cannot be told from this one (layers 0 pre, 1 mid to 2 mid).",
        ),
        ([1, 0, 1, 0, 1, 0, 1, 0], " 3 of the 7 other depths cannot be told from this one."),
        ([1] * 8, " It cannot be told from any of the 7 other depths."),
        ([np.nan] * 8, ""),
    ],
)
def test_the_depths_that_may_have_the_largest_auroc_are_counted(tmp_path, located, expected):
    auroc = at_depths(0.6, 0.6, 0.6, 0.6, 0.9, 0.6, 0.6, 0.6)
    band = {"value": auroc, "band_low": auroc - 0.1, "band_high": 0.95}
    section = section_of(tmp_path, permuted(location={"auroc": at_depths(*located)}), auroc=band)
    text = starting(section.facts, LARGEST)
    assert text.startswith(f"{LARGEST}0.900 [0.800, 0.950], at layer 2 pre (permuted labels give 0.50 ")
    assert text.endswith(f"over all depths).{expected}")
    assert expected in section.finding
    assert SEARCHED.format(8) in section.facts


def test_each_classifier_has_its_largest_auroc_and_its_depth(tmp_path):
    ridge = at_depths(0.5, 0.6, 0.7, 0.99, 0.7, 0.6, 0.5, 0.5)
    band = {"value": ridge, "band_low": ridge - 0.2, "band_high": 1.0}
    section = section_of(tmp_path, permuted(score_auroc={"ridge": band}, location={"ridge_auroc": ridge > 0.9}))
    text = (
        "By ridge regression, the largest AUROC of held-out prompts is 0.990 [0.790, 1.000], at layer 1 mid (permuted "
        "labels give 0.50 ± 0.05 there, p = 0.3 over all depths). By paired differences, all 7 other depths can be "
        "told from this one."
    )
    assert text in section.facts
    assert text in section.finding


def test_a_largest_value_below_chance_is_called_so(tmp_path):
    section = section_of(tmp_path, auroc={"value": 0.43, "band_low": 0.3, "band_high": 0.6})
    assert "(chance gives 0.5). Even this value lies below chance." in starting(section.facts, LARGEST)
    assert "do not separate better than chance" in section.finding
    assert "(chance gives 0.5). Even this value lies below chance." in section.finding


def test_the_largest_share_of_pairs_has_its_own_depth(tmp_path):
    shares = at_depths(0.5, 0.6, 0.7, 0.7, 0.95, 0.7, 0.6, 0.5)
    pairs = {"value": shares, "band_low": shares - 0.05, "band_high": 1.0}
    facts = facts_of(tmp_path, permuted(location={"paired_accuracy": shares >= 0.7}), paired_accuracy=pairs)
    assert starting(facts, "By difference of means, the largest share") == (
        "By difference of means, the largest share of held-out pairs in the right order is 95.0 [90.0, 100.0] %, at "
        "layer 2 pre (64 pairs; chance gives 50 %). 3 of the 7 other depths cannot be told from this one (layers 1 pre "
        "to 2 mid)."
    )


def test_depths_that_include_the_output_of_the_last_block_do_not_end_before_it(tmp_path):
    groups = {"curves": {}, "moments": {}, "directions": {}, "separation": SEPARATION}
    (section,) = separation.sections(cached_run(tmp_path, groups, sites=["resid_post"]))
    assert starting(section.facts, LARGEST) == f"{LARGEST}0.900 [0.800, 0.950], at layer 1 pre (chance gives 0.5)."
    assert "The search covers the 4 depths at which the means of the two sets differ." in section.facts


@pytest.mark.parametrize(("last", "of_depths"), [(0.7, 8), (np.nan, 7)])
def test_the_largest_auroc_says_if_its_depth_is_the_last_one(tmp_path, last, of_depths):
    auroc = np.array([[0.5, 0.6, 0.6, 0.8], [0.5, 0.6, 0.6, last]])[:, None]  # the last depth is layer 3 mid
    facts = facts_of(tmp_path, auroc={"value": auroc})
    assert SEARCHED.format(of_depths) in facts
    ending = ", the last measured depth" if np.isnan(last) else ""
    assert f", at layer 3 pre{ending} (chance gives 0.5)." in starting(facts, LARGEST)
    auroc[1, 0, 3] = 0.9
    deepest = starting(facts_of(tmp_path / "deepest", auroc={"value": auroc}), LARGEST)
    assert ", at layer 3 mid, the last measured depth (chance gives 0.5)." in deepest


def test_the_largest_auroc_stands_beside_that_of_permuted_labels(tmp_path):
    auroc = np.array([[0.6, 0.7, 0.9, 0.8], [0.5, 0.5, 0.5, 0.5]])[:, None]
    assert starting(facts_of(tmp_path, permuted(), auroc={"value": auroc}), LARGEST).endswith(
        ", at layer 2 pre (permuted labels give 0.50 ± 0.05 there, p = 0.3 over all depths)."
    )


def test_of_equal_aurocs_the_sentence_has_the_chance_of_the_depth_that_it_names(tmp_path):
    auroc = np.array([[0.5, 0.5, 0.5, 0.9], [0.5, 0.9, 0.5, 0.5]])[:, None]  # the first site's p is 0.05
    assert starting(facts_of(tmp_path, permuted(), auroc={"value": auroc}), LARGEST).endswith(
        ", at layer 1 mid (permuted labels give 0.50 ± 0.05 there, p = 0.005 over all depths)."
    )


INTERVAL = "the simultaneous AUROC interval by difference of means lies above 0.95"
REACH = " With 63 prompts in the smaller set, its lower end is at most 0.960."


@each(
    "passed, expected",
    [
        ([0, 0, 0, 1, 1, 1, 1, 1], f"From layer 1 mid on, {INTERVAL}.{REACH}"),
        ([1] * 8, f"From layer 0 pre on, {INTERVAL}.{REACH}"),
        ([0, 1, 1, 0, 0, 0, 1, 1], f"From layer 3 pre on, {INTERVAL}, and at 2 earlier depths.{REACH}"),
        (
            [0, 1, 1, 0, 0, 1, 0, 0],
            f"At 3 of 8 depths (layers 0 mid to 1 pre, 2 mid), but not from a depth on, {INTERVAL}.{REACH}",
        ),
        ([0, 0, 0, 0, 0, 0, 0, 1], f"From layer 3 mid on, {INTERVAL}.{REACH}"),
        ([0] * 8, f"At none of 8 depths, {INTERVAL}.{REACH}"),
    ],
)
def test_an_onset_is_stated_only_if_all_later_depths_pass(tmp_path, passed, expected):
    low = np.where(at_depths(*passed) > 0, BOUND, BOUND - 0.001)
    facts = facts_of(tmp_path, auroc={"value": 0.98, "band_low": low, "band_high": 0.995}, auroc_band_limit=0.96)
    assert [fact for fact in facts if "simultaneous AUROC interval" in fact] == [expected]


def test_a_bound_that_too_few_prompts_cannot_reach_is_called_so(tmp_path):
    facts = facts_of(tmp_path, auroc={"value": 1.0, "band_low": 0.91, "band_high": 1.0}, auroc_band_limit=0.91)
    assert [fact for fact in facts if str(BOUND) in fact] == [
        "With 63 prompts in the smaller set, no simultaneous AUROC interval can lie above 0.95: its lower end is at "
        "most 0.910."
    ]


@each(
    "n_positive, n_negative, chance",
    [
        (64, 64, "chance gives 50 %"),
        (64, 63, "the larger set for every prompt would give 50.4 %"),
        (20, 80, "the larger set for every prompt would give 80.0 %"),
    ],
)
def test_the_accuracy_stands_beside_that_of_chance_or_of_the_larger_set(tmp_path, n_positive, n_negative, chance):
    facts = facts_of(tmp_path, n_used=[n_positive, n_negative])
    assert f"{SIDE}{chance}." in facts


def cosines(*neighbours):
    """Return cosines between layers, (contrast, site, position, layer, layer_other), from those of neighbours."""
    matrix = np.zeros((1, 2, 1, 4, 4))
    matrix[..., [0, 1, 2], [1, 2, 3]] = np.array(neighbours)[None, :, None]
    return matrix


COSINES = "Median cosine between the directions of neighbouring layers, which share most of the stream: "
ABOVE = "of 3 pairs of layers above Bonferroni's limit, z = 2.1)"


def cosine_fact(tmp_path, own, tests):
    """Return the sentence about the cosines between neighbouring layers' directions."""
    groups = {"curves": {}, "directions": {"direction_cosine": own, "reliability": 0.9}, "permutations": tests}
    (section,) = directions.sections(cached_run(tmp_path, groups))
    return starting(section.facts, "Median cosine")


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (
            [0.1, 0.5, 0.2],
            f"; resid_mid 0.20 (permuted labels give 0.25; median difference 0.05; 1 {ABOVE}",
        ),
        ([np.nan] * 3, ""),
    ],
)
def test_cosines_between_neighbouring_layers_of_all_sites_stand_in_one_sentence(tmp_path, second, expected):
    own = cosines([0.9, 0.98, 0.99], second)
    chance = {"mean": cosines([0.6, 0.7, 0.8], [0.25, 0.35, 0.15]), "sd": cosines([0.05] * 3, [0.05] * 3)}
    assert cosine_fact(tmp_path, own, permuted(direction_cosine_null=chance)) == (
        f"{COSINES}resid_pre 0.98 (permuted labels give 0.70; median difference 0.28; 3 {ABOVE}{expected}."
    )


def test_cosines_without_a_spread_of_permuted_labels_have_no_limit(tmp_path):
    own, permuted_mean = cosines([0.9, 0.98, 0.99], [0.1, 0.5, 0.2]), cosines([0.6, 0.7, 0.8], [0.25, 0.35, 0.15])
    tests = permuted(direction_cosine_null={"mean": permuted_mean})
    assert cosine_fact(tmp_path, own, tests) == (
        f"{COSINES}resid_pre 0.98 (permuted labels give 0.70; median difference 0.28); "
        "resid_mid 0.20 (permuted labels give 0.25; median difference 0.05)."
    )


def test_the_fisher_ratio_has_its_interval(tmp_path):
    fisher = {"value": 12.34, "low": 10.0, "high": 14.5}
    assert starting(facts_of(tmp_path, fisher_ratio=fisher), "The Fisher ratio") == (
        "The Fisher ratio there is 12.3 [10, 14.5] (squared distance of the means over the sum of both sets' total "
        "variances; equal means give 0; the interval is for this depth alone)."
    )


def test_a_fisher_ratio_of_sets_without_a_variance_is_missing(tmp_path):
    """At a token that all prompts of a set share, the first input separates the sets and does not vary."""
    fisher = np.full((1, 2, 1, 4), 12.34)
    auroc = np.full((1, 2, 1, 4), 0.9)
    fisher[0, 0, 0, 0], auroc[0, 0, 0, 0] = np.nan, 1.0
    assert starting(facts_of(tmp_path, fisher_ratio={"value": fisher}, auroc={"value": auroc}), "The Fisher ratio") == (
        "The Fisher ratio there is missing: all prompts of a set have the same activations."
    )
    auroc[0, 0, 0, :2] = 0.95, 1.0  # another depth is the best one
    elsewhere = facts_of(tmp_path / "elsewhere", fisher_ratio={"value": fisher}, auroc={"value": auroc})
    assert starting(elsewhere, "The Fisher ratio").startswith("The Fisher ratio there is 12.3 (")


def test_a_missing_fisher_ratio_has_its_reason(tmp_path):
    assert starting(facts_of(tmp_path), "The Fisher ratio") == (
        "The Fisher ratio is missing: each of the five folds needs at least one prompt of each set."
    )


def con(paired):
    return {"refusal": {"positive": "bad", "negative": "good", "paired": paired}}


def constant(arrays):
    return {site: np.broadcast_to(values[:1], values.shape).copy() for site, values in arrays.items()}


FAR = draw(12, seed=1, shift=1.4)
TOO_FEW = "With {} prompts in the smaller set, no simultaneous AUROC interval"
EQUAL = "No direction can be fitted: the two sets' means are equal."
CONSTANT = "All prompts of a set have the same activations, so each set"
ONE = "No direction can be fitted: a set has only one prompt"


@pytest.mark.parametrize(
    ("bad", "good", "expected", "paired"),
    [
        (draw(12), FAR, TOO_FEW.format(12), False),
        (draw(12), draw(12), EQUAL, True),
        (constant(draw(12)), constant(FAR), CONSTANT, False),
        (draw(2), draw(2, seed=1), TOO_FEW.format(2), True),
        (draw(1), draw(1, seed=1), ONE, False),
        *at_night(
            [
                (draw(12), FAR, TOO_FEW.format(12), True),
                (draw(12), draw(12), EQUAL, False),
                (constant(draw(12)), constant(FAR), CONSTANT, True),
                (draw(2), draw(2, seed=1), TOO_FEW.format(2), False),
                (draw(1), draw(1, seed=1), ONE, True),
            ]
        ),
    ],
)
def test_bad_input_says_what_cannot_be_concluded(tmp_path, bad, good, expected, paired):
    """Computed and not written by hand; at one layer, so that every figure and every sentence has few depths."""
    arrays = {
        name: {site: values[:, :, :1] for site, values in of_set.items()}
        for name, of_set in (("bad", bad), ("good", good))
    }
    run = store_run(tmp_path, arrays, contrasts=con(paired))
    analyse(run, con(paired), None, silent, requested={"separation", "permutations"})
    run = replace(run, cache=Cache(2**26))
    (section,) = separation.sections(run)
    assert starting(section.facts, expected)
    texts = [section.finding, *section.facts, *(fact for one in curves.sections(run) for fact in one.facts)]
    assert not any("nan" in text.split() or "[nan" in text for text in texts)
    assert [figure.draw() for figure in section.figures]
