"""Sentences and figures about steps: they state the numbers that are stored, and leave out what a run lacks."""

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import finished_run

from theodolite.figures.travel import cosines_figure, travel_figure
from theodolite.sections import travel
from theodolite.sections.travel_steps import STEP_NOTES, step_facts
from theodolite.store.result_reader import read_group

LABELS = {"harmful": "harmful (marked)"}
BOTH = {**LABELS, "harmless": "harmless"}
NAN = np.nan
RAW = {"step_cosine_next": np.array([0.1, 0.1, 0.4, NAN]), "step_cosine_stream": -0.5}
CENTRED = {
    "step_cosine_next_centred": np.array([-0.3, 0.01, -0.4, NAN]),
    "step_cosine_stream_centred": 0.25,
    "step_cosine_attn_centred": np.array([0.5, -0.2, 0.3, 0.0]),
    "step_cosine_mlp_centred": np.array([NAN, 0.4, -0.1, -0.6]),
    "step_common_share": np.array([0.6, 0.7, 0.9, 1.0]),
}
TESTS = {
    "n_tested": 401,
    "step_cosine_next_centred_p_family": np.array([0.001, 0.9, 0.05, NAN]),
    "step_cosine_stream_centred_p_family": np.array([0.05, 0.051, 0.001, 0.2]),
    "step_cosine_attn_centred_p_family": np.array([0.01, 0.02, 0.03, 0.001]),
    "step_cosine_mlp_centred_p_family": np.array([NAN, 0.2, 0.3, 0.001]),
    **{f"step_cosine_{name}_centred_null_sd": 0.02 for name in ("next", "stream", "attn", "mlp")},
}
NEXT = "Centred cosine between the steps of successive blocks"
STREAM = "Centred cosine between a block's step and its input"
ATTENTION = "Centred cosine between attention's step and its input"
MLP = "Centred cosine between the MLP's step and its input"
SHARE = (
    "Share of a block's step that all prompts of a set have in common (squared length of the mean step divided by the "
    "mean squared length, without the bias of noise)"
)
PATH = "Path length divided by displacement (a straight line gives 1), mean ± standard deviation over prompts"
ARC = (
    "Sum over blocks of the angle between input and output, divided by the angle between the first input and the last "
    "output (a path along at most half of a great circle, without turning back, gives 1), mean ± standard deviation "
    "over prompts"
)
RATIOS = {"path_ratio": 3.2, "path_ratio_std": 0.1, "arc_ratio": 2.5, "arc_ratio_std": 0.2}
AT_RIGHT_ANGLES = {"path_ratio_at_right_angles": 2.25, "arc_ratio_at_right_angles": 1.9}


def of_sets(*values):
    """Return values of several sets as an array whose first dimension is the set."""
    stacked = np.stack([np.asarray(one, float) for one in values])
    return stacked[:, None] if stacked.ndim == 1 else stacked[:, None, :]


@pytest.fixture
def travel_of(tmp_path):
    def read(values, n=401):
        run = finished_run(tmp_path, {"travel": {"n_samples": n, **values}})
        return read_group(run, "travel").sel(position=-1)

    return read


def test_cosines_of_deviations_are_counted_where_they_pass_the_test(travel_of):
    assert list(step_facts(travel_of(RAW | CENTRED | TESTS), LABELS)) == [
        f"{NEXT}: harmful (marked) mean -0.23, from -0.40 to 0.01 (significantly below 0 in 2 and above 0 in 0 of "
        "3 pairs; without centring, the mean is 0.20, and the last pair has 0.40; n = 401).",
        f"{STREAM}: harmful (marked) mean 0.25, from 0.25 to 0.25 (significantly below 0 in 0 and above 0 in 2 of "
        "4 blocks; without centring, the mean is -0.50, and the last block has -0.50; n = 401).",
        # A cosine of 0 is on no side.
        f"{ATTENTION}: harmful (marked) mean 0.15, from -0.20 to 0.50 (significantly below 0 in 1 and above 0 in 2 "
        "of 4 blocks; n = 401).",
        f"{MLP}: harmful (marked) mean -0.10, from -0.60 to 0.40 (significantly below 0 in 1 and above 0 in 0 of 3 "
        "blocks; n = 401).",
        f"{SHARE}: harmful (marked) 60 % to 100 % over 4 blocks, median 80 % (n = 401).",
    ]


