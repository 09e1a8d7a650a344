"""Flat tables of a finished run, a page of rows at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from theodolite.errors import SpecError, TableNotFoundError
from theodolite.store.complete import finished_tables
from theodolite.store.objects import get
from theodolite.store.runs import Run
from theodolite.store.tables import read_rows, read_table, table_key

Filter = tuple[str, str, Any]
"""Column, operator, value."""


@dataclass(frozen=True)
class Page:
    """Some rows of a table: from `start` on, of `total` that pass the filters."""

    rows: pd.DataFrame
    start: int
    total: int


def table_page(run: Run, name: str, start: int, limit: int, filters: Sequence[Filter] = ()) -> Page:
    """Return at most `limit` rows of a table, from the one at `start` of those that pass all filters.

    Raises:
        TableNotFoundError: the run has no such table; the message names those that it has.
        SpecError: a filter names a column that the table lacks.
        RunDamagedError: the table cannot be read.
    """
    _check_table(run, name)
    if not filters:
        rows, total = read_rows(run.location, table_key(name), start, start + limit)
        return Page(rows, start, total)
    columns = read_rows(run.location, table_key(name), 0, 0)[0].columns.tolist()
    for column, _, _ in filters:
        if column not in columns:
            raise SpecError(f"{column}: the table {name} has no such column; it has {', '.join(columns)}")
    passed = read_table(run.location, table_key(name), filters)
    return Page(passed.iloc[start : start + limit], start, len(passed))


def table_bytes(run: Run, name: str) -> bytes:
    """Return a whole table as it is stored, Parquet; raises TableNotFoundError where the run has none of that name."""
    _check_table(run, name)
    return get(run.location, table_key(name)) or b""


def _check_table(run: Run, name: str) -> None:
    there = finished_tables(run)
    if name not in there:
        raise TableNotFoundError(f"{run.id} has no table {name!r}; it has {', '.join(there) or 'none'}")
