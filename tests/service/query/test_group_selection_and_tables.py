"""Any result group, a direction, and pages of tables."""

import numpy as np
import pandas as pd
import pytest
from support.finished_runs import finished_run

from theodolite.errors import ResultsNotFoundError, SpecError, TableNotFoundError
from theodolite.query.group_selection import label_list, select_direction, select_group
from theodolite.query.tables import table_page
from theodolite.store.result_reader import read_group, table_bytes
from theodolite.store.result_writer import write_groups
from theodolite.store.tables import append_table, encode_table

UNIT = np.eye(8)[3]


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return finished_run(
        tmp_path_factory.mktemp("store"),
        {"curves": {}, "directions": {"direction": UNIT}, "separation": {"auroc": [[0.1], [0.2]]}, "moments": {}},
        positions=[-2, -1],
    )


def test_a_whole_group_is_what_is_stored(run):
    assert select_group(run, "separation").identical(read_group(run, "separation"))


def test_statistics_and_labels_narrow_it(run):
    found = select_group(run, "separation", ["auroc"], {"site": ["resid_mid"], "layer": [3, 0], "position": []})
    assert list(found.data_vars) == ["auroc"]
    assert dict(found.sizes) == {"contrast": 1, "site": 1, "position": 2, "layer": 2}
    assert found["layer"].values.tolist() == [3, 0]
    assert set(found["auroc"].values.ravel()) == {0.1, 0.2} or found["auroc"].notnull().all()


def test_what_is_kept_is_not_changed_by_narrowing(run):
    before = read_group(run, "separation").copy(deep=True)
    select_group(run, "separation", ["auroc"], {"layer": [0]})
    assert read_group(run, "separation").identical(before)


@pytest.mark.parametrize(
    ("name", "statistics", "only", "message"),
    [
        ("separation", ["nobody"], {}, "statistic: separation has no 'nobody'; it has: .*auroc"),
        (
            "separation",
            [],
            {"set": ["harmful"]},
            "set: separation has no such dimension; leave it out. It has: ",
        ),
        ("separation", [], {"nobody": ["x"]}, "nobody: separation has no such dimension"),
        ("separation", ["n_positive"], {"layer": [0]}, "layer: separation has no such dimension"),
        ("separation", [], {"layer": [0, 4]}, "layer: tiny-0 has no 4; it has 0 to 3"),
        ("separation", [], {"layer": ["0"]}, "layer: tiny-0 has no '0'; it has 0 to 3"),
        ("separation", [], {"position": [0]}, "position: tiny-0 has no 0; it has -2, -1"),
        ("separation", [], {"contrast": ["x"]}, "contrast: tiny-0 has no 'x'; it has refusal"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(run, name, statistics, only, message):
    with pytest.raises(SpecError, match=message):
        select_group(run, name, statistics, only)


def test_a_group_that_is_not_finished_is_named(run):
    with pytest.raises(ResultsNotFoundError, match=r"no finished results 'gram'; it has .*moments"):
        select_group(run, "gram")


def test_the_bound_counts_every_number_and_lets_exactly_as_many_through(run):
    size = sum(variable.size for variable in read_group(run, "separation").data_vars.values())
    assert select_group(run, "separation", max_numbers=size)
    with pytest.raises(SpecError, match=f"would have {size} numbers, and {size - 1} are allowed; narrow"):
        select_group(run, "separation", max_numbers=size - 1)
    assert select_group(run, "separation", ["auroc"], max_numbers=size - 1)


def test_a_direction_is_read_at_the_last_position_unless_told(run):
    assert select_direction(run, "refusal", "resid_pre", 0).values.tolist() == UNIT.tolist()
    assert int(select_direction(run, "refusal", "resid_pre", 0)["position"]) == -1
    assert int(select_direction(run, "refusal", "resid_pre", 0, -2)["position"]) == -2


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("x", "resid_pre", 0, None), "contrast: tiny-0 has no 'x'; it has refusal"),
        (("refusal", "resid_final", 0, None), "site: tiny-0 has no 'resid_final'; it has resid_pre, resid_mid"),
        (("refusal", "resid_pre", 4, None), "layer: tiny-0 has no 4; it has 0 to 3"),
        (("refusal", "resid_pre", -1, None), "layer: tiny-0 has no -1; it has 0 to 3"),
        (("refusal", "resid_pre", 0, -3), "position: tiny-0 has no -3; it has -2, -1"),
    ],
)
def test_a_direction_that_is_not_there_says_which_are(run, asked, message):
    with pytest.raises(SpecError, match=message):
        select_direction(run, *asked)


