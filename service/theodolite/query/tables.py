"""Read the flat tables of a finished run: whole, or the rows that pass conditions, in an order, by page."""

import math
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from pandas.api.types import is_bool_dtype, is_numeric_dtype

from theodolite.errors import SpecError
from theodolite.store.result_reader import read_compact_table, read_passing_rows, read_table_rows, read_table_types
from theodolite.store.runs import Run

_OF_NUMBERS = {"=": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}
"""The operators of columns of numbers, with the pandas method of each."""

_OPERATORS = {"number": tuple(_OF_NUMBERS), "boolean": ("=", "!="), "text": ("=", "!=", "~")}
"""The operators of each kind of column; `~` means that the text contains the value, ignoring case."""

_EXAMPLES = {"number": "3", "boolean": "true"}

_BOOLEANS = {"true": True, "false": False}

MAX_COMPACT_ROWS = 2_000_000
"""Maximum number of rows of a table that is decoded whole, and cached, before its rows are selected.

With texts as categories, 2 million rows of tokens take 40 MB; reading them takes at most 160 MB for a second or two.
"""

_SELECTING = threading.Lock()
"""Held while a request selects rows of a larger table, so that only one at a time takes the memory for this."""

_CONDITION = re.compile(
    r"(?P<column>\w+)\s*(?P<operator>!=|<=|>=|=|<|>|~)\s*"
    r'(?:"(?P<quoted>(?:[^"]|"")*)"\s*|(?P<value>.*))',
    re.DOTALL,
)


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
    """Return the condition in a text such as `layer = 3`, `token~king` or `token=" king"`.

    Spaces around the operator do not count. A value that begins with a space is in double quotes; inside them, `""` is
    one double quote. Raises SpecError if the text is no condition.
    """
    match = _CONDITION.fullmatch(text.lstrip())
    if match is None:
        raise SpecError(
            f"where: {text!r} is not a condition; write COLUMN OPERATOR VALUE with one of the operators "
            f"{' '.join(_OF_NUMBERS)} ~, for example layer=3"
        )
    value = match["value"] if match["quoted"] is None else match["quoted"].replace('""', '"')
    return Condition(match["column"], match["operator"], value)


def column_kind(dtype: Any) -> str:
    """Return the kind of a column by its dtype: number, boolean or text."""
    return "boolean" if is_bool_dtype(dtype) else "number" if is_numeric_dtype(dtype) else "text"


def table_page(run: Run, name: str, start: int, limit: int, selection: Selection | None = None) -> Page:
    """Return at most `limit` rows of a selection from row `start` on; without a selection, of the whole table.

    The columns have the types of `read_table_types`.

    Raises:
        TableNotFoundError: the run has no such table; the message names those that it has.
        SpecError: a condition or the order names a column that the table lacks, or a condition does not fit its column.
        RunDamagedError: the table cannot be read.
    """
    if selection is None or selection == Selection():
        rows, total = read_table_rows(run, name, start, start + limit)
        return Page(rows, start, total)
    with _selected(run, name, selection) as (selected, frame):
        rows, total = frame.iloc[selected[start : start + limit]].reset_index(drop=True), len(selected)
    return Page(rows.astype(read_table_types(run, name)[0]), start, total)


def selected_rows(run: Run, name: str, selection: Selection) -> pd.DataFrame:
    """Return all rows of a selection, with compact types; raises as `table_page` does."""
    with _selected(run, name, selection) as (selected, frame):
        return frame.iloc[selected].reset_index(drop=True)


@contextmanager
def _selected(run: Run, name: str, selection: Selection) -> Iterator[tuple[np.ndarray, pd.DataFrame]]:
    """Yield the indices of the selected rows of a frame, and the frame."""
    types, total = read_table_types(run, name)
    checked = _checked(name, types, selection)

    def passes(frame: pd.DataFrame) -> np.ndarray:
        passing = np.ones(len(frame), dtype=bool)
        for one, value in checked:
            passing &= _passes(frame[one.column], one.operator, value)
        return passing

    is_large = total > MAX_COMPACT_ROWS
    with _SELECTING if is_large else nullcontext():
        if is_large:
            columns = list({one.column for one in selection.conditions})
            frame = read_passing_rows(run, name, columns, passes if checked else None)
            selected = np.arange(len(frame))
        else:
            frame = read_compact_table(run, name)
            selected = np.flatnonzero(passes(frame))
        if selection.order:
            column = frame[selection.order.removeprefix("-")].iloc[selected]
            selected = selected[_ranking(column, descending=selection.order.startswith("-"))]
        yield selected, frame


def _checked(name: str, types: Mapping[str, Any], selection: Selection) -> list[tuple[Condition, float | bool | str]]:
    """Return the conditions with their values; raises SpecError if the selection does not fit the table."""
    ordered = selection.order.removeprefix("-")
    if selection.order and not ordered:
        example = f"-{next(iter(types))}"
        raise SpecError(f"order: given '-'; allowed: a column, or a column after -; write for example {example}")
    for column in [*(one.column for one in selection.conditions), *([ordered] if selection.order else [])]:
        if column not in types:
            raise SpecError(f"{column}: the table {name} has no such column; it has {', '.join(types)}")
    return [(one, _value(one, column_kind(types[one.column]))) for one in selection.conditions]


def _value(condition: Condition, kind: str) -> float | bool | str:
    """Return the value with which a column is compared; raises SpecError if the condition does not fit the column."""
    about = f"where: {condition}: {condition.column} contains {kind}s"
    if condition.operator not in _OPERATORS[kind]:
        raise SpecError(f"{about}; its operators are {' '.join(_OPERATORS[kind])}")
    value = condition.value if kind == "text" else _parsed(condition.value.strip(), kind)
    if value is None:
        example = f"{condition.column}{condition.operator}{_EXAMPLES[kind]}"
        raise SpecError(f"{about}, and {condition.value!r} is none; write for example {example}")
    return value


def _parsed(text: str, kind: str) -> float | bool | None:
    """Return a number or a boolean; None if the text is none."""
    if kind == "boolean":
        return _BOOLEANS.get(text.lower())
    try:
        number = float(text)
    except ValueError:
        return None
    # float() reads 1_0 as 10; no value equals NaN.
    return None if "_" in text or math.isnan(number) else number


def _passes(column: "pd.Series[Any]", operator: str, value: float | bool | str) -> np.ndarray:
    """Return for each row whether it passes a condition; the values of a column of texts are compared once each."""
    if not isinstance(value, str):
        return np.asarray(getattr(column, _OF_NUMBERS[operator])(value))
    texts = column.astype("category")
    categories = texts.cat.categories.astype(str)
    if operator == "~":
        wanted = categories.str.casefold().str.contains(value.casefold(), regex=False)
    else:
        wanted = (categories == value) == (operator == "=")
    # Code −1 is a missing value; of the operators, only != selects it.
    return np.append(np.asarray(wanted, dtype=bool), operator == "!=")[texts.cat.codes.to_numpy()]


def _ranking(column: "pd.Series[Any]", *, descending: bool) -> np.ndarray:
    """Return the positions of the rows in the order of a column; rows with equal values keep their order."""
    if column.dtype.kind not in "iufb":
        texts = column.astype("category")
        by_name = np.argsort(np.argsort(texts.cat.categories.astype(str).to_numpy(dtype=object)))
        column = pd.Series(np.append(by_name, -1)[texts.cat.codes.to_numpy()]).where(texts.notna().to_numpy())
    values = column.to_numpy(dtype=np.float64)
    return np.argsort(-values if descending else values, kind="stable")  # NaN is last in both orders
