"""Sentences and figures about steps: they state the numbers that are stored, and leave out what a run lacks."""

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import cached_run, merged
from support.sentences import assert_each_says, assert_says

from theodolite.groups.travel import sections as travel
from theodolite.groups.travel.figures import cosines_figure
from theodolite.groups.travel.record import VECTOR_PAIRS
from theodolite.groups.travel.sections_steps import STEP_NOTES, step_facts, step_tables
from theodolite.sections.parts import MISSING
from theodolite.store.result_reader import read_group

LABELS = {"harmful": "harmful (marked)"}
BOTH = {**LABELS, "harmless": "harmless"}
NAN = np.nan
FOLLOWING = {"successive_steps": np.array([0.1, 0.1, 0.4, NAN])}
OF_PAIRS = {
    "successive_steps": np.array([-0.3, 0.01, -0.4, NAN]),
    "block_step_and_input": 0.25,
    "attention_step_and_input": np.array([0.5, -0.2, 0.3, 0.0]),
    "mlp_step_and_input": np.array([NAN, 0.4, -0.1, -0.6]),
}
P_FAMILY = {
    "successive_steps": np.array([0.001, 0.9, 0.05, NAN]),
    "block_step_and_input": np.array([0.05, 0.051, 0.001, 0.2]),
    "attention_step_and_input": np.array([0.01, 0.02, 0.03, 0.001]),
    "mlp_step_and_input": np.array([NAN, 0.2, 0.3, 0.001]),
}


def stacked(by_label):
    """Return numbers by label of a vector pair as one array with the pairs as its last dimension; NaN for others."""
    return np.stack(np.broadcast_arrays(*(by_label.get(pair, NAN) for pair in VECTOR_PAIRS)), axis=-1)


def raw(**by_label):
    return {"step_cosine": {"mean": stacked(by_label)}}


def centred(**by_label):
    return {"step_cosine_centred": stacked(OF_PAIRS | by_label)}


def permuted(**by_label):
    return {"n_tested": 401, "step_cosine_centred_null": {"sd": 0.02, "p_family": stacked(P_FAMILY | by_label)}}


RAW, TESTS = raw(**FOLLOWING, block_step_and_input=-0.5), permuted()
CENTRED = centred() | {"step_common_share": np.array([0.6, 0.7, 0.9, 1.0])}
NEXT = "steps of successive blocks"
STREAM = "a block's step and its input"
ATTENTION = "attention's step and its input"
MLP = "the MLP's step and its input"
SHARE = "have in common"
PATH = "Path length divided by displacement"
ARC = "Sum over blocks"
WHOLE = np.array([1.0, NAN])  # the ratios before the last block are not known
RATIOS = {
    "path_ratio": {"mean": 3.2 * WHOLE, "std": 0.1, "at_right_angles": {"whole": 2.25}},
    "arc_ratio": {"mean": 2.5 * WHOLE, "std": 0.2, "at_right_angles": {"whole": 1.9}},
}


def of_sets(*values):
    """Return values of several sets as an array whose first dimension is the set."""
    stacked = np.stack([np.asarray(one, float) for one in values])
    return stacked[:, None] if stacked.ndim == 1 else stacked[:, None, :]


def sides(below, above, total):
    return f"significantly below 0 in {below} and above 0 in {above} of {total}"


@pytest.fixture
def travel_of(tmp_path):
    def read(values, n=401):
        run = cached_run(tmp_path, {"travel": {"n_samples": n, **values}})
        return read_group(run, "travel").sel(position=-1)

    return read


def cells(values, labels=LABELS):
    """Return the rows of the table of cosines without its first and second column."""
    (*_, table) = step_tables(values, labels)
    assert table.columns[:2] == ["cosine between", "set"]
    return [row[2:] for row in table.rows]


def test_cosines_of_deviations_are_counted_where_they_pass_the_test(travel_of):
    values = travel_of(RAW | CENTRED | TESTS)
    assert_each_says(
        step_facts(values, LABELS),
        f"{NEXT} … harmful (marked) -0.23 ({sides(2, 0, 3)}",
        f"{STREAM} … harmful (marked) 0.25 ({sides(0, 2, 4)}",
        f"{ATTENTION} … harmful (marked) 0.15 ({sides(1, 2, 4)}",  # a cosine of 0 is on no side
        f"{MLP} … harmful (marked) -0.10 ({sides(1, 0, 3)}",
        f"{SHARE} … harmful (marked) 80 % (60 % to 100 % … 4 blocks",
    )
    assert cells(values) == [
        ["401", "401", "-0.23", "-0.40", "0.01", "2", "0", "3", "0.20", "0.40"],
        ["401", "401", "0.25", "0.25", "0.25", "0", "2", "4", "-0.50", "-0.50"],
        ["401", "401", "0.15", "-0.20", "0.50", "1", "2", "4", MISSING, MISSING],
        ["401", "401", "-0.10", "-0.60", "0.40", "1", "0", "3", MISSING, MISSING],
    ]


