"""Sentence, table and figure of the variance along depth: the parts of its growth, and what a run lacks."""

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import cached_run
from support.sentences import assert_each_says, assert_says

from theodolite.groups.travel import sections as travel
from theodolite.groups.travel.figures_variance import budget_figure
from theodolite.groups.travel.sections_variance import variance_facts, variance_finding, variance_table
from theodolite.store.result_reader import read_group

LABELS = {"harmful": "harmful (marked)"}
BEFORE, AFTER = np.array([1.0, 2.0, 4.0, 6.0]), np.array([2.0, 4.0, 6.0, 11.0])


def variance(pre=BEFORE, mid=1.0, post=AFTER):
    return {"variance": {"pre": pre, "mid": mid, "post": post}}


BUDGET = {
    "path_length": 1.0,
    **variance(),
    "variance_change": {
        "step_variance": {"attention": 1.0, "mlp": 0.5, "block": 1.5},
        "twice_covariance": {
            "attention": np.array([-0.5, -0.5, 0.5, 0.5]),
            "mlp": np.array([0.0, 1.0, 1.0, 2.0]),
            "block": np.array([-0.5, 0.5, 0.5, 3.5]),
        },
    },
}
GROWTH = "Total variance over prompts"
BRANCHES = "steps of attention and the MLP"
NOT_TESTED = "no intervals"
# Growth 10: attention 4 and 0, the MLP 2 and 4; 5 in the last block.
OF_BLOCK = {"step_variance": 1.75, "twice_covariance": np.array([-0.5, 0.5, 0.5, 2.5])}  # 7 and 3
BLOCKS = {"variance_change": {"block": OF_BLOCK}}
PARTS = ["from 1 to 11 after layer 3", "40 %", "20 %", "0 %", "40 %", "50 %"]


@pytest.fixture
def travel_of(tmp_path):
    def read(values, n=401):
        run = cached_run(tmp_path, {"travel": {"n_samples": n, **values}})
        return read_group(run, "travel").sel(position=-1)

    return read


def rows_of(values, labels=None):
    return variance_table(values, labels or LABELS).rows


def test_the_growth_of_the_variance_is_divided_into_parts_that_add_up(travel_of):
    growth, shares = variance_facts(travel_of(BUDGET), LABELS)
    assert_says(growth, f"{GROWTH} … harmful (marked) from 1 to 11 after layer 3 (n = 401)")
    assert_says(shares, f"{BRANCHES} … without intervals: harmful (marked) 60 %, and 50 % in block 3")


GROWS = "grows from 1 to 11 after layer 3"


def test_the_finding_has_twice_the_covariance_of_each_branch(travel_of):
    assert_says(
        variance_finding(travel_of(BUDGET), LABELS),
        f"harmful (marked) … {GROWS} … 60 % … variance … {BRANCHES} … 0 % … twice … attention … 40 % … twice",
        f"40 % … twice … MLP … Block 3 alone gives 50 % (n = 401) … {NOT_TESTED}",
    )


def test_the_finding_has_the_same_shares_of_the_other_sets(travel_of):
    finding = variance_finding(travel_of(BUDGET), {**LABELS, "harmless": "harmless"})
    assert_says(finding, f"other sets … harmless 60 %, 0 %, 40 %, 50 % (n = 401) … {NOT_TESTED}")


def test_the_finding_is_that_of_the_first_set_whose_variance_grows(travel_of):
    falls = np.stack([np.full(4, 0.5), AFTER])[:, None]
    values = travel_of(BUDGET | BLOCKS | variance(mid=np.nan, post=falls))
    assert_says(
        variance_finding(values, {**LABELS, "harmless": "harmless"}),
        f"harmless … {GROWS} … 70 % … variance … block … 30 % … twice … Block 3 alone gives 50 % (n = 401)",
    )
    assert variance_finding(values, LABELS) == ""


def test_the_table_has_the_parts_of_each_branch(travel_of):
    table = variance_table(travel_of(BUDGET), {**LABELS, "harmless": "harmless"})
    assert table.columns == [
        *("set", "total variance", "variance, attention", "variance, the MLP"),
        *("twice covariance, attention", "twice covariance, the MLP", "last block"),
    ]
    assert table.rows == [["harmful (marked)", *PARTS], ["harmless", *PARTS]]


def test_a_set_without_parts_of_each_branch_has_no_row(travel_of):
    both = {**LABELS, "harmless": "harmless"}
    middle = np.stack([np.array([1, 1, np.nan, 1]), np.ones(4)])[:, None]
    assert rows_of(travel_of(BUDGET | variance(mid=middle)), both) == [["harmless", *PARTS]]
    falls = np.stack([np.full(4, 0.5), AFTER])[:, None]
    assert rows_of(travel_of(BUDGET | variance(post=falls)), both) == [["harmless", *PARTS]]
    assert variance_table(travel_of(BUDGET | variance(post=0.5)), both) is None


