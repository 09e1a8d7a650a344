"""Sentences and figures about steps: they state the numbers that are stored, and leave out what a run lacks."""

import numpy as np
import pytest
from support.finished_runs import finished_run

from theodolite.figures.travel import cosines_figure, travel_figure
from theodolite.figures.travel_variance import budget_figure
from theodolite.sections.travel_steps import step_facts
from theodolite.sections.travel_variance import variance_facts
from theodolite.store.result_reader import read_group

LAYERS = 4
LABELS = {"harmful": "harmful (marked)"}
RAW = {"step_cosine_next": np.array([0.1, 0.2, 0.3, np.nan]), "step_cosine_stream": -0.5}
CENTRED = {
    "step_cosine_next_centred": np.array([-0.3, 0.01, -0.4, np.nan]),
    "step_cosine_stream_centred": 0.25,
    "step_common_share": np.array([0.6, 0.7, 0.9, 1.0]),
}
BUDGET = {
    "path_length": 1.0,
    "variance_pre": np.array([1.0, 2.0, 4.0, 6.0]),
    "variance_mid": 1.0,
    "variance_post": np.array([2.0, 4.0, 6.0, 11.0]),
    "variance_step_attn": 1.0,
    "twice_covariance_attn": np.array([-0.5, -0.5, 0.5, 0.5]),
    "variance_step_mlp": 0.5,
    "twice_covariance_mlp": np.array([0.0, 1.0, 1.0, 2.0]),
    "variance_step_block": 1.5,
    "twice_covariance_block": np.array([-0.5, 0.5, 0.5, 3.5]),
}


@pytest.fixture
def travel_of(tmp_path):
    def read(values, n=401):
        run = finished_run(tmp_path, {"travel": {"n_samples": n, **values}})
        return read_group(run, "travel").sel(position=-1)

    return read


def test_cosines_are_stated_for_steps_and_for_their_deviations(travel_of):
    following, stream, share = step_facts(travel_of(RAW | CENTRED), LABELS)
    assert following == (
        "Cosine between the steps of successive blocks for harmful (marked), mean over 3 pairs: 0.20 for the vectors "
        "themselves, -0.23 for their deviations from the means over prompts (n = 401 prompts). For independent "
        "deviations, two standard deviations of the second cosine are at most 0.100; it is below -0.100 for 2 pairs "
        "and above 0.100 for 0."
    )
    assert "mean over 4 blocks: -0.50 for the vectors themselves, 0.25 for" in stream
    assert "above 0.100 for 4." in stream
    assert "60 % to 100 % over 4 blocks, median 80 % (n = 401 prompts" in share


def test_both_means_are_over_the_same_blocks(travel_of):
    """The first input may be the same in all prompts; it then has a cosine and no deviations."""
    change = {"step_cosine_stream": np.array([1, 0, 0, 0]), "step_cosine_stream_centred": np.array([np.nan, 0, 0, 0])}
    _, stream, _ = step_facts(travel_of(RAW | CENTRED | change), LABELS)
    assert "mean over 3 blocks: 0.00 for the vectors themselves, 0.00 for" in stream


def test_a_run_without_centred_cosines_states_those_that_it_has(travel_of):
    following, stream = step_facts(travel_of(RAW), LABELS)
    assert following.endswith("mean over 3 pairs: 0.20.")
    assert stream.endswith("mean over 4 blocks: -0.50.")
    assert list(variance_facts(travel_of(RAW), LABELS)) == []


def test_paths_and_arcs_are_compared_with_the_shortest_ones(travel_of):
    values = {"path_ratio": 3.2, "path_ratio_std": 0.1, "arc_length": 4.0, "arc_length_std": 0.25}
    values |= {"arc_ratio": 2.5, "arc_ratio_std": 0.2}
    path, arc = step_facts(travel_of(values), {"harmless": "harmless"})
    assert path.startswith(
        "Path length over displacement for harmless: 3.20 ± 0.10 (mean ± standard deviation over 401"
    )
    assert "4.00 ± 0.25 radians, which is 2.50 ± 0.20 times the angle" in arc
    assert arc.endswith("a path along one great circle gives 1.")


