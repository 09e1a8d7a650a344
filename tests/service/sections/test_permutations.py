"""Sentences about the separation of two sets, and sentences and a table of its tests with permuted labels."""

from dataclasses import replace

import numpy as np
import pytest
from support.analysed_runs import draw, silent
from support.analysing import analyse
from support.each import each
from support.finished_runs import cached_run, merged
from support.nightly import at_night
from support.sentences import assert_says
from support.stored import store_run

from theodolite.groups.curves import sections as curves
from theodolite.groups.directions import sections as directions
from theodolite.groups.separation import sections as separation
from theodolite.query.compare import BOUND
from theodolite.sections.parts import CHANCE
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
SILHOUETTE = ["silhouette of the two sets", "1 of 8", "12.0", "layer 2 pre", "0.124", "0.004 ± 0.01", "0.005"]
SEPARATION = {
    "auroc": {"value": 0.9, "band_low": 0.8, "band_high": 0.95},
    "accuracy": {"value": 0.75},
    "n_used": [64, 63],
}


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


def about(facts, text):
    """Return the only sentence with this text."""
    (fact,) = (fact for fact in facts if text in fact)
    return fact


def counted(*rows):
    """Return what the sentence about the statistics in these rows of the table says."""
    return " … ".join(f"{name} … {passed}" for name, passed, *_ in rows)


def test_without_tests_the_band_decides_and_without_a_band_nothing_is_concluded(tmp_path):
    verdicts = {
        0.8: "separate better than chance",
        0.4: "are not shown to separate better than chance",
        np.nan: "are too few to test",
    }
    for low, verdict in verdicts.items():
        section = section_of(tmp_path / str(low), auroc={"band_low": low})
        assert f"prompts {verdict}" in section.finding


def test_a_sentence_counts_the_depths_of_all_tested_statistics_and_a_table_has_their_largest_z(tmp_path):
    section = section_of(tmp_path, permuted())
    assert_says(
        section.facts,
        f"64 … 63 … {counted(AUROC, RIDGE, PAIRS, DISTANCE, SILHOUETTE)}",
        "4 of 8 (layers 1 mid, 2 mid to 3 mid) … 1 of 7 (layer 3 mid) … (layer 0 pre) … (layer 2 pre … 0.124",
    )
    (table,) = section.tables
    assert table.rows == [AUROC, RIDGE, PAIRS, DISTANCE, SILHOUETTE]
    assert len(table.columns) == len(AUROC)


def test_the_note_on_chance_says_what_is_permuted_and_tested():
    assert_says(CHANCE, "only inside a pair … one-sided … 200 random permutations … 1/201 ≈ 0.005")


def test_a_statistic_without_a_test_is_left_out(tmp_path):
    """A contrast without pairs has no paired accuracy, and equal sets have no silhouette."""
    unknown = {"z": np.nan, "p_family": np.nan}
    section = section_of(tmp_path, permuted(tested_null={"paired_accuracy": unknown, "silhouette": unknown}))
    assert_says(section.facts, counted(AUROC, RIDGE, DISTANCE))
    assert not any(name in " ".join(section.facts) for name in (PAIRS[0], SILHOUETTE[0]))
    assert [table.rows for table in section.tables] == [[AUROC, RIDGE, DISTANCE]]


def test_a_statistic_that_never_passes_has_its_largest_z(tmp_path):
    silhouette = ["silhouette of the two sets", "0 of 8", "12.0", "layer 2 pre", "0.124", "0.004 ± 0.01", "0.06"]
    section = section_of(tmp_path, permuted(tested_null={"silhouette": {"p_family": 0.06}}))
    assert_says(section.facts, counted(AUROC, RIDGE, PAIRS, DISTANCE, silhouette))
    assert "layer 2 pre" not in about(section.facts, silhouette[0])
    assert [table.rows for table in section.tables] == [[AUROC, RIDGE, PAIRS, DISTANCE, silhouette]]


def test_the_largest_silhouette_can_lie_at_another_depth_than_the_largest_z(tmp_path):
    mean = np.full((2, 4), 0.004)[:, None]
    mean[1, 0, 3] = 0.3  # z is 1 there, and the standard deviation 0.01
    section = section_of(tmp_path, permuted(tested_null={"silhouette": {"mean": mean}}))
    assert_says(section.facts, "silhouette of the two sets … 1 of 8 … layer 2 pre … 0.310")
    assert [table.rows[-1] for table in section.tables] == [SILHOUETTE]


