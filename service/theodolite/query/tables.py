"""Read the flat tables of a finished run: whole, or the rows that pass conditions, in an order, by page."""

import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from theodolite.errors import SpecError
from theodolite.store.result_reader import read_compact_table, read_matching_groups, read_table_rows
from theodolite.store.runs import Run
from theodolite.store.tables import compact, joined, plain

_OF_NUMBERS = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
"""The operators of columns of numbers, with the pandas method of each."""

_OF_TEXTS = ("=", "!=", "~")
"""The operators of columns of texts; `~` means that the text contains the value, ignoring case."""

_KINDS = {"i": "number", "u": "number", "f": "number", "b": "boolean"}
"""The kind of a column by the kind of its NumPy type; all others are texts."""

MAX_COMPACT_ROWS = 2_000_000
"""Maximum number of rows of a table that is decoded whole and cached: 30 to 40 MB, and 280 MB while it is decoded.

Of a larger table, one row group after the other is decoded for each request.
"""

_LARGE = threading.Lock()
"""Held while the rows of a large table are selected: several at once would need several times the memory."""

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?|[+-]?inf", re.IGNORECASE)
_TRUTHS = {"true": 1.0, "false": 0.0}
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
    """Return the condition in a text such as `layer = 3` or `token ~ king`; raises SpecError if it is none.

    Spaces around the value do not count, unless it stands between quotation marks: `token = " king"`.
    """
    match = _CONDITION.fullmatch(text.strip())
    if match is None:
        raise SpecError(
            f"where: {text!r} is not a condition; write COLUMN OPERATOR VALUE with one of the operators "
            f"{' '.join(_OF_NUMBERS)} ~, for example layer=3"
        )
    value = match["value"].strip()
    is_quoted = len(value) > 1 and value[0] == value[-1] == '"'
    return Condition(match["column"], match["operator"], value[1:-1] if is_quoted else value)


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
    selected, frame, stored = _selected(run, name, selection)
    rows = frame.iloc[selected[start : start + limit]].reset_index(drop=True)
    return Page(plain(rows).astype(stored), start, len(selected))


def selected_rows(run: Run, name: str, selection: Selection) -> pd.DataFrame:
    """Return all rows of a selection, with texts as categories; raises as `table_page` does."""
    selected, frame, stored = _selected(run, name, selection)
    numbers = {column: dtype for column, dtype in stored.items() if kind_of(dtype) != "text"}
    return frame.iloc[selected].reset_index(drop=True).astype(numbers)


def kind_of(dtype: Any) -> str:
    """Return the kind of a column: number, boolean or text."""
    return _KINDS.get(dtype.kind, "text")


def _selected(run: Run, name: str, selection: Selection) -> tuple[np.ndarray, pd.DataFrame, dict[str, Any]]:
    """Return the indices of the selected rows of a compact frame, the frame, and the stored type of each column."""
    empty, total = read_table_rows(run, name, 0, 0)
    columns, types = empty.columns.tolist(), {str(column): dtype for column, dtype in empty.dtypes.items()}
    ordered = selection.order.removeprefix("-")
    if selection.order and not ordered:
        raise SpecError(f"order: given {selection.order!r}; write a column, or a column after -, for example -score")
    for column in [*(one.column for one in selection.conditions), *([ordered] if selection.order else [])]:
        if column not in columns:
            raise SpecError(f"{column}: the table {name} has no such column; it has {', '.join(columns)}")
    checked = [(one, _value(one, kind_of(types[one.column]))) for one in selection.conditions]
    if total <= MAX_COMPACT_ROWS:
        frame = read_compact_table(run, name)
        selected = np.flatnonzero(_passing(frame, checked))
    else:
        frame = _passing_rows(run, name, checked, empty)
        selected = np.arange(len(frame))
    if selection.order:
        selected = selected[_ranking(frame[ordered].iloc[selected], descending=selection.order.startswith("-"))]
    return selected, frame, types


def _passing(frame: pd.DataFrame, checked: Sequence[tuple[Condition, float | str]]) -> np.ndarray:
    """Return for each row whether it passes all conditions."""
    passing = np.ones(len(frame), dtype=bool)
    for one, value in checked:
        passing &= _passes(frame[one.column], one.operator, value)
    return passing


def _passing_rows(
    run: Run, name: str, checked: Sequence[tuple[Condition, float | str]], empty: pd.DataFrame
) -> pd.DataFrame:
    """Return the rows of a large table that pass all conditions, as a compact table; `empty` has its columns."""
    # fastparquet would drop missing values for `!=`.
    usable = [(one, value) for one, value in checked if isinstance(value, float) and one.operator != "!="]
    filters = [(one.column, "==" if one.operator == "=" else one.operator, value) for one, value in usable]
    with _LARGE:
        groups = map(compact, read_matching_groups(run, name, filters))
        return joined([compact(empty), *(group[_passing(group, checked)] for group in groups)])


def _value(condition: Condition, kind: str) -> float | str:
    """Return the value with which a column of a kind is compared; raises SpecError if the condition does not fit."""
    allowed, value = _OF_TEXTS if kind == "text" else tuple(_OF_NUMBERS), condition.value
    about = f"where: {condition}: {condition.column} contains {kind}s"
    if condition.operator not in allowed:
        raise SpecError(f"{about}; its operators are {' '.join(allowed)}")
    if kind == "text":
        return value
    if kind == "boolean" and value.casefold() in _TRUTHS:
        return _TRUTHS[value.casefold()]
    if not _NUMBER.fullmatch(value):
        example = f"{condition.column}{condition.operator}{'true' if kind == 'boolean' else 3}"
        raise SpecError(f"{about}, and {value!r} is none; write for example {example}")
    return float(value)


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
    # Code −1 is a missing value, which passes only `!=`.
    return np.append(np.asarray(wanted, dtype=bool), operator == "!=")[texts.cat.codes.to_numpy()]


def _ranking(column: "pd.Series[Any]", *, descending: bool) -> np.ndarray:
    """Return the positions of the rows in the order of a column; rows with equal values keep their order."""
    if column.dtype.kind not in "iufb":
        texts = column.astype("category")
        by_name = np.argsort(np.argsort(texts.cat.categories.astype(str).to_numpy(dtype=object)))
        column = pd.Series(np.append(by_name, -1)[texts.cat.codes.to_numpy()]).where(texts.notna().to_numpy())
    values = column.to_numpy(dtype=np.float64)
    return np.argsort(-values if descending else values, kind="stable")  # NaN is last in both orders
