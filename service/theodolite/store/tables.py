"""Flat Parquet tables in a store, written and read with fastparquet."""

import io
import tempfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastparquet
import numpy as np
import pandas as pd

from theodolite.errors import RunDamagedError


def encode_table(frame: pd.DataFrame, row_groups: Sequence[int] = ()) -> bytes:
    """Return a table as Parquet bytes; fastparquet writes only files, so the function uses a temporary one.

    Args:
        frame: the table.
        row_groups: index of the first row of each row group; a reader that filters by numbers decodes only row groups
            that can match.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        append_table(path, frame, row_groups)
        return path.read_bytes()


def encode_tables(frames: Iterable[pd.DataFrame]) -> bytes:
    """Return tables with the same columns as the Parquet bytes of one table; each becomes a row group."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        for frame in frames:
            append_table(path, frame)
        return path.read_bytes()


def append_table(path: Path, frame: pd.DataFrame, row_groups: Sequence[int] = ()) -> None:
    """Write a table to a local file; if the file exists, append its rows as another row group."""
    options = {"row_group_offsets": list(row_groups)} if row_groups else {}
    fastparquet.write(str(path), frame, compression="ZSTD", write_index=False, append=path.exists(), **options)


def table_key(name: str) -> str:
    """Return the key of a table of results in the run."""
    return f"tables/{name}.parquet"


def decode_table(content: bytes, name: str, filters: Sequence[tuple[str, str, Any]] = ()) -> pd.DataFrame:
    """Return a table, or its rows that pass all of `filters`, (column, operator, value).

    Row groups without a matching row are not decoded. Raises RunDamagedError if the table cannot be read.
    """
    with _opened(content, name) as file:
        frame: pd.DataFrame = file.to_pandas(filters=[list(filters)] if filters else [], row_filter=bool(filters))
        return frame


def decode_types(content: bytes, name: str) -> tuple[dict[str, Any], int]:
    """Return the type of each column of a table, with `str` for texts, and the table's number of rows.

    Raises RunDamagedError if the table cannot be read.
    """
    with _opened(content, name) as file:
        return _types(file), int(file.count())


def decode_rows(content: bytes, name: str, start: int, stop: int) -> tuple[pd.DataFrame, int]:
    """Return rows `start` to `stop` of a table with the types of `decode_types`, and its total number of rows.

    Only the row groups that contain these rows are decoded. Raises RunDamagedError if the table cannot be read.
    """
    with _opened(content, name) as file:
        frames, first, types = [], 0, _types(file)
        for index, group in enumerate(file.row_groups):
            if first < stop and first + group.num_rows > start:
                frames.append(file[index].to_pandas().iloc[max(0, start - first) : stop - first].astype(types))
            first += group.num_rows
        return pd.concat(frames, ignore_index=True) if frames else _empty(types), first


def decode_compact(
    content: bytes,
    name: str,
    columns: Sequence[str] = (),
    passes: Callable[[pd.DataFrame], np.ndarray] | None = None,
) -> pd.DataFrame:
    """Return the rows that pass a test, with texts as categories and integers in their smallest type.

    These types take about a tenth of the memory. The function decodes one row group at a time.

    Args:
        content: the table as Parquet.
        name: name of the table in errors.
        columns: columns that the test uses.
        passes: the test; it gets these columns of a row group, and returns whether each row passes. If no row passes,
            the other columns of the row group are not decoded. None selects all rows.

    Raises:
        RunDamagedError: the table cannot be read.
    """
    with _opened(content, name) as file:
        types = _types(file)
        parts: dict[str, list[pd.Series[Any]]] = {key: [] for key in types}
        # All row groups share the codes of texts: categories of each row group would take more memory than the codes.
        texts: dict[str, dict[str, int]] = {key: {} for key, kind in types.items() if kind == "str"}
        for index in range(len(file.row_groups)):
            passing = None if passes is None else passes(file[index].to_pandas(columns=list(columns)))
            if passing is None or passing.any():
                rows = file[index].to_pandas()
                for key, column in (rows if passing is None else rows[passing]).items():
                    parts[key].append(_smallest(_codes(column, texts[key]) if key in texts else column))
        if not all(parts.values()):
            return _empty(types)
        joined = {key: pd.concat(parts.pop(key), ignore_index=True) for key in types}
        for key, codes in texts.items():
            joined[key] = pd.Series(pd.Categorical.from_codes(joined[key], pd.Index(list(codes), dtype="str")))
        return pd.DataFrame(joined)


def _types(file: Any) -> dict[str, Any]:
    return {name: "str" if kind == "category" or kind.kind == "O" else kind for name, kind in file.dtypes.items()}


def _empty(types: dict[str, Any]) -> pd.DataFrame:
    return pd.DataFrame({name: pd.Series(dtype=kind) for name, kind in types.items()})


def _codes(column: "pd.Series[Any]", known: dict[str, int]) -> "pd.Series[Any]":
    """Return the code of each text, −1 for a missing one; new texts get the next codes."""
    indices, values = pd.factorize(column)
    codes = [known.setdefault(text, len(known)) for text in values]
    return pd.Series(np.array([*codes, -1])[indices])


def _smallest(column: "pd.Series[Any]") -> "pd.Series[Any]":
    """Return a copy with the smallest type of integers: a view would keep the other columns of its row group."""
    return (pd.to_numeric(column, downcast="integer") if column.dtype.kind in "iu" else column).copy()


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[Any]:
    try:
        # fastparquet opens a file for each read, and does not close all of them.
        yield fastparquet.ParquetFile("table.parquet", open_with=lambda *_arguments, **_options: io.BytesIO(content))
    # For a truncated or overwritten file, fastparquet raises exceptions of many types.
    except Exception as error:
        raise RunDamagedError(f"the table {name} cannot be read: {error}") from error
