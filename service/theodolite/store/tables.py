"""Flat Parquet tables in a store, written and read with fastparquet."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastparquet
import pandas as pd
from pandas.api.types import union_categoricals

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


def decode_rows(content: bytes, name: str, start: int, stop: int) -> tuple[pd.DataFrame, int]:
    """Return rows `start` to `stop` of a table, and its total number of rows.

    Only the row groups that contain these rows are decoded. Raises RunDamagedError if the table cannot be read.
    """
    with _opened(content, name) as file:
        frames, first = [], 0
        for index, group in enumerate(file.row_groups):
            if first < stop and first + group.num_rows > start:
                frames.append(file[index].to_pandas().iloc[max(0, start - first) : stop - first])
            first += group.num_rows
        return pd.concat(frames, ignore_index=True) if frames else file[:0].to_pandas(), first


def matching_groups(content: bytes, name: str, filters: Sequence[tuple[str, str, Any]] = ()) -> Iterator[pd.DataFrame]:
    """Yield the rows of each row group that can pass all of `filters`; raises as `decode_table` does."""
    with _opened(content, name) as file:
        yield from file.iter_row_groups(filters=[list(filters)] if filters else [])


def compact(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with texts as categories and integers in their smallest type: a tenth of the memory."""
    columns = {}
    for name, column in frame.items():
        if column.dtype.kind == "O":
            columns[name] = column.astype("category")
        else:
            columns[name] = pd.to_numeric(column, downcast="integer") if column.dtype.kind in "iu" else column
    return pd.DataFrame(columns)


def joined(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return the rows of several compact tables as one compact table."""
    columns: dict[Any, Any] = {}
    for name in frames[0].columns:
        parts = [frame[name] for frame in frames]
        if isinstance(parts[0].dtype, pd.CategoricalDtype):  # the categories of a column without texts have other types
            columns[name] = union_categoricals([part.cat.set_categories(_objects(part)) for part in parts])
        else:
            columns[name] = pd.concat(parts, ignore_index=True)
    return pd.DataFrame(columns)


def _objects(texts: "pd.Series[Any]") -> "pd.Index[Any]":
    return texts.cat.categories.astype(object)


def plain(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a table with texts instead of categories."""
    categories = {name: kind for name, kind in frame.dtypes.items() if isinstance(kind, pd.CategoricalDtype)}
    return frame.astype({name: kind.categories.dtype for name, kind in categories.items()})


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        path.write_bytes(content)
        try:
            yield fastparquet.ParquetFile(str(path))
        # For a truncated or overwritten file, fastparquet raises exceptions of many types.
        except Exception as error:
            raise RunDamagedError(f"the table {name} cannot be read: {error}") from error