def test_one_sentence_lists_all_sets(travel_of):
    values = {
        **RAW,
        **TESTS,
        "n_samples": of_sets(401, 300),
        "n_tested": of_sets(401, 300),
        "step_cosine_centred": {
            "successive_steps": of_sets([-0.3, 0.01, -0.4, NAN], [0.1, 0.2, 0.6, NAN]),
            "block_step_and_input": of_sets([NAN] * 4, [0.5] * 4),
        },
        "step_common_share": of_sets([0.6, 0.7, 0.9, 1.0], [0.1, 0.2, 0.3, 0.5]),
    }
    travel = travel_of(values)
    facts = list(step_facts(travel, BOTH))
    assert_each_says(
        facts,
        f"{NEXT} … harmful (marked) -0.23 ({sides(2, 0, 3)} … harmless 0.30 ({sides(0, 2, 3)}",
        f"{STREAM} … harmless 0.50 ({sides(0, 2, 4)}",
        f"{SHARE} … harmful (marked) 80 % (60 % to 100 % … 4 blocks … harmless 25 % (10 % to 50 % … 4 blocks",
    )
    assert "harmful" not in facts[1]
    assert [row[:2] for row in cells(travel, BOTH)] == [["401", "401"], ["300", "300"], ["300", "300"]]


def test_the_number_of_tested_prompts_is_in_the_table(travel_of):
    assert {tuple(row[:2]) for row in cells(travel_of(RAW | CENTRED | TESTS | {"n_tested": 256}))} == {("401", "256")}


def test_a_cosine_that_rounds_to_0_has_no_sign(travel_of):
    values = travel_of(raw(successive_steps=-0.001) | {"step_cosine_centred": {"successive_steps": -0.004}})
    (fact,) = step_facts(values, LABELS)
    assert_says(fact, f"{NEXT} … harmful (marked) 0.00")
    assert "significantly" not in fact
    assert cells(values) == [["401", MISSING, "0.00", "0.00", "0.00", MISSING, MISSING, "4", "0.00", "0.00"]]


def test_both_means_are_over_the_same_blocks(travel_of):
    """The first input may be the same in all prompts; it then has a cosine and no deviations."""
    change = raw(**FOLLOWING, block_step_and_input=np.array([1, 0, 0, 0]))
    change |= centred(block_step_and_input=np.array([NAN, 0.3, 0.3, -0.3]))
    change |= permuted(block_step_and_input=np.array([NAN, 0.01, 0.5, 0.01]))
    values = travel_of(CENTRED | change)
    _, stream, *_ = step_facts(values, LABELS)
    assert_says(stream, f"{STREAM} … harmful (marked) 0.10 ({sides(1, 1, 3)}")
    assert cells(values)[1] == ["401", "401", "0.10", "-0.30", "0.30", "1", "1", "3", "0.00", "0.00"]


def test_parallel_blocks_have_no_cosines_of_attention_and_the_mlp(travel_of):
    lacks = centred(attention_step_and_input=NAN, mlp_step_and_input=NAN)
    assert_each_says(step_facts(travel_of(RAW | CENTRED | TESTS | lacks), LABELS), NEXT, STREAM, SHARE)


def test_a_run_without_cosines_of_deviations_has_no_sentence_about_them(travel_of):
    assert list(step_facts(travel_of(RAW), LABELS)) == []
    assert list(step_tables(travel_of(RAW), LABELS)) == []


def paths(values, labels):
    """Return the rows of the table of paths."""
    table, *_ = step_tables(values, labels)
    return table.rows


