"""Check pages of tables, and rows that pass conditions in an order, against pandas."""

import threading

import numpy as np
import pandas as pd
import pytest
from support.each import each
from support.finished_runs import finished_run

from theodolite.errors import SpecError, TableNotFoundError
from theodolite.query import tables
from theodolite.query.tables import Condition, Selection, column_kind, parse_condition, selected_rows, table_page
from theodolite.store.result_reader import read_passing_rows, read_table_types, table_bytes
from theodolite.store.result_writer import write_groups
from theodolite.store.tables import append_table, encode_table

LONG_S = "\N{LATIN SMALL LETTER LONG S}"  # case folding turns it into s
TOKENS = ["King", "king", "kin", "queen", "", LONG_S, None, "7", " king", "zebra"]
ROWS = pd.DataFrame(
    {
        "layer": np.arange(50) // 10,
        "head": np.arange(50) % 10,
        "token": [TOKENS[n % 10] for n in range(50)],
        "score": [np.nan if n % 9 == 0 else (n * 7) % 11 - 5.5 for n in range(50)],
        "at_limit": np.arange(50) % 3 == 0,
        "note": [None] * 40 + ["late"] * 10,  # a text that whole row groups lack
        "id": np.array([300, -7] * 25, dtype=np.int32),
    }
)
TYPES = ["int64", "int64", "str", "float64", "bool", "str", "int32"]


@pytest.fixture(scope="module")
def tabled(tmp_path_factory):
    """A run with a table of several row groups, and an empty table."""
    run = finished_run(tmp_path_factory.mktemp("store"), {"curves": {}})
    file = tmp_path_factory.mktemp("made") / "made.parquet"
    for start in range(0, 50, 20):
        append_table(file, ROWS[start : start + 20])
    write_groups(run, {}, {"made": file.read_bytes(), "empty": encode_table(ROWS[:0])}, {"curves": "digest"})
    return run


@pytest.fixture(params=[tables.MAX_COMPACT_ROWS, 10], ids=["compact", "large"])
def either_way(monkeypatch, request):
    """Select from the whole decoded table, and from one row group after the other."""
    monkeypatch.setattr(tables, "MAX_COMPACT_ROWS", request.param)


def selection(*conditions, order=""):
    return Selection(tuple(map(parse_condition, conditions)), order)


def values(frame):
    """Return the rows as lists, with None for missing values."""
    return frame.astype(object).where(frame.notna(), None).to_numpy().tolist()


def rows_of(page):
    return page.rows["layer"].mul(10).add(page.rows["head"]).tolist()  # the numbers of the rows in ROWS


@each("start, limit", [(0, 50), (0, 7), (15, 10), (19, 2), (39, 30), (49, 1), (10**12, 3)])
def test_a_page_may_span_several_row_groups(tabled, start, limit):
    page = table_page(tabled, "made", start, limit)
    assert (page.start, page.total) == (start, 50)
    assert values(page.rows) == values(ROWS[start : start + limit])


@each(
    "conditions, expected",
    [
        (["layer=2"], ROWS["layer"] == 2),
        (["layer = 2", "head!=7"], (ROWS["layer"] == 2) & (ROWS["head"] != 7)),
        (["layer>=1", "layer<3", "head>4"], ROWS["layer"].between(1, 2) & (ROWS["head"] > 4)),
        (["layer=99"], ROWS["layer"] == 99),
        (["layer=1.5"], ROWS["layer"] == 1.5),
        (["score<=-0.5"], ROWS["score"] <= -0.5),
        (["score!=1.5"], ROWS["score"] != 1.5),  # a missing number is not 1.5
        (["token=king"], ROWS["token"] == "king"),
        (["token!=king"], ROWS["token"] != "king"),  # a missing text is not king
        (["token~KIN"], ROWS["token"].str.lower().str.contains("kin", na=False)),
        (["token~S"], ROWS["token"] == LONG_S),
        (["token="], ROWS["token"] == ""),
        (['token=" king"'], ROWS["token"] == " king"),
        (['token~" "'], ROWS["token"] == " king"),
        (["at_limit=true"], ROWS["at_limit"]),
        (["at_limit != FALSE"], ROWS["at_limit"]),
        (["at_limit=false", "layer=1"], ~ROWS["at_limit"] & (ROWS["layer"] == 1)),
        (["note=late"], ROWS["note"] == "late"),
        (["note!=late", "id=300"], (ROWS["note"] != "late") & (ROWS["id"] == 300)),
        (["id<inf"], ROWS["id"] < np.inf),
        (["token~"], ROWS["token"].notna()),
        (["token~king", "score>0"], ROWS["token"].str.lower().str.contains("king", na=False) & (ROWS["score"] > 0)),
    ],
)
def test_the_rows_that_pass_all_conditions_are_selected(tabled, either_way, conditions, expected):
    wanted = ROWS[expected].reset_index(drop=True)
    page = table_page(tabled, "made", 0, 50, selection(*conditions))
    assert page.total == len(wanted)
    assert values(page.rows) == values(wanted)
    second = table_page(tabled, "made", 2, 3, selection(*conditions))
    assert (second.total, rows_of(second)) == (len(wanted), rows_of(page)[2:5])
    whole = selected_rows(tabled, "made", selection(*conditions))
    assert values(whole) == values(wanted)


@each("column", ["layer", "head", "token", "score", "at_limit", "note"])
@each("descending", [False, True])
def test_rows_are_ordered_by_a_column_with_missing_values_last(tabled, either_way, column, descending):
    page = table_page(tabled, "made", 0, 50, selection("layer>0", order="-" * descending + column))
    wanted = ROWS[ROWS["layer"] > 0].sort_values(column, ascending=not descending, kind="stable", na_position="last")
    assert rows_of(page) == wanted.index.tolist()
    pages = [table_page(tabled, "made", at, 7, selection("layer>0", order="-" * descending + column)) for at in (0, 7)]
    assert [row for one in pages for row in rows_of(one)] == wanted.index.tolist()[:14]


