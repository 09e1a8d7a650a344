"""Read the flat tables of a finished run: whole, or the rows that pass conditions, in an order, by page."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from theodolite.errors import SpecError
from theodolite.store.result_reader import read_compact_table, read_finished_table, read_table_rows
from theodolite.store.runs import Run
from theodolite.store.tables import plain

_OF_NUMBERS = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
"""The operators of columns of numbers, with the pandas method of each."""

_OF_TEXTS = ("=", "!=", "~")
"""The operators of columns of texts; `~` means that the text contains the value, ignoring case."""

MAX_COMPACT_ROWS = 2_000_000
"""Maximum number of rows of a table that is decoded whole before its rows are selected: about 100 MB."""

_CONDITION = re.compile(r"(?P<column>\w+)\s*(?P<operator>!=|<=|>=|=|<|>|~)\s*(?P<value>.*)", re.DOTALL)


@dataclass(frozen=True)
class Condition:
    """A condition on the values of one column; the operator is one of = != < <= > >= ~."""

    column: str
    operator: str
    value: str

    def __str__(self) -> str:
        return f"{self.column}{self.operator}{self.value}"


@dataclass(frozen=True)
class Selection:
    """The rows of a table that pass all conditions, in an order.

    Attributes:
        conditions: the conditions.
        order: a column, in ascending order, or a column after `-`, in descending order; empty keeps the stored order.
            Missing values are last.
    """

    conditions: tuple[Condition, ...] = ()
    order: str = ""


@dataclass(frozen=True)
class Page:
    """The rows of a table from `start` on, out of `total` that pass the conditions."""

    rows: pd.DataFrame
    start: int
    total: int


def parse_condition(text: str) -> Condition:
    """Return the condition in a text such as `layer = 3` or `token ~ king`; raises SpecError if it is none."""
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise SpecError(
            f"where: {text!r} is not a condition; write COLUMN OPERATOR VALUE with one of the operators "
            f"{' '.join(_OF_NUMBERS)} ~, for example layer=3"
        )
    return Condition(match["column"], match["operator"], match["value"].strip())


def table_page(run: Run, name: str, start: int, limit: int, selection: Selection | None = None) -> Page:
    """Return at most `limit` rows of a selection from row `start` on; without a selection, of the whole table.

    Raises:
        TableNotFoundError: the run has no such table; the message names those that it has.
        SpecError: a condition or the order names a column that the table lacks, or compares a number with a text.
        RunDamagedError: the table cannot be read.
    """
    if selection is None or selection == Selection():
        rows, total = read_table_rows(run, name, start, start + limit)
        return Page(rows, start, total)
    selected, frame = _selected(run, name, selection)
    rows = frame.iloc[selected[start : start + limit]].reset_index(drop=True)
    return Page(plain(rows), start, len(selected))


def selected_rows(run: Run, name: str, selection: Selection) -> pd.DataFrame:
    """Return all rows of a selection, with compact types; raises as `table_page` does."""
    selected, frame = _selected(run, name, selection)
    return frame.iloc[selected].reset_index(drop=True)


def _selected(run: Run, name: str, selection: Selection) -> tuple[np.ndarray, pd.DataFrame]:
    """Return the indices of the selected rows of a frame, and the frame."""
    empty, total = read_table_rows(run, name, 0, 0)
    columns = empty.columns.tolist()
    ordered = selection.order.removeprefix("-")
    for column in [*(one.column for one in selection.conditions), *([ordered] if selection.order else [])]:
        if column not in columns:
            raise SpecError(f"{column}: the table {name} has no such column; it has {', '.join(columns)}")
    numeric = {column for column in columns if empty[column].dtype.kind in "iufb"}
    checked = [(one, _value(one, is_number=one.column in numeric)) for one in selection.conditions]
    frame = read_compact_table(run, name) if total <= MAX_COMPACT_ROWS else _matching_groups(run, name, checked)
    passing = np.ones(len(frame), dtype=bool)
    for one, value in checked:
        passing &= _passes(frame[one.column], one.operator, value)
    selected = np.flatnonzero(passing)
    if selection.order:
        selected = selected[_ranking(frame[ordered].iloc[selected], descending=selection.order.startswith("-"))]
    return selected, frame


def _matching_groups(run: Run, name: str, checked: Sequence[tuple[Condition, float | str]]) -> pd.DataFrame:
    """Return the rows of the row groups that can pass the conditions on numbers."""
    # fastparquet would drop missing values for `!=`.
    usable = [(one, value) for one, value in checked if isinstance(value, float) and one.operator != "!="]
    filters = [(one.column, "==" if one.operator == "=" else one.operator, value) for one, value in usable]
    return read_finished_table(run, name, filters)


def _value(condition: Condition, *, is_number: bool) -> float | str:
    """Return the value with which a column is compared; raises SpecError if the condition does not fit the column."""
    kind, allowed = ("numbers", tuple(_OF_NUMBERS)) if is_number else ("texts", _OF_TEXTS)
    about = f"where: {condition}: {condition.column} contains {kind}"
    if condition.operator not in allowed:
        raise SpecError(f"{about}; its operators are {' '.join(allowed)}")
    try:
        return float(condition.value) if is_number else condition.value
    except ValueError:
        example = f"{condition.column}{condition.operator}3"
        raise SpecError(f"{about}, and {condition.value!r} is none; write for example {example}") from None


def _passes(column: "pd.Series[Any]", operator: str, value: float | str) -> np.ndarray:
    """Return for each row whether it passes a condition; the values of a column of texts are compared once each."""
    if isinstance(value, float):
        return np.asarray(getattr(column, _OF_NUMBERS[operator])(value))
    texts = column.astype("category")
    categories = texts.cat.categories.astype(str)
    if operator == "~":
        wanted = categories.str.casefold().str.contains(value.casefold(), regex=False)
    else:
        wanted = (categories == value) == (operator == "=")
    # Code −1 is a missing value, which passes only "is not".
    return np.append(np.asarray(wanted, dtype=bool), operator == "!=")[texts.cat.codes.to_numpy()]


def _ranking(column: "pd.Series[Any]", *, descending: bool) -> np.ndarray:
    """Return the positions of the rows in the order of a column; rows with equal values keep their order."""
    if column.dtype.kind not in "iufb":
        texts = column.astype("category")
        by_name = np.argsort(np.argsort(texts.cat.categories.astype(str).to_numpy(dtype=object)))
        column = pd.Series(np.append(by_name, -1)[texts.cat.codes.to_numpy()]).where(texts.notna().to_numpy())
    values = column.to_numpy(dtype=np.float64)
    return np.argsort(-values if descending else values, kind="stable")  # NaN is last in both orders