def test_paths_and_arcs_are_compared_with_those_at_right_angles(travel_of):
    values = travel_of(RATIOS)
    assert_each_says(
        step_facts(values, {"harmless": "harmless"}),
        f"{PATH} … harmless 3.20 … right angles give 2.25",
        f"{ARC} … harmless 2.50 … right angles give 1.90",
    )
    assert paths(values, {"harmless": "harmless"}) == [
        ["path length / displacement", "harmless", "401", "3.20 ± 0.10", "2.25", *[MISSING] * 3],
        ["sum of angles / angle from first to last", "harmless", "401", "2.50 ± 0.20", "1.90", *[MISSING] * 3],
    ]


def test_a_set_of_one_prompt_has_no_spread_and_is_left_out(travel_of):
    change = {name: {**values, "std": NAN} for name, values in RATIOS.items()} | {"n_samples": of_sets(1, 401)}
    change["path_ratio"]["std"] = of_sets(NAN, 0.1)[..., None]
    values = travel_of(RATIOS | change)
    (fact,) = step_facts(values, BOTH)
    assert_says(fact, f"{PATH} … harmless 3.20 … right angles give 2.25")
    assert "harmful" not in fact
    assert [row[:3] for row in paths(values, BOTH)] == [["path length / displacement", "harmless", "401"]]


def test_paths_and_arcs_are_also_compared_without_the_last_block(travel_of):
    ratios = {
        "path_ratio": {"mean": [3.2, 2.85], "std": 0.1, "at_right_angles": [2.25, 4.05]},
        "arc_ratio": {"mean": [2.5, 2.4], "std": 0.2, "at_right_angles": [1.9, 2.5]},
    }
    values = travel_of(ratios)
    assert_each_says(
        step_facts(values, {"harmless": "harmless"}),
        f"{PATH} … harmless 3.20 … give 2.25 … Without … last block: harmless 2.85 … give 4.05",
        f"{ARC} … harmless 2.50 … give 1.90 … Without … last block: harmless 2.40 … give 2.50",
    )
    assert [row[4:7] for row in paths(values, BOTH)] == [["2.25", "2.85", "4.05"]] * 2 + [["1.90", "2.40", "2.50"]] * 2


def test_a_path_that_adds_up_beside_arcs_that_cancel_is_explained(travel_of):
    right = {
        "path_ratio": {"at_right_angles": {"whole": of_sets(3.8, 2.0)}},
        "arc_ratio": {"at_right_angles": {"whole": of_sets(1.9, 1.8)}},
    }
    *_, last = step_facts(travel_of(merged(RATIOS, right)), BOTH)
    assert_says(last, "lengths … harmful (marked) partly add up … angles … partly cancel")
    assert "harmless" not in last
    right = {"path_ratio": {"at_right_angles": 2.0}, "arc_ratio": {"at_right_angles": 2.8}}
    *_, last = step_facts(travel_of(merged(RATIOS, right)), LABELS)
    assert_says(last, "lengths … harmful (marked) partly cancel … angles … partly add up")


def test_the_table_of_paths_has_the_longest_step(travel_of):
    steps = {"step_norm": {"mean": np.array([1.0, 1.0, 1.0, 3.0])[:, None], "std": 0.0}}
    (row, _) = paths(travel_of(RATIOS | steps), LABELS)
    assert row[-1] == "block 3: 75 %"  # 9 of 12


def test_the_section_explains_tests_and_right_angles(tmp_path, monkeypatch):
    values = RAW | CENTRED | TESTS | RATIOS
    run = cached_run(tmp_path, {"curves": {}, "moments": {}, "travel": values})
    growth = pd.DataFrame(columns=["quantity", "set", "site", "position", "law"])
    monkeypatch.setattr(travel, "read_finished_table", lambda *_: growth)
    (section,) = travel.sections(run)
    assert set(STEP_NOTES) < set(section.notes)
    assert_says(section.facts[0], f"{PATH} … harmful 3.20 … right angles give 2.25 … harmless")
    assert [table.caption.partition(":")[0] for table in section.tables] == [
        "Paths",
        "Centred cosines over blocks or pairs of blocks",
    ]


def test_cosines_have_a_line_at_zero(tmp_path):
    group = read_group(cached_run(tmp_path, {"travel": RAW | CENTRED}), "travel")
    figure = cosines_figure(group, -1, {"harmful": "#000000"})
    zero = [trace for trace in figure.data if trace.name == "random directions: 0"]
    assert len(zero) == 2
    assert all(set(trace.y) == {0.0} for trace in zero)
    assert [axis.title.text for axis in figure.select_yaxes()] == [
        *("cosine", "cosine of deviations", "share of the mean step"),
    ]