def test_an_empty_table_has_its_columns_and_no_rows(tabled, either_way):
    for one in (selection(), selection("layer=1", order="-score")):
        page = table_page(tabled, "empty", 0, 10, one)
        assert (page.total, len(page.rows), list(page.rows.columns)) == (0, 0, list(ROWS.columns))
        assert page.rows.dtypes.astype(str).tolist()[:4] == TYPES[:4]


@each("conditions", [[], ["layer=2"], ["layer=99"], ["note=none"]])
def test_the_types_of_columns_do_not_depend_on_the_selection(tabled, either_way, conditions):
    types, total = read_table_types(tabled, "made")
    assert ([str(kind) for kind in types.values()], total) == (TYPES, 50)
    for start in (0, 45, 99):
        page = table_page(tabled, "made", start, 10, selection(*conditions))
        assert page.rows.dtypes.astype(str).tolist() == TYPES
    kinds = [column_kind(kind) for kind in page.rows.dtypes]
    assert kinds == ["number", "number", "text", "number", "boolean", "text", "number"]


def test_a_large_table_is_decoded_by_row_group_for_one_request_at_a_time(tabled, monkeypatch):
    monkeypatch.setattr(tables, "MAX_COMPACT_ROWS", 10)
    tested, alone = [], []

    def read(run, name, columns, passes):
        def test(frame):
            alone.append(not tables._SELECTING.acquire(blocking=False))
            tested.append((list(frame.columns), len(frame)))
            return passes(frame)

        return read_passing_rows(run, name, columns, test)

    monkeypatch.setattr(tables, "read_passing_rows", read)
    monkeypatch.setattr(tables, "read_compact_table", None)
    chosen = selection("layer=4", order="-score")
    threads = [threading.Thread(target=selected_rows, args=(tabled, "made", chosen)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tested == [(["layer"], 20), (["layer"], 20), (["layer"], 10)] * 4
    assert all(alone)
    rows = selected_rows(tabled, "made", chosen)
    assert (len(rows), str(rows["layer"].dtype), str(rows["token"].dtype)) == (10, "int8", "category")


@each(
    "text, condition",
    [
        ("layer=3", Condition("layer", "=", "3")),
        (" token ~ two words", Condition("token", "~", "two words")),
        ("token=the ", Condition("token", "=", "the ")),
        ('token=" the"', Condition("token", "=", " the")),
        ('token ~ " the " ', Condition("token", "~", " the ")),
        ('token=""', Condition("token", "=", "")),
        ('token="', Condition("token", "=", '"')),
        ('token=""""', Condition("token", "=", '"')),
        ('token="a "" & b"', Condition("token", "=", 'a " & b')),
        ('token="a" b', Condition("token", "=", '"a" b')),
        ('layer="3"', Condition("layer", "=", "3")),
        ("token~=x", Condition("token", "~", "=x")),
        ("token=a=b", Condition("token", "=", "a=b")),
        ("score<=-1e3", Condition("score", "<=", "-1e3")),
        ("token!=", Condition("token", "!=", "")),
        ("token~\n", Condition("token", "~", "")),
    ],
)
def test_a_condition_has_a_column_an_operator_and_a_value(text, condition):
    assert parse_condition(text) == condition


@each("text", ["", "layer", "=3", "3", "a b=3", "layer in 3"])
def test_a_text_that_is_no_condition_is_refused(text):
    with pytest.raises(SpecError, match="is not a condition; write COLUMN OPERATOR VALUE"):
        parse_condition(text)


@each(
    "conditions, order, message",
    [
        (["site=x"], "", "site: the table made has no such column; it has layer, head, token, score, at_limit"),
        ([], "-site", "site: the table made has no such column"),
        ([], "--layer", "-layer: the table made has no such column"),
        (["layer~1"], "", "layer contains numbers; its operators are = != < <= > >="),
        (["layer=one"], "", "layer contains numbers, and 'one' is none; write for example layer=3"),
        (["layer=1_0"], "", "layer contains numbers, and '1_0' is none"),
        (["score=nan"], "", "score contains numbers, and 'nan' is none"),
        (["score!=-NaN"], "", "score contains numbers, and '-NaN' is none"),
        (["layer="], "", "layer contains numbers, and '' is none"),
        (["token<king"], "", "token contains texts; its operators are = != ~"),
        (["at_limit>true"], "", "at_limit contains booleans; its operators are = !="),
        (["at_limit=1"], "", "at_limit contains booleans, and '1' is none; write for example at_limit=true"),
        ([], "-", "order: given '-'; allowed: a column, or a column after -; write for example -layer"),
    ],
)
def test_a_selection_that_does_not_fit_the_table_is_refused(tabled, conditions, order, message):
    for read in (selected_rows, lambda *chosen: table_page(chosen[0], chosen[1], 0, 1, chosen[2])):
        with pytest.raises(SpecError, match=message):
            read(tabled, "made", selection(*conditions, order=order))


@each("name", ["nobody", "../run", "", "made.parquet", "tables/made"])
def test_the_error_for_an_unknown_table_lists_the_existing_ones(tabled, name):
    with pytest.raises(TableNotFoundError, match=r"it has .*made"):
        table_page(tabled, name, 0, 1)
    with pytest.raises(TableNotFoundError, match=r"it has .*made"):
        table_page(tabled, name, 0, 1, selection("layer=1"))
    with pytest.raises(TableNotFoundError):
        table_bytes(tabled, name)
