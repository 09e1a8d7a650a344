"""Read the flat tables of a finished run, whole or by page."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from theodolite.errors import SpecError
from theodolite.store.result_reader import read_finished_table, read_table_rows
from theodolite.store.runs import Run

Filter = tuple[str, str, Any]
"""Column, operator, value."""

MAX_ROWS = 250_000
"""Maximum number of rows of a table that is decoded at once: about 50 MB."""


@dataclass(frozen=True)
class Page:
    """The rows of a table from `start` on, out of `total` that pass the filters."""

    rows: pd.DataFrame
    start: int
    total: int


def table_page(run: Run, name: str, start: int, limit: int, filters: Sequence[Filter] = ()) -> Page:
    """Return at most `limit` rows of a table from row `start` on; both count only the rows that pass all filters.

    Raises:
        TableNotFoundError: the run has no such table; the message names those that it has.
        SpecError: a filter names a column that the table lacks.
        RunDamagedError: the table cannot be read.
    """
    if not filters:
        rows, total = read_table_rows(run, name, start, start + limit)
        return Page(rows, start, total)
    columns = read_table_rows(run, name, 0, 0)[0].columns.tolist()
    for column, _, _ in filters:
        if column not in columns:
            raise SpecError(f"{column}: the table {name} has no such column; it has {', '.join(columns)}")
    passed = read_finished_table(run, name, filters)
    return Page(passed.iloc[start : start + limit], start, len(passed))


def whole_table(run: Run, name: str) -> pd.DataFrame:
    """Return all rows of a table; raises SpecError for more than MAX_ROWS, and as `table_page` does."""
    total = table_page(run, name, 0, 0).total
    if total > MAX_ROWS:
        raise SpecError(f"{name}: has {total} rows, and at most {MAX_ROWS} are decoded at once; use Parquet or `limit`")
    return read_finished_table(run, name)
