"""Flat Parquet tables in a store, written and read with fastparquet."""

import tempfile
from collections.abc import Sequence
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


def read_table(location: Location, key: str, filters: Sequence[tuple[str, str, Any]] = ()) -> pd.DataFrame:
    """Read a table, or its rows that pass all of `filters`, (column, operator, value).

    Groups of rows that hold none of them are not decoded. Raises RunDamagedError where the table is missing or broken.
    """
    content = get(location, key)
    if content is None:
        raise RunDamagedError(f"the table {key} is missing")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "table.parquet"
        path.write_bytes(content)
        try:
            file = fastparquet.ParquetFile(str(path))
            frame: pd.DataFrame = file.to_pandas(filters=[list(filters)] if filters else [], row_filter=bool(filters))
        # A truncated or overwritten file makes fastparquet raise whatever its decoder stumbles over.
        except Exception as error:
            raise RunDamagedError(f"the table {key} cannot be read: {error}") from error
        return frame