def test_controls_state_their_largest_auroc_beside_permuted_labels(tmp_path):
    values = np.array([[0.5, 0.6, 0.7, 0.8], [0.6, 0.9512, 0.9, 0.85]])[:, None]
    on_sphere = {"value": values, "band_low": values - 0.1, "band_high": 0.99}
    norm = {"value": 0.6, "band_low": 0.45, "band_high": 0.7}
    facts = facts_of(tmp_path, permuted(score_auroc={"on_sphere": on_sphere, "norm": norm}))
    null, length = "0.50 ± 0.05 … p = 0.005", "0.55 ± 0.05 … p = 0.3"
    assert_says(
        facts,
        f"same norm … difference of means … 4 of 8 … 0.951 [0.851, 0.990] … layer 1 mid … permuted labels … {null}",
        f"length alone … 0 of 8 … 0.600 [0.450, 0.700] … layer 0 pre … permuted labels … {length}",
    )


def test_the_set_with_the_smaller_mean_length_is_named(tmp_path):
    """The norms of harmful are smaller at three of the four depths where lengths separate the sets."""
    p = np.array([[0.01, 0.01, 0.01, 0.2], [0.2, 0.2, 0.2, 0.01]])[:, None]
    harmful = np.array([[0.9, 0.9, 1.1, 0.5], [0.5, 0.5, 0.5, 0.9]])[:, None]
    norms = np.stack([harmful, np.ones_like(harmful)])
    lengths = {"value": 0.6, "band_low": 0.45, "band_high": 0.7}
    tests = permuted(score_auroc={"norm": lengths}, tested_null={"norm_auroc": {"p_family": p}})
    facts = facts_of(tmp_path, tests, {"norm_mean": norms})
    assert_says(facts, "By their length … 3 of these 4 depths … harmful … smaller mean length")


def test_controls_without_values_are_left_out(tmp_path):
    facts = facts_of(tmp_path, permuted(score_auroc=np.nan))
    assert not any("same norm" in fact or "length" in fact for fact in facts)


def test_without_tests_the_interval_decides_whether_chance_can_explain_the_auroc(tmp_path):
    chance = "chance can explain it"
    assert chance not in " ".join(facts_of(tmp_path))
    section = section_of(tmp_path / "low", auroc={"band_low": 0.45})
    assert chance in " ".join(section.facts)
    assert not any("permuted labels" in fact for fact in section.facts)
    assert section.tables == []


def at_depths(*values):
    """Return one number for each depth, 0 pre, 0 mid, 1 pre, …, as (contrast, site, position, layer)."""
    return np.array(values, dtype=float).reshape(4, 2).T[None, :, None]


@each(
    "located, expected",
    [
        ([0, 0, 0, 0, 1, 0, 0, 0], "none … 7 other depths"),
        ([1, 0, 0, 1, 1, 1, 0, 0], "3 … 7 other depths could … (layers 0 pre, 1 mid, 2 mid)"),
        ([1, 0, 1, 0, 1, 0, 1, 0], "3 … 7 other depths could … (layers 0 pre, 1 pre, 3 pre)"),
        ([1] * 8, "any … 7 other depths could"),
        ([np.nan] * 8, ""),
    ],
)
def test_the_depths_that_may_have_the_largest_auroc_are_counted(tmp_path, located, expected):
    auroc = at_depths(0.6, 0.6, 0.6, 0.6, 0.9, 0.6, 0.6, 0.6)
    band = {"value": auroc, "band_low": auroc - 0.1, "band_high": 0.95}
    section = section_of(tmp_path, permuted(location={"auroc": at_depths(*located)}), auroc=band)
    text = section.facts[0]
    assert_says(text, f"0.900 [0.800, 0.950] … layer 2 pre … permuted labels … 0.50 … {expected}")
    assert_says(section.finding, expected)
    assert ("other prompts" in text) == bool(expected)
    assert ("layers" in text) == ("layers" in expected)
    assert_says(section.facts, "8 depths … without … last block")


def test_each_classifier_has_its_largest_auroc_and_its_depth(tmp_path):
    ridge = at_depths(0.5, 0.6, 0.7, 0.99, 0.7, 0.6, 0.5, 0.5)
    band = {"value": ridge, "band_low": ridge - 0.2, "band_high": 1.0}
    section = section_of(tmp_path, permuted(score_auroc={"ridge": band}, location={"ridge_auroc": ridge > 0.9}))
    text = "ridge regression … 0.990 [0.790, 1.000] … layer 1 mid … 0.50 ± 0.05 … p = 0.3 … none … 7 other depths"
    assert_says(section.facts, text)
    assert_says(section.finding, text)


def test_a_largest_value_below_chance_is_called_so(tmp_path):
    section = section_of(tmp_path, auroc={"value": 0.43, "band_low": 0.3, "band_high": 0.6})
    assert_says(section.facts[0], "largest AUROC … (chance gives 0.5) … lies below chance")
    assert_says(section.finding, "not shown to separate better than chance … (chance gives 0.5) … lies below chance")