@pytest.mark.parametrize(("middle", "n_tables"), [(1.0, 1), (np.nan, 0)], ids=["sequential", "parallel"])
def test_the_section_has_the_table_unless_blocks_are_parallel(tmp_path, monkeypatch, middle, n_tables):
    run = cached_run(tmp_path, {"curves": {}, "moments": {}, "travel": BUDGET | variance(mid=middle)})
    growth = pd.DataFrame(columns=["quantity", "set", "site", "position", "law"])
    monkeypatch.setattr(travel, "read_finished_table", lambda *_: growth)
    (section,) = travel.sections(run)
    assert [table.rows for table in section.tables if table.caption.startswith("Growth")] == [
        [["harmful", *PARTS], ["harmless", *PARTS]]
    ] * n_tables
    assert set(travel._NOTES) < set(section.notes)


def test_a_variance_that_falls_again_is_divided_up_to_its_maximum(travel_of):
    values = travel_of(BUDGET | variance(post=np.array([2.0, 4.5, 3.0, 2.5])))
    growth, shares = variance_facts(values, LABELS)
    # Growth 3.5 over two blocks: attention 2 and −1, the MLP 1 and 1; 2.5 in the second block.
    assert_says(growth, f"{GROWTH} … harmful (marked) from 1 to 4.5 after layer 1 (n = 401)")
    assert_says(shares, f"{BRANCHES} … harmful (marked) 86 %, and 71 % in block 1")
    parts = ["57 %", "29 %", "-29 %", "29 %", "71 %"]
    assert rows_of(values) == [["harmful (marked)", "from 1 to 4.5 after layer 1", *parts]]


def test_a_variance_that_is_largest_after_the_first_block_grows_in_this_block_alone(travel_of):
    values = travel_of(BUDGET | variance(post=np.array([2.0, 1.5, 1.5, 1.5])))
    growth, shares = variance_facts(values, LABELS)
    # Growth 1 in one block: attention 1 and −0.5, the MLP 0.5 and 0.
    assert_says(growth, f"{GROWTH} … harmful (marked) from 1 to 2 after layer 0 (n = 401)")
    assert_says(shares, f"{BRANCHES} … harmful (marked) 150 %, and 100 % in block 0")
    parts = ["100 %", "50 %", "-50 %", "0 %", "100 %"]
    assert rows_of(values) == [["harmful (marked)", "from 1 to 2 after layer 0", *parts]]


def test_the_last_block_can_make_all_of_the_growth(travel_of):
    """Its share is the growth inside the block, not the difference to the block before the last."""
    change = variance(np.array([1.0, 0.5, 0.5, 0.5]), post=np.array([0.5, 0.5, 0.5, 11.0]))
    _, shares = variance_facts(travel_of(BUDGET | change), LABELS)
    assert_says(shares, "105 % in block 3")


def test_blocks_without_a_middle_are_divided_as_a_whole(travel_of):
    for middle in (np.nan, np.array([np.nan, 1, 1, 1])):
        values = travel_of(BUDGET | BLOCKS | variance(mid=middle))
        growth, shares = variance_facts(values, LABELS)
        assert_says(growth, f"{GROWTH} … harmful (marked) from 1 to 11 after layer 3 (n = 401)")
        assert_says(shares, "steps of the block … harmful (marked) 70 %, and 50 % in block 3")
        assert variance_table(values, LABELS) is None


@pytest.mark.parametrize(
    "change",
    [
        {"path_length": np.nan},
        variance(post=0.5),
        variance(post=1.0),
        variance(post=np.array([2, np.nan, 6, 11])),
    ],
    ids=["a part of the layers", "a falling variance", "a constant variance", "an unknown output"],
)
def test_a_part_of_the_layers_or_a_variance_that_does_not_grow_has_no_shares(travel_of, change):
    assert list(variance_facts(travel_of(BUDGET | change), LABELS)) == []


def test_one_sentence_lists_all_sets_whose_variance_grows(travel_of):
    both = {"harmful": "harmful (marked)", "harmless": "harmless"}
    counts = np.array([[401], [300]])
    growth, share = "from 1 to 11 after layer 3", "60 %, and 50 % in block 3"
    assert_each_says(
        variance_facts(travel_of(BUDGET, counts), both),
        f"{GROWTH} … harmful (marked) {growth} (n = 401); harmless {growth} (n = 300)",
        f"{BRANCHES} … harmful (marked) {share}; harmless {share}",
    )
    falls = np.stack([np.full(4, 0.5), AFTER])[:, None]
    facts = list(variance_facts(travel_of(BUDGET | variance(post=falls), counts), both))
    assert_each_says(facts, f"{GROWTH} … harmless {growth} (n = 300)", f"{BRANCHES} … harmless {share}")
    assert not any("harmful" in fact for fact in facts)


def test_bars_of_a_block_add_up_to_its_variance(tmp_path):
    travel = read_group(cached_run(tmp_path, {"travel": BUDGET}), "travel")
    figure = budget_figure(travel, -1, {**LABELS, "harmless": "harmless"})
    assert len(figure.data) == 10
    titles = [axis.title.text for axis in figure.select_yaxes()]
    assert titles == ["share, harmful<br>(marked)", "share, harmless"]
    found = {trace.name: np.array(trace.y, dtype=float) for trace in figure.data[:5]}
    np.testing.assert_allclose(found["variance of attention's step"], 1 / AFTER)
    np.testing.assert_allclose(found["twice the MLP's covariance with the stream"][3], 2 / 11)
