"""Sentences and figures of contributions, and why they are missing."""

import numpy as np
import pytest
from support.finished_runs import cached_run
from support.sentences import assert_says

from theodolite.groups.contributions import sections as contributions
from theodolite.query.heads import read_head

HEADS = np.array([[0.1, 0.0], [0.05, -0.02], [0.0, 0.0], [0.3, 0.07]])  # (layer, head)
MLPS = np.array([0.0, 0.1, 0.2, 0.2])
Z = np.array([[1.0, 0.0], [9.0, -3.0], [0.0, 0.0], [2.0, 4.0]])
VALUES = {
    "n_used": [20, 21],
    "head_share": HEADS,
    "head_share_null": {"mean": HEADS / 2, "z": Z, "p_family": np.where(Z > 3, 0.01, 0.4)},
    "head_standardised": Z / 10,
    "head_standardised_null": {"mean": 0.2, "p_family": np.where(Z > 3, 0.05, 0.06)},
    "head_difference": HEADS,
    "mlp_share": MLPS,
    "mlp_share_null": {"mean": 0.15, "z": np.array([0.0, 1.0, 2.5, 0.5]), "p_family": 0.2},
    "embedding_share": 0.0,
    "embedding_share_null": {"mean": 0.02},
    "total": {"head": 0.5, "mlp": 0.5},
    "total_null": {
        "mean": np.array([0.25, 0.6]),
        "sd": np.array([0.04, 0.05]),
        "z": np.array([6.25, -2.0]),
        "p": np.array([1 / 201, 0.06]),
    },
    "final_difference": 12.5,
    "decomposition_error": 3e-7,
}


@pytest.fixture
def section_of(tmp_path):
    def made(values, reliability=0.9):
        groups = {"curves": {}, "contributions": values, "directions": {"reliability": reliability}}
        (section,) = contributions.sections(cached_run(tmp_path, groups))
        return section

    return made


def test_sentences_state_shares_beside_those_with_permuted_labels(section_of):
    section = section_of(VALUES)
    assert_says(section.title, "“refusal” … position -1 … 20 harmful and 21 harmless prompts")
    heads = "heads 50.0 % … permuted labels … 25.0 ± 4.0 %, z = 6.2, p = 0.005"
    mlps = "MLPs 50.0 % … permuted labels … 60.0 ± 5.0 %, z = -2.0, p = 0.06"
    assert_says(
        section.facts,
        f"12.5 … {heads} … {mlps} … first block 0.0 % … 2.0 % … two-sided",
        "single part … head L3H0, 30.0 % … 15.0 % … MLP layer 2, 20.0 % … 15.0 %",
        "heads 2 of 8 … z 9.0, p = 0.01, of L1H0: 5.0 % … 2.5 %",
        "MLPs 0 of 4 … z 2.5, p = 0.2, of layer 2: 20.0 % … 15.0 % … not whether a part separates",
        "L1H0: by 0.90 pooled … permuted labels … 0.20 … 2 of 8 heads … positive … 2 of them, and negative in 0",
        "large standardised difference … share near 0 … weights",
        "sum over heads and biases … 3.0e-07",
    )


def test_the_finding_has_the_shares_of_all_parts_and_the_number_above_chance(section_of):
    assert_says(
        section_of(VALUES).finding,
        "heads … 50.0 % … 25.0 ± 4.0 %, z = 6.2, p = 0.005 … all MLPs 50.0 % … 60.0 ± 5.0 %, z = -2.0, p = 0.06",
        "above chance for 2 of 8 heads and 0 of 4 MLPs … not whether a part separates",
    )


def test_mlps_that_are_not_measured_are_not_counted_among_all(section_of):
    some = np.array([0.1, np.nan, 0.2, np.nan])
    section = section_of(
        VALUES | {"mlp_share": some, "total": {"head": 0.5, "mlp": 0.3}, "decomposition_error": np.nan}
    )
    assert_says(section.finding, "2 measured MLPs 30.0 %")
    assert not any("sum over heads and biases" in fact for fact in section.facts)


