"""Sentence and figure of the variance along depth: the parts of its growth, and what a run lacks."""

import numpy as np
import pytest
from support.finished_runs import finished_run

from theodolite.figures.travel_variance import budget_figure
from theodolite.sections.travel_variance import variance_facts
from theodolite.store.result_reader import read_group

LABELS = {"harmful": "harmful (marked)"}
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
GROWTH = "Growth of the total variance over prompts, up to the block after which it is largest"
# Growth 10: attention 4 and 0, the MLP 2 and 4; 5 in the last block.
WHOLE = (
    "from 1 to 11 after layer 3, where variance of the steps makes 60 % (attention 40 %, the MLP 20 %) of the growth, "
    "and twice their covariance with the stream 40 % (attention 0 %, the MLP 40 %); this last block alone makes 50 % "
    "(n = 401)"
)


@pytest.fixture
def travel_of(tmp_path):
    def read(values, n=401):
        run = finished_run(tmp_path, {"travel": {"n_samples": n, **values}})
        return read_group(run, "travel").sel(position=-1)

    return read


def test_the_growth_of_the_variance_is_divided_into_parts_that_add_up(travel_of):
    assert list(variance_facts(travel_of(BUDGET), LABELS)) == [f"{GROWTH}: harmful (marked) {WHOLE}."]


def test_a_variance_that_falls_again_is_divided_up_to_its_maximum(travel_of):
    (growth,) = variance_facts(travel_of(BUDGET | {"variance_post": np.array([2.0, 4.5, 3.0, 2.5])}), LABELS)
    # Growth 3.5 over two blocks: attention 2 and −1, the MLP 1 and 1; 2.5 in the second block.
    assert growth == (
        f"{GROWTH}: harmful (marked) from 1 to 4.5 after layer 1, where variance of the steps makes 86 % (attention "
        "57 %, the MLP 29 %) of the growth, and twice their covariance with the stream 0 % (attention -29 %, the MLP "
        "29 %); this last block alone makes 71 % (n = 401)."
    )


def test_a_variance_that_is_largest_after_the_first_block_grows_in_this_block_alone(travel_of):
    (growth,) = variance_facts(travel_of(BUDGET | {"variance_post": np.array([2.0, 1.5, 1.5, 1.5])}), LABELS)
    # Growth 1 in one block: attention 1 and −0.5, the MLP 0.5 and 0.
    assert growth == (
        f"{GROWTH}: harmful (marked) from 1 to 2 after layer 0, where variance of the steps makes 150 % (attention "
        "100 %, the MLP 50 %) of the growth, and twice their covariance with the stream -50 % (attention -50 %, the "
        "MLP 0 %); this last block alone makes 100 % (n = 401)."
    )


def test_the_last_block_can_make_all_of_the_growth(travel_of):
    """Its share is the growth inside the block, not the difference to the block before the last."""
    change = {"variance_pre": np.array([1.0, 0.5, 0.5, 0.5]), "variance_post": np.array([0.5, 0.5, 0.5, 11.0])}
    (growth,) = variance_facts(travel_of(BUDGET | change), LABELS)
    assert growth.endswith("; this last block alone makes 105 % (n = 401).")


def test_blocks_without_a_middle_are_divided_as_a_whole(travel_of):
    for middle in (np.nan, np.array([np.nan, 1, 1, 1])):
        assert list(variance_facts(travel_of(BUDGET | {"variance_mid": middle}), LABELS)) == [
            f"{GROWTH}: harmful (marked) from 1 to 11 after layer 3, where variance of the steps makes 60 % of the "
            "growth, and twice their covariance with the stream 40 %; this last block alone makes 50 % (n = 401)."
        ]


@pytest.mark.parametrize(
    "change",
    [
        {"path_length": np.nan},
        {"variance_post": 0.5},
        {"variance_post": 1.0},
        {"variance_post": np.array([2, np.nan, 6, 11])},
    ],
    ids=["a part of the layers", "a falling variance", "a constant variance", "an unknown output"],
)
def test_a_part_of_the_layers_or_a_variance_that_does_not_grow_has_no_shares(travel_of, change):
    assert list(variance_facts(travel_of(BUDGET | change), LABELS)) == []


def test_one_sentence_lists_all_sets_whose_variance_grows(travel_of):
    both = {"harmful": "harmful (marked)", "harmless": "harmless"}
    counts = np.array([[401], [300]])
    second = WHOLE.replace("n = 401", "n = 300")
    assert list(variance_facts(travel_of(BUDGET, counts), both)) == [
        f"{GROWTH}: harmful (marked) {WHOLE}; harmless {second}."
    ]
    falls = np.stack([np.full(4, 0.5), BUDGET["variance_post"]])[:, None]
    assert list(variance_facts(travel_of(BUDGET | {"variance_post": falls}, counts), both)) == [
        f"{GROWTH}: harmless {second}."
    ]


def test_a_run_of_an_older_version_without_variances_has_no_sentence(older_run):
    run = older_run("travel", {"n_samples": 401, "path_length": 1.0}, "variance")
    assert list(variance_facts(read_group(run, "travel").sel(position=-1), LABELS)) == []


def test_bars_of_a_block_add_up_to_its_variance(tmp_path):
    travel = read_group(finished_run(tmp_path, {"travel": BUDGET}), "travel")
    figure = budget_figure(travel, -1, {**LABELS, "harmless": "harmless"})
    assert len(figure.data) == 10
    titles = [axis.title.text for axis in figure.select_yaxes()]
    assert titles == ["share, harmful<br>(marked)", "share, harmless"]
    found = {trace.name: np.array(trace.y, dtype=float) for trace in figure.data[:5]}
    np.testing.assert_allclose(found["variance of attention's step"], 1 / BUDGET["variance_post"])
    np.testing.assert_allclose(found["twice the MLP's covariance with the stream"][3], 2 / 11)
