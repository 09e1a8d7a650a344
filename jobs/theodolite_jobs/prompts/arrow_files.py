"""Read Parquet files, and folders that `save_to_disk` of the package datasets writes, into rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from theodolite_jobs.prompts.rows import Row, Rows, named, numbered, refuse_twice


def read_parquet(path: Path) -> Rows:
    """Return the rows of a Parquet file; lists and structs in cells are lists and dicts. Raises ValueError."""
    import pyarrow.parquet

    # Not fastparquet, which reads Theodolite's own tables after their checksum: a damaged file can crash its process.
    with path.open("rb") as file:
        table = _undamaged("it is no Parquet file, or it is", lambda: pyarrow.parquet.ParquetFile(file).read())
    return _rows_of(table, "it is")


def read_saved(folder: Path, split: str) -> Rows:
    """Return the rows of a folder with a `Dataset`, or with a `DatasetDict` that has the split; raises ValueError."""
    from datasets import DatasetDict, load_from_disk

    if not any((folder / name).is_file() for name in ("state.json", "dataset_dict.json")):
        raise ValueError(
            "it is a folder without state.json and dataset_dict.json, which save_to_disk of the package datasets "
            "writes; name a file, or a folder of save_to_disk"
        )
    damaged = "a file of the folder is"
    dataset = _undamaged(damaged, lambda: load_from_disk(str(folder)))
    if isinstance(dataset, DatasetDict):
        if split not in dataset:
            raise ValueError(f"it has no split {split!r}; set split to one of these: {named(dataset) or 'none'}")
        dataset = dataset[split]
    elif split not in ("train", str(dataset.split)):
        raise ValueError(f"it is one dataset without splits, but split is {split!r}; remove split from the spec")
    # As stored: Python objects would decode images, and the folder may request NumPy arrays or a part of the columns.
    return _rows_of(_undamaged(damaged, lambda: dataset.with_format("arrow")[:]), damaged)


def decoded(schema: Any, rows: Iterable[Row]) -> Iterator[Row]:
    """Yield rows as they were before the package datasets stored values of different types as texts of JSON."""
    decoders = {field.name: _decoder(field.type) for field in schema}
    for row in rows:
        yield {name: decoders[name](value) if name in decoders else value for name, value in row.items()}


def _decoder(kind: Any) -> Callable[[Any], Any]:
    """Return what changes a value of a type of Arrow, or its parts, back from JSON."""
    import pyarrow

    if isinstance(kind, pyarrow.JsonType):
        return _from_json
    if pyarrow.types.is_struct(kind):
        parts = {field.name: _decoder(field.type) for field in kind}
        return lambda value: value and {name: parts[name](one) for name, one in value.items()}
    if pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind) or pyarrow.types.is_fixed_size_list(kind):
        inner = _decoder(kind.value_type)
        return lambda value: value and [inner(one) for one in value]
    return lambda value: value


def _from_json(value: str | None) -> Any:
    """Return what a text of JSON spells, or the text if it spells nothing."""
    with suppress(ValueError, RecursionError, TypeError):
        return json.loads(value)  # type: ignore[arg-type]  # None is missing
    return value


def without_nan(row: Row) -> Row:
    """Return a row with None instead of NaN, which pandas writes for a missing value."""
    return {name: None if isinstance(value, float) and value != value else value for name, value in row.items()}


def _rows_of(table: Any, damaged: str) -> Rows:
    refuse_twice("the file", table.column_names)
    # The index that pandas wrote without a name is no column.
    columns = [name for name in table.column_names if not re.fullmatch(r"__index_level_\d+__", name)]
    _undamaged(damaged, lambda: table.validate(full=True))  # offsets of a damaged file could crash the process
    table = table.select(columns)
    return numbered(map(without_nan, _undamaged(damaged, lambda: list(decoded(table.schema, table.to_pylist())))))


def _undamaged(subject: str, read: Callable[[], Any]) -> Any:
    """Return what `read` returns; damage causes many exception types, whose messages name no file and no remedy."""
    try:
        return read()
    except (NotImplementedError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(f"{subject} damaged or incomplete; write it again") from error