def test_the_largest_share_of_pairs_has_its_own_depth(tmp_path):
    shares = at_depths(0.5, 0.6, 0.7, 0.7, 0.95, 0.7, 0.6, 0.5)
    pairs = {"value": shares, "band_low": shares - 0.05, "band_high": 1.0}
    facts = facts_of(tmp_path, permuted(location={"paired_accuracy": shares >= 0.7}), paired_accuracy=pairs)
    share = "share of held-out pairs … 95.0 [90.0, 100.0] % … layer 2 pre … 64 pairs … 50 %"
    assert_says(
        facts, f"difference of means … {share} … 3 of the 7 other depths could … (layers 1 pre to 1 mid, 2 mid)"
    )


def test_depths_that_include_the_output_of_the_last_block_do_not_end_before_it(tmp_path):
    groups = {"curves": {}, "moments": {}, "directions": {}, "separation": SEPARATION}
    (section,) = separation.sections(cached_run(tmp_path, groups, sites=["resid_post"]))
    assert_says(section.facts[0], "difference of means … largest AUROC … 0.900 [0.800, 0.950] … layer 1 pre … 0.5")
    assert "last block" not in about(section.facts, "search covers")
    assert_says(section.facts, "search covers … 4 depths")


@pytest.mark.parametrize(("last", "of_depths"), [(0.7, 8), (np.nan, 7)])
def test_the_largest_auroc_says_if_its_depth_is_the_last_one(tmp_path, last, of_depths):
    auroc = np.array([[0.5, 0.6, 0.6, 0.8], [0.5, 0.6, 0.6, last]])[:, None]  # the last depth is layer 3 mid
    facts = facts_of(tmp_path, auroc={"value": auroc})
    assert_says(facts, f"{of_depths} depths")
    assert_says(facts[0], "largest AUROC … layer 3 pre")
    assert ("last measured depth" in facts[0]) == np.isnan(last)
    auroc[1, 0, 3] = 0.9
    deepest = facts_of(tmp_path / "deepest", auroc={"value": auroc})
    assert_says(deepest[0], "largest AUROC … layer 3 mid … last measured depth")


def test_the_largest_auroc_stands_beside_that_of_permuted_labels(tmp_path):
    auroc = np.array([[0.6, 0.7, 0.9, 0.8], [0.5, 0.5, 0.5, 0.5]])[:, None]
    facts = facts_of(tmp_path, permuted(), auroc={"value": auroc})
    assert_says(facts[0], "largest AUROC … layer 2 pre … permuted labels … 0.50 ± 0.05 … p = 0.3")


def test_of_equal_aurocs_the_sentence_has_the_chance_of_the_depth_that_it_names(tmp_path):
    auroc = np.array([[0.5, 0.5, 0.5, 0.9], [0.5, 0.9, 0.5, 0.5]])[:, None]  # the first site's p is 0.05
    facts = facts_of(tmp_path, permuted(), auroc={"value": auroc})
    assert_says(facts[0], "largest AUROC … layer 1 mid … permuted labels … 0.50 ± 0.05 … p = 0.005")


@each(
    "passed, expected",
    [
        ([0, 0, 0, 1, 1, 1, 1, 1], "From layer 1 mid on"),
        ([1] * 8, "From layer 0 pre on"),
        ([0, 1, 1, 0, 0, 0, 1, 1], "From layer 3 pre on … 2 earlier depths"),
        ([0, 1, 1, 0, 0, 1, 0, 0], "3 of 8 depths (layers 0 mid to 1 pre, 2 mid), but not from a depth on"),
        ([0, 0, 0, 0, 0, 0, 0, 1], "From layer 3 mid on"),
        ([0] * 8, "none of 8 depths"),
    ],
)
def test_an_onset_is_stated_only_if_all_later_depths_pass(tmp_path, passed, expected):
    low = np.where(at_depths(*passed) > 0, BOUND, BOUND - 0.001)
    facts = facts_of(tmp_path, auroc={"value": 0.98, "band_low": low, "band_high": 0.995}, auroc_band_limit=0.96)
    text = about(facts, "simultaneous AUROC interval")
    assert_says(text, f"{expected} … 63 prompts … 0.960", "above 0.95")
    assert all((word in text) == (word in expected) for word in ("From", "earlier", "but not"))


def test_a_bound_that_too_few_prompts_cannot_reach_is_called_so(tmp_path):
    facts = facts_of(tmp_path, auroc={"value": 1.0, "band_low": 0.91, "band_high": 1.0}, auroc_band_limit=0.91)
    assert_says(about(facts, str(BOUND)), "63 prompts … no simultaneous AUROC interval … above 0.95 … 0.910")