def test_equal_means_have_no_direction(tmp_path):
    run = finished_run(tmp_path, {"curves": {}, "directions": {}})
    with pytest.raises(SpecError, match="refusal has no direction at resid_mid of layer 2, position -1: the means"):
        select_direction(run, "refusal", "resid_mid", 2)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        ([], "none"),
        ([3], "3"),
        ([3, 4], "3, 4"),
        ([3, 4, 5], "3 to 5"),
        ([3, 5, 6], "3, 5, 6"),
        ([-3, -2, -1], "-3 to -1"),
        (["a", "b", "c"], "a, b, c"),
    ],
)
def test_labels_in_words(labels, words):
    assert label_list(labels) == words


ROWS = pd.DataFrame({"layer": np.arange(50) // 10, "head": np.arange(50) % 10, "token": [f"t{n}" for n in range(50)]})


@pytest.fixture(scope="module")
def tabled(tmp_path_factory, run):
    """A run with a table that lies in several groups of rows, and an empty one."""
    file = tmp_path_factory.mktemp("made") / "made.parquet"
    for start in range(0, 50, 20):
        append_table(file, ROWS[start : start + 20])
    made = file.read_bytes()
    write_groups(run, {}, {"made": made, "empty": encode_table(ROWS[:0])}, {"curves": "digest"})
    return run


@pytest.mark.parametrize(("start", "limit"), [(0, 50), (0, 7), (15, 10), (19, 2), (39, 30), (49, 1), (10**12, 3)])
def test_a_page_is_those_rows_whichever_groups_of_rows_they_are_in(tabled, start, limit):
    page = table_page(tabled, "made", start, limit)
    assert (page.start, page.total) == (start, 50)
    pd.testing.assert_frame_equal(
        page.rows.reset_index(drop=True), ROWS[start : start + limit].reset_index(drop=True), check_dtype=False
    )


def test_pages_with_filters_count_what_passes(tabled):
    page = table_page(tabled, "made", 4, 3, [("layer", "==", 2)])
    assert (page.total, page.rows["head"].tolist()) == (10, [4, 5, 6])
    both = table_page(tabled, "made", 0, 10, [("layer", "==", 2), ("head", "==", 7)])
    assert (both.total, both.rows["token"].tolist()) == (1, ["t27"])
    none = table_page(tabled, "made", 0, 10, [("layer", "==", 99)])
    assert (none.total, len(none.rows)) == (0, 0)


def test_an_empty_table_has_its_columns_and_no_rows(tabled):
    page = table_page(tabled, "empty", 0, 10)
    assert (page.total, len(page.rows), list(page.rows.columns)) == (0, 0, list(ROWS.columns))


def test_a_wrong_column_or_table_names_those_that_are_there(tabled):
    with pytest.raises(SpecError, match="site: the table made has no such column; it has layer, head, token"):
        table_page(tabled, "made", 0, 1, [("site", "==", "x")])
    for name in ("nobody", "../run", "", "made.parquet", "tables/made"):
        with pytest.raises(TableNotFoundError, match=r"it has .*made"):
            table_page(tabled, name, 0, 1)
        with pytest.raises(TableNotFoundError):
            table_bytes(tabled, name)