def test_one_sentence_lists_all_sets(travel_of):
    values = {
        **RAW,
        **TESTS,
        "n_samples": of_sets(401, 300),
        "n_tested": of_sets(401, 300),
        "step_cosine_next_centred": of_sets([-0.3, 0.01, -0.4, NAN], [0.1, 0.2, 0.6, NAN]),
        "step_common_share": of_sets([0.6, 0.7, 0.9, 1.0], [0.1, 0.2, 0.3, 0.5]),
        "step_cosine_stream_centred": of_sets([NAN] * 4, [0.5] * 4),
    }
    assert list(step_facts(travel_of(values), BOTH)) == [
        f"{NEXT}: harmful (marked) mean -0.23, from -0.40 to 0.01 (significantly below 0 in 2 and above 0 in 0 of "
        "3 pairs; without centring, the mean is 0.20, and the last pair has 0.40; n = 401); harmless mean 0.30, from "
        "0.10 to 0.60 (significantly below 0 in 0 and above 0 in 2 of 3 pairs; without centring, the mean is 0.20, and "
        "the last pair has 0.40; n = 300).",
        f"{STREAM}: harmless mean 0.50, from 0.50 to 0.50 (significantly below 0 in 0 and above 0 in 2 of 4 blocks; "
        "without centring, the mean is -0.50, and the last block has -0.50; n = 300).",
        f"{SHARE}: harmful (marked) 60 % to 100 % over 4 blocks, median 80 % (n = 401); harmless 10 % to 50 % over 4 "
        "blocks, median 25 % (n = 300).",
    ]


def test_the_number_of_tested_prompts_is_stated_if_it_is_smaller(travel_of):
    facts = list(step_facts(travel_of(RAW | CENTRED | TESTS | {"n_tested": 256}), LABELS))
    assert facts[0].endswith(
        "without centring, the mean is 0.20, and the last pair has 0.40; n = 401, of which 256 for the tests)."
    )
    assert facts[2].endswith(
        "(significantly below 0 in 1 and above 0 in 2 of 4 blocks; n = 401, of which 256 for the tests)."
    )
    assert facts[4].endswith("median 80 % (n = 401).")


def test_a_run_of_an_older_version_has_cosines_without_tests(older_run):
    values = {"n_samples": 401, **RAW, **CENTRED}
    run = older_run("travel", values, "_null_sd", "_p_family", "n_tested", "cosine_attn", "cosine_mlp", "_at_right")
    older = read_group(run, "travel").sel(position=-1)
    assert (older["n_tested"] == -1).all()
    assert list(step_facts(older, LABELS)) == [
        f"{NEXT}: harmful (marked) mean -0.23, from -0.40 to 0.01 (without centring, the mean is 0.20, and the last "
        "pair has 0.40; n = 401).",
        f"{STREAM}: harmful (marked) mean 0.25, from 0.25 to 0.25 (without centring, the mean is -0.50, and the "
        "last block has -0.50; n = 401).",
        f"{SHARE}: harmful (marked) 60 % to 100 % over 4 blocks, median 80 % (n = 401).",
    ]


def test_cosines_of_one_sublayer_without_tests_have_only_their_number_of_prompts(travel_of):
    (fact,) = step_facts(travel_of({"step_cosine_attn_centred": 0.5, "n_tested": 256}), LABELS)
    assert fact == f"{ATTENTION}: harmful (marked) mean 0.50, from 0.50 to 0.50 (n = 401)."


def test_a_cosine_that_rounds_to_0_has_no_sign(travel_of):
    values = {"step_cosine_next": -0.001, "step_cosine_next_centred": -0.004}
    (fact,) = step_facts(travel_of(values), LABELS)
    assert fact == (
        f"{NEXT}: harmful (marked) mean 0.00, from 0.00 to 0.00 (without centring, the mean is 0.00, and the last "
        "pair has 0.00; n = 401)."
    )


def test_both_means_are_over_the_same_blocks(travel_of):
    """The first input may be the same in all prompts; it then has a cosine and no deviations."""
    change = {
        "step_cosine_stream": np.array([1, 0, 0, 0]),
        "step_cosine_stream_centred": np.array([NAN, 0.3, 0.3, -0.3]),
        "step_cosine_stream_centred_p_family": np.array([NAN, 0.01, 0.5, 0.01]),
    }
    _, stream, *_ = step_facts(travel_of(RAW | CENTRED | TESTS | change), LABELS)
    assert stream == (
        f"{STREAM}: harmful (marked) mean 0.10, from -0.30 to 0.30 (significantly below 0 in 1 and above 0 in 1 of "
        "3 blocks; without centring, the mean is 0.00, and the last block has 0.00; n = 401)."
    )


