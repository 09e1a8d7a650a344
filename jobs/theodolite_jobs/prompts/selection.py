"""Select rows by the values of their columns."""

from typing import Any

from theodolite.errors import PromptError
from theodolite_jobs.prompts.rows import Rows, named


def columns_of(rows: Rows) -> list[str]:
    """Return the names of the columns in their first order."""
    return list(dict.fromkeys(column for row in rows.values() for column in row))


def check_column(where: str, rows: Rows, column: str, hint: str = "") -> None:
    """Raise PromptError if a row lacks the column; `where` names the field of the spec."""
    columns = columns_of(rows)
    if column not in columns:
        raise PromptError(f"{where}: no column {column!r}; allowed: {named(columns)}{hint}")
    lacking = [place for place, row in rows.items() if column not in row]
    if lacking:
        raise PromptError(
            f"{where}: {len(lacking)} of {len(rows)} rows have no {column!r}, the first is {lacking[0]}; "
            "every row needs it"
        )


def keep_where(name: str, rows: Rows, where: dict[str, Any]) -> Rows:
    """Return the rows of the set `name` that have all values; raises PromptError for a column that a row lacks."""
    for column in where:
        check_column(f"prompts.{name}.where", rows, column)
        _check_scalars(f"prompts.{name}.where", rows, column)
    return {
        place: row for place, row in rows.items() if all(_same(row[column], value) for column, value in where.items())
    }


def rows_found(rows: Rows, where: dict[str, Any]) -> str:
    """Return how many rows have the requested value of each column; no values, since messages end up in logs."""
    counts = {column: sum(_same(row[column], value) for row in rows.values()) for column, value in where.items()}
    distinct = {column: len({_as_text(row[column]) for row in rows.values()}) for column in where}
    texts = [
        f"{column}: {n} rows have it, and the column has {distinct[column]} values" for column, n in counts.items()
    ]
    return "; ".join([*texts, "no row has all of them"] if len(texts) > 1 else texts)


def _check_scalars(where: str, rows: Rows, column: str) -> None:
    for place, row in rows.items():
        if isinstance(row[column], list | dict):
            raise PromptError(
                f"{where}: the column {column!r} has a {type(row[column]).__name__} in {place}; only texts, numbers, "
                "booleans and null can be compared"
            )


def _same(cell: Any, value: Any) -> bool:
    """Return whether a cell equals a value, compared also as text (csv has only text); missing equals empty."""
    return bool(cell == value) or _as_text(cell) == _as_text(value)


def _as_text(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "" if value is None else str(value)
