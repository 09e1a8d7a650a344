"""Sentences and figures of contributions, and why they are missing."""

import numpy as np
import pytest
from support.finished_runs import cached_run

from theodolite.groups.contributions import sections as contributions

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
    assert section.title == "Contributions to the contrast “refusal” at position -1: 20 harmful and 21 harmless prompts"
    assert section.facts == [
        "Shares of the distance of the means after the last block (12.5): heads 50.0 % (permuted labels give 25.0 ± "
        "4.0 %, z = 6.2, p = 0.005); MLPs 50.0 % (permuted labels give 60.0 ± 5.0 %, z = -2.0, p = 0.06); input of the "
        "first block 0.0 % (permuted labels give 2.0 %). The p of a total is two-sided.",
        "Largest share of a single part: head L3H0, 30.0 % (permuted labels give 15.0 %); MLP layer 2, 20.0 % "
        "(permuted labels give 15.0 %).",
        "Parts whose share exceeds their share with permuted labels (family-wise p of at most 0.05 over "
        "all heads, MLPs and the input of the first block): heads 2 of 8 (largest z 9.0, p = 0.01, of L1H0: 5.0 %, "
        "where permuted labels give 2.5 %); MLPs 0 of 4 (largest z 2.5, p = 0.2, of layer 2: 20.0 %, where permuted "
        "labels give 15.0 %). This tests how the distance is divided among the parts, not whether a part separates "
        "the sets.",
        "Each head's output is also projected onto the difference of the two sets' means in the stream directly "
        "after the attention of the head's layer. The two sets differ the most in this projection for L1H0: by 0.90 "
        "pooled standard deviations. With permuted labels, the mean absolute difference of this head is 0.20; for "
        "each permutation, the direction is computed again from the permuted labels. The direction and the "
        "projections come from the same prompts; this alone can make differences larger, also with permuted labels. "
        "In 2 of 8 heads the absolute difference is larger than with permuted labels. It is positive (prompts of the "
        "positive set lie farther along the direction) in 2 of them, and negative in 0. The family-wise p, at most "
        "0.05, accounts for the search over all 8 heads. If two sets differ at all, many heads can be expected to "
        "differ: they read and write the same stream.",
        "A head can have a large standardised difference, a share near 0 and weights that are not aligned with the "
        "direction (section Heads): the difference compares what the head writes for the prompts of both sets with its "
        "spread, the share compares it with the distance of the means, and the alignment compares the head's weights "
        "alone with the direction.",
        "The sum over heads and biases differs from attention's output by at most 3.0e-07 of the norm of the stream, "
        "over all prompts and layers.",
    ]


def test_the_finding_has_the_shares_of_all_parts_and_the_number_above_chance(section_of):
    assert section_of(VALUES).finding == (
        "All heads together directly write 50.0 % (permuted labels give 25.0 ± 4.0 %, z = 6.2, p = 0.005) of the "
        "distance between the two means after the last block, and all MLPs 50.0 % (permuted labels give 60.0 ± 5.0 %, "
        "z = -2.0, p = 0.06); p is two-sided. The share is shown to be above chance for 2 of 8 heads and 0 of 4 MLPs "
        "(family-wise p of at most 0.05). This tests how the distance is divided among the parts, not whether a part "
        "separates the sets."
    )


def test_mlps_that_are_not_measured_are_not_counted_among_all(section_of):
    some = np.array([0.1, np.nan, 0.2, np.nan])
    section = section_of(
        VALUES | {"mlp_share": some, "total": {"head": 0.5, "mlp": 0.3}, "decomposition_error": np.nan}
    )
    assert "after the last block, and the 2 measured MLPs 30.0 % (permuted" in section.finding
    assert not any("The sum over heads and biases" in fact for fact in section.facts)


def test_no_comparison_has_only_zeros(section_of):
    tiny = {
        "head_share": HEADS * 1e-4,
        "head_share_null": VALUES["head_share_null"] | {"mean": HEADS * 3e-5},
        "embedding_share_null": {"mean": 1e-9},
    }
    facts = section_of(VALUES | tiny).facts
    assert "input of the first block" not in facts[0]
    assert "head L3H0, 0.003 % (permuted labels give 0.0009 %)" in facts[1]
    assert "of L1H0: 0.0005 %, where permuted labels give 0.00015 %" in facts[2]
    assert not any("0.0 % (permuted labels give 0.0 %)" in fact for fact in facts)


def test_a_negative_standardised_difference_keeps_its_sign(section_of):
    section = section_of(VALUES | {"head_standardised": np.array([[0.1, 0.0], [0.0, -2.0], [0.0, 0.0], [0.5, 0.0]])})
    assert "for L1H1: by -2.00 pooled" in section.facts[3]


UNRELIABLE = np.array([[0.1, 0.9, 0.9, 0.9], [0.9, 0.49, 0.5, 0.9]])[:, None]  # at resid_mid: layer 1
OUT = " no stated difference, since the direction is unreliable or the difference is unknown"


def test_standardised_differences_along_unreliable_directions_are_left_out(section_of):
    section = section_of(VALUES, UNRELIABLE)
    assert "for L3H1: by 0.40 pooled standard deviations. With permuted labels" in section.facts[3]
    assert section.facts[3].endswith(
        "It is positive (prompts of the positive set lie farther along the direction) in 1 of them, and negative in "
        "0. The family-wise p, at most 0.05, accounts for the search over all 8 heads, also over those left out here. "
        f"2 heads have{OUT}. If two sets differ at all, many heads can be expected to differ: they read and write the "
        "same stream."
    )
    # The shares are those along the direction after the last block.
    assert section.facts[:3] == section_of(VALUES).facts[:3]
    veils = [len(one.draw().data) for one in section.maps]
    assert veils == [1, 1, 2]


def test_standardised_differences_without_tests_have_the_number_of_heads_that_are_left_out(section_of):
    values = VALUES | {"head_standardised_null": {"mean": 0.2}}
    fitted = "0.90 pooled standard deviations (the direction is fitted to the same prompts"
    assert section_of(values).facts[3].endswith(f"{fitted}).")
    one = np.where((Z == 0) & (np.arange(8).reshape(4, 2) == 1), np.nan, Z / 10)  # L0H1
    assert section_of(values | {"head_standardised": one}).facts[3].endswith(f"{fitted}; 1 head has{OUT}).")


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
    [({}, "in post-norm models the stream is not a sum"), ({"head_difference": 1.0}, "they need all layers")],
)
def test_missing_contributions_have_their_reason(section_of, known, reason):
    section = section_of({"n_used": 5, **known})
    (fact,) = section.facts
    assert reason in fact
    assert section.figures == []


def test_a_contrast_without_prompts_at_the_position_has_no_section(tmp_path):
    run = cached_run(tmp_path, {"curves": {}, "contributions": {"n_used": [0, 3]}})
    assert contributions.sections(run) == []