def test_no_comparison_has_only_zeros(section_of):
    tiny = {
        "head_share": HEADS * 1e-4,
        "head_share_null": VALUES["head_share_null"] | {"mean": HEADS * 3e-5},
        "embedding_share_null": {"mean": 1e-9},
    }
    facts = section_of(VALUES | tiny).facts
    assert "input of the first block" not in facts[0]
    assert_says(facts[1], "L3H0, 0.003 % … permuted labels give 0.0009 %")
    assert_says(facts[2], "L1H0: 0.0005 % … permuted labels give 0.00015 %")
    assert not any("0.0 % (permuted labels give 0.0 %)" in fact for fact in facts)


def test_a_negative_standardised_difference_keeps_its_sign(section_of):
    section = section_of(VALUES | {"head_standardised": np.array([[0.1, 0.0], [0.0, -2.0], [0.0, 0.0], [0.5, 0.0]])})
    assert_says(section.facts, "L1H1: by -2.00 pooled")


UNRELIABLE = np.array([[0.1, 0.9, 0.9, 0.9], [0.9, 0.49, 0.5, 0.9]])[:, None]  # at resid_mid: layer 1
OUT = "no stated difference"


def test_standardised_differences_along_unreliable_directions_are_left_out(section_of):
    section = section_of(VALUES, UNRELIABLE)
    assert_says(section.facts[3], f"L3H1: by 0.40 pooled … in 1 of them, and negative in 0 … 2 heads have {OUT}")
    # The shares are those along the direction after the last block.
    assert section.facts[:3] == section_of(VALUES).facts[:3]
    veils = [len(one.draw().data) for one in section.maps]
    assert veils == [1, 1, 2]


def test_standardised_differences_without_tests_have_the_number_of_heads_that_are_left_out(section_of):
    values = VALUES | {"head_standardised_null": {"mean": 0.2}}
    fitted = "0.90 pooled standard deviations … same prompts"
    fact = section_of(values).facts[3]
    assert_says(fact, fitted)
    assert OUT not in fact
    one = np.where((Z == 0) & (np.arange(8).reshape(4, 2) == 1), np.nan, Z / 10)  # L0H1
    assert_says(section_of(values | {"head_standardised": one}).facts[3], f"{fitted} … 1 head has {OUT}")


def test_without_a_reliable_direction_no_standardised_difference_is_stated(section_of):
    assert not any("pooled" in fact for fact in section_of(VALUES, 0.2).facts)


def test_the_figure_adds_the_shares_up(section_of):
    section = section_of(VALUES | {"embedding_share": 0.25})
    (figure,) = section.figures
    drawn = {trace.name: np.array(trace.y, dtype=float) for trace in figure.draw().data}
    np.testing.assert_allclose(drawn["attention"], HEADS.sum(axis=1))
    np.testing.assert_allclose(drawn["MLP, permuted labels"], 0.15)
    np.testing.assert_allclose(drawn["sum up to this layer"], 0.25 + np.cumsum(HEADS.sum(axis=1) + MLPS))
    assert [one.name for one in section.maps] == [
        "contributions.refusal.share",
        "contributions.refusal.z",
        "contributions.refusal.standardised",
    ]
    assert all(one.draw().data for one in section.maps)


@pytest.mark.parametrize(
    ("known", "reason"),
    [({}, "post-norm"), ({"head_difference": 1.0}, "all layers")],
)
def test_missing_contributions_have_their_reason(section_of, known, reason):
    section = section_of({"n_used": 5, **known})
    (fact,) = section.facts
    assert reason in fact
    assert section.figures == []


def test_a_contrast_without_prompts_at_the_position_has_no_section(tmp_path):
    run = cached_run(tmp_path, {"curves": {}, "contributions": {"n_used": [0, 3]}})
    assert contributions.sections(run) == []


def test_the_card_of_a_head_says_what_it_writes(tmp_path):
    run = cached_run(tmp_path, {"heads": {"singular_values": 1.0}, "contributions": VALUES})
    assert read_head(run, 3, 0, "ov").written == {"refusal": {"share": 0.3, "z": 2.0, "p_family": 0.4}}
    assert read_head(cached_run(tmp_path / "other", {"heads": {"singular_values": 1.0}}), 3, 0).written == {}