def test_parallel_blocks_have_no_cosines_of_attention_and_the_mlp(travel_of):
    lacks = {"step_cosine_attn_centred": NAN, "step_cosine_mlp_centred": NAN}
    following, stream, share = step_facts(travel_of(RAW | CENTRED | TESTS | lacks), LABELS)
    assert [following.partition(":")[0], stream.partition(":")[0], share.partition(":")[0]] == [NEXT, STREAM, SHARE]


def test_a_run_without_cosines_of_deviations_has_no_sentence_about_them(travel_of):
    assert list(step_facts(travel_of(RAW), LABELS)) == []


def test_paths_and_arcs_are_compared_with_those_at_right_angles(travel_of):
    assert list(step_facts(travel_of(RATIOS | AT_RIGHT_ANGLES), {"harmless": "harmless"})) == [
        f"{PATH}: harmless 3.20 ± 0.10 (steps at right angles give 2.25; n = 401).",
        f"{ARC}: harmless 2.50 ± 0.20 (arcs at right angles give 1.90; n = 401).",
    ]


def test_paths_of_an_older_version_are_compared_with_the_shortest_ones_alone(older_run):
    run = older_run("travel", {"n_samples": 401, **RATIOS}, "_at_right_angles")
    assert list(step_facts(read_group(run, "travel").sel(position=-1), LABELS)) == [
        f"{PATH}: harmful (marked) 3.20 ± 0.10 (n = 401).",
        f"{ARC}: harmful (marked) 2.50 ± 0.20 (n = 401).",
    ]


def test_a_set_of_one_prompt_has_no_spread_and_is_left_out(travel_of):
    change = {"path_ratio_std": of_sets(NAN, 0.1), "arc_ratio_std": NAN, "n_samples": of_sets(1, 401)}
    assert list(step_facts(travel_of(RATIOS | AT_RIGHT_ANGLES | change), BOTH)) == [
        f"{PATH}: harmless 3.20 ± 0.10 (steps at right angles give 2.25; n = 401)."
    ]


def test_paths_and_arcs_are_also_compared_without_the_last_block(travel_of):
    before = {"path_ratio_before_last": 2.85, "path_ratio_before_last_at_right_angles": 4.05}
    before |= {"arc_ratio_before_last": 2.4, "arc_ratio_before_last_at_right_angles": 2.5}
    assert list(step_facts(travel_of(RATIOS | AT_RIGHT_ANGLES | before), {"harmless": "harmless"})) == [
        f"{PATH}: harmless 3.20 ± 0.10 (steps at right angles give 2.25; without the last block, the measured "
        "ratio is 2.85 and steps at right angles give 4.05; n = 401).",
        f"{ARC}: harmless 2.50 ± 0.20 (arcs at right angles give 1.90; without the last block, the measured ratio "
        "is 2.40 and arcs at right angles give 2.50; n = 401).",
    ]


def test_the_section_explains_tests_and_right_angles(tmp_path, monkeypatch):
    values = RAW | CENTRED | TESTS | RATIOS | AT_RIGHT_ANGLES
    run = finished_run(tmp_path, {"curves": {}, "moments": {}, "travel": values})
    growth = pd.DataFrame(columns=["quantity", "set", "site", "position", "law"])
    monkeypatch.setattr(travel, "read_finished_table", lambda *_: growth)
    (section,) = travel.sections(run)
    assert set(STEP_NOTES) < set(section.notes)
    assert section.facts[0].startswith(
        f"{PATH}: harmful 3.20 ± 0.10 (steps at right angles give 2.25; n = 4); harmless"
    )


def test_cosines_have_a_line_at_zero(tmp_path):
    group = read_group(finished_run(tmp_path, {"travel": RAW | CENTRED}), "travel")
    figure = cosines_figure(group, -1, {"harmful": "#000000"})
    zero = [trace for trace in figure.data if trace.name == "random directions: 0"]
    assert len(zero) == 2
    assert all(set(trace.y) == {0.0} for trace in zero)
    assert [axis.title.text for axis in figure.select_yaxes()] == [
        *("cosine", "cosine of deviations", "share of the mean step"),
    ]


def test_a_run_of_an_older_version_has_no_panel_of_angles(tmp_path):
    group = read_group(finished_run(tmp_path, {"travel": {"step_norm_attn": 1.0, "step_norm_mlp": 2.0}}), "travel")
    figure = travel_figure(group, -1, {"harmful": "#000000"})
    assert [axis.title.text for axis in figure.select_yaxes()] == ["norm of the step"]