@each(
    "n_positive, n_negative, chance",
    [
        (64, 64, "chance gives 50 %"),
        (64, 63, "larger set … 50.4 %"),
        (20, 80, "larger set … 80.0 %"),
    ],
)
def test_the_accuracy_stands_beside_that_of_chance_or_of_the_larger_set(tmp_path, n_positive, n_negative, chance):
    facts = facts_of(tmp_path, n_used=[n_positive, n_negative])
    assert_says(facts, f"layer 0 pre, 75.0 % … {chance}")


def cosines(*neighbours):
    """Return cosines between layers, (contrast, site, position, layer, layer_other), from those of neighbours."""
    matrix = np.zeros((1, 2, 1, 4, 4))
    matrix[..., [0, 1, 2], [1, 2, 3]] = np.array(neighbours)[None, :, None]
    return matrix


PRE = "resid_pre 0.98 … permuted labels give 0.70 … difference 0.28"
MID = "resid_mid 0.20 … permuted labels give 0.25 … difference 0.05"
ABOVE = "of 3 pairs of layers above … z = 2.1"


def cosine_fact(tmp_path, own, tests):
    """Return the sentence about the cosines between neighbouring layers' directions."""
    groups = {"curves": {}, "directions": {"direction_cosine": own, "reliability": 0.9}, "permutations": tests}
    (section,) = directions.sections(cached_run(tmp_path, groups))
    return about(section.facts, "neighbouring layers")


@pytest.mark.parametrize(("second", "mid"), [([0.1, 0.5, 0.2], f" … {MID} … 1 {ABOVE}"), ([np.nan] * 3, "")])
def test_cosines_between_neighbouring_layers_of_all_sites_stand_in_one_sentence(tmp_path, second, mid):
    own = cosines([0.9, 0.98, 0.99], second)
    chance = {"mean": cosines([0.6, 0.7, 0.8], [0.25, 0.35, 0.15]), "sd": cosines([0.05] * 3, [0.05] * 3)}
    text = cosine_fact(tmp_path, own, permuted(direction_cosine_null=chance))
    assert_says(text, f"{PRE} … 3 {ABOVE}{mid}")
    assert ("resid_mid" in text) == bool(mid)


def test_cosines_without_a_spread_of_permuted_labels_have_no_limit(tmp_path):
    own, permuted_mean = cosines([0.9, 0.98, 0.99], [0.1, 0.5, 0.2]), cosines([0.6, 0.7, 0.8], [0.25, 0.35, 0.15])
    tests = permuted(direction_cosine_null={"mean": permuted_mean})
    text = cosine_fact(tmp_path, own, tests)
    assert_says(text, f"{PRE} … {MID}")
    assert "z = " not in text


def test_the_fisher_ratio_has_its_interval(tmp_path):
    fisher = {"value": 12.34, "low": 10.0, "high": 14.5}
    assert_says(facts_of(tmp_path, fisher_ratio=fisher), "Fisher ratio … 12.3 [10, 14.5] … equal means give 0")


def test_a_fisher_ratio_of_sets_without_a_variance_is_missing(tmp_path):
    """At a token that all prompts of a set share, the first input separates the sets and does not vary."""
    fisher = np.full((1, 2, 1, 4), 12.34)
    auroc = np.full((1, 2, 1, 4), 0.9)
    fisher[0, 0, 0, 0], auroc[0, 0, 0, 0] = np.nan, 1.0
    facts = facts_of(tmp_path, fisher_ratio={"value": fisher}, auroc={"value": auroc})
    assert_says(facts, "Fisher ratio … missing … same activations")
    auroc[0, 0, 0, :2] = 0.95, 1.0  # another depth is the best one
    elsewhere = facts_of(tmp_path / "elsewhere", fisher_ratio={"value": fisher}, auroc={"value": auroc})
    assert_says(elsewhere, "Fisher ratio … 12.3")


def test_a_missing_fisher_ratio_has_its_reason(tmp_path):
    assert_says(facts_of(tmp_path), "Fisher ratio … missing … at least one prompt of each set")


def con(paired):
    return {"refusal": {"positive": "bad", "negative": "good", "paired": paired}}


def constant(arrays):
    return {site: np.broadcast_to(values[:1], values.shape).copy() for site, values in arrays.items()}


FAR = draw(12, seed=1, shift=1.4)
TOO_FEW = "{} prompts … no simultaneous AUROC interval"
EQUAL = "means are equal"
CONSTANT = "same activations"
ONE = "only one prompt"


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
    assert_says(section.facts, expected)
    texts = [section.finding, *section.facts, *(fact for one in curves.sections(run) for fact in one.facts)]
    assert not any("nan" in text.split() or "[nan" in text for text in texts)
    assert [figure.draw() for figure in section.figures]