def test_the_growth_of_the_variance_is_divided_into_parts_that_add_up(travel_of):
    growth, correlation = variance_facts(travel_of(BUDGET), LABELS)
    # Growth 10: attention 4 and 0, the MLP 2 and 4.
    assert growth == (
        "Total variance of harmful (marked) over prompts: 1 at the first input and 11 after the last block. Of this "
        "growth, 60 % is variance of the steps and 40 % is twice their covariance with the stream (in this order, "
        "attention 40 % and 0 %; the MLP 20 % and 40 %; n = 401 prompts)."
    )
    # Attention: ±0.25/√(1, 2, 4, 6). The MLP: (0, 0.5, 0.5, 1)/√0.5.
    assert correlation == (
        "Correlation of a step with the stream over the prompts of harmful (marked): in attention, above 0.100 for 2 "
        "and below -0.100 for 2 of 4 steps; in the MLP, above 0.100 for 3 and below -0.100 for 0 of 4 steps (n = 401 "
        "prompts; for independent steps, two standard deviations are at most 0.100)."
    )


def test_a_variance_that_falls_again_is_divided_up_to_its_maximum(travel_of):
    growth, _ = variance_facts(travel_of(BUDGET | {"variance_post": np.array([2.0, 4.5, 3.0, 2.5])}), LABELS)
    # Growth 3.5 over two blocks: attention 2 and −1, the MLP 1 and 1.
    assert (
        "1 at the first input, at most 4.5, after layer 1, and 2.5 at the end. Of the growth up to layer 1, " in growth
    )
    assert "(in this order, attention 57 % and -29 %; the MLP 29 % and 29 %;" in growth


def test_blocks_without_a_middle_are_divided_as_a_whole(travel_of):
    growth, correlation = variance_facts(travel_of(BUDGET | {"variance_mid": np.nan}), LABELS)
    assert "60 % is variance of the steps and 40 % is twice their covariance with the stream (n = 401" in growth
    assert "in the block, above 0.100 for 3 and below -0.100 for 1 of 4 steps (n = 401" in correlation


@pytest.mark.parametrize("change", [{"path_length": np.nan}, {"variance_post": 0.5}])
def test_a_part_of_the_layers_or_a_falling_variance_has_no_shares(travel_of, change):
    assert not any("growth" in fact for fact in variance_facts(travel_of(BUDGET | change), LABELS))


def test_bars_of_a_block_add_up_to_its_variance(tmp_path):
    travel = read_group(finished_run(tmp_path, {"travel": BUDGET}), "travel")
    figure = budget_figure(travel, -1, {**LABELS, "harmless": "harmless"})
    assert len(figure.data) == 10
    titles = [axis.title.text for axis in figure.select_yaxes()]
    assert titles == ["share, harmful<br>(marked)", "share, harmless"]
    found = {trace.name: np.array(trace.y, dtype=float) for trace in figure.data[:5]}
    np.testing.assert_allclose(found["variance of attention's step"], 1 / BUDGET["variance_post"])
    np.testing.assert_allclose(found["twice the MLP's covariance with the stream"][3], 2 / 11)


def test_cosines_have_a_line_at_zero(tmp_path):
    travel = read_group(finished_run(tmp_path, {"travel": RAW | CENTRED}), "travel")
    figure = cosines_figure(travel, -1, {"harmful": "#000000"})
    zero = [trace for trace in figure.data if trace.name == "0"]
    assert len(zero) == 2
    assert all(set(trace.y) == {0.0} for trace in zero)
    assert [axis.title.text for axis in figure.select_yaxes()] == [
        *("cosine", "cosine of deviations", "share of the mean step"),
    ]


def test_a_run_of_an_older_version_has_no_panel_of_angles(tmp_path):
    travel = read_group(finished_run(tmp_path, {"travel": {"step_norm_attn": 1.0, "step_norm_mlp": 2.0}}), "travel")
    figure = travel_figure(travel, -1, {"harmful": "#000000"})
    assert [axis.title.text for axis in figure.select_yaxes()] == ["norm of the step"]
