"""Flat Parquet tables in a store, written and read with fastparquet."""

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import fastparquet
import pandas as pd

from theodolite.errors import RunDamagedError
from theodolite.store.objects import Location, get, put


def write_table(location: Location, key: str, frame: pd.DataFrame) -> None:
    """Write a table whole."""
    put(location, key, encode_table(frame))


def encode_table(frame: pd.DataFrame) -> bytes:
    """Return a table as Parquet: fastparquet writes files, so it goes through a temporary one."""
    with tempfile.TemporaryDirectory() as folder:
        append_table(Path(folder) / "table.parquet", frame)
        return (Path(folder) / "table.parquet").read_bytes()


def append_table(path: Path, frame: pd.DataFrame) -> None:
    """Write a table to a local file, or add its rows, as one more group of rows, to those that are there."""
    fastparquet.write(str(path), frame, compression="ZSTD", write_index=False, append=path.exists())


def table_key(name: str) -> str:
    """Return where a table of results lies in a run."""
    return f"tables/{name}.parquet"


def read_table(location: Location, key: str) -> pd.DataFrame:
    """Read a table; raises RunDamagedError where it is missing or broken."""
    content = get(location, key)
    if content is None:
        raise RunDamagedError(f"the table {key} is missing")
    return decode_table(content, key)


def decode_table(content: bytes, name: str, filters: Sequence[tuple[str, str, Any]] = ()) -> pd.DataFrame:
    """Return a table, or its rows that pass all of `filters`, (column, operator, value).

    Groups of rows that hold none of them are not decoded. Raises RunDamagedError where it cannot be read.
    """
    with _opened(content, name) as file:
        frame: pd.DataFrame = file.to_pandas(filters=[list(filters)] if filters else [], row_filter=bool(filters))
        return frame


def decode_rows(content: bytes, name: str, start: int, stop: int) -> tuple[pd.DataFrame, int]:
    """Return rows `start` to `stop` of a table and how many it has; only the groups of rows they are in are decoded.

    Raises RunDamagedError where it cannot be read.
    """
    with _opened(content, name) as file:
        frames, first = [], 0
        for index, group in enumerate(file.row_groups):
            if first < stop and first + group.num_rows > start:
                frames.append(file[index].to_pandas().iloc[max(0, start - first) : stop - first])
            first += group.num_rows
        return pd.concat(frames, ignore_index=True) if frames else file[:0].to_pandas(), first


@contextmanager
def _opened(content: bytes, name: str) -> Iterator[Any]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        path.write_bytes(content)
        try:
            yield fastparquet.ParquetFile(str(path))
        # A truncated or overwritten file makes fastparquet raise whatever its decoder stumbles over.
        except Exception as error:
            raise RunDamagedError(f"the table {name} cannot be read: {error}") from error
