"""Read Parquet files, and folders that `save_to_disk` of the package datasets writes, into rows."""

import json
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from theodolite_jobs.prompts.rows import MOST_DECODED_BYTES, MOST_DECODED_ROWS, Row, Rows, named, numbered, refuse_twice

_MOST_TIMES_LARGER = 16
"""How many times its own size a large Parquet file may decode to; text has a fifth of its size in a usual one."""

_ALWAYS_ALLOWED_BYTES, _MOST_TIMES_LARGER_IF_SMALL = 2**26, 1000
"""What a small file may decode to. One cell can fill the memory, so the size that a file states is compared first."""

_BYTES_OF_A_CELL = 32
"""The smallest size of a cell as Python's object: a hundred million equal cells take a few bytes in a file."""

_PLAUSIBLE_COMPRESSION, _CHECKED_ROWS = 32, 16


def read_parquet(path: Path) -> Rows:
    """Return the rows of a Parquet file; lists and structs in cells are lists and dicts. Raises ValueError."""
    import pyarrow.parquet

    # Not fastparquet, which reads Theodolite's own tables after their checksum: a damaged file can crash its process.
    damaged = "it is no Parquet file, or it is"
    with path.open("rb") as opened:
        file = _undamaged(damaged, lambda: pyarrow.parquet.ParquetFile(opened))
        n_bytes = path.stat().st_size
        small = min(MOST_DECODED_BYTES, max(_ALWAYS_ALLOWED_BYTES, _MOST_TIMES_LARGER_IF_SMALL * n_bytes))
        allowed, n_rows = max(small, _MOST_TIMES_LARGER * n_bytes), file.metadata.num_rows
        if n_rows > max(MOST_DECODED_ROWS, n_bytes):
            raise ValueError(f"it has {n_rows:,} rows in {n_bytes:,} bytes, which no prompts have; write it as .jsonl")
        if _undamaged(damaged, lambda: _decodes_to_more(file, n_bytes, allowed)):
            raise ValueError(
                f"it decodes to more than {allowed:,} bytes, the largest size of a Parquet file of this size; remove "
                "columns, or write it as .jsonl"
            )
        table = _undamaged(damaged, file.read)
    return _rows_of(table, "it is")


def _decodes_to_more(file: Any, n_bytes: int, allowed: int) -> bool:
    """Return whether the cells of a Parquet file of `n_bytes` take more than `allowed` bytes; keep none of them.

    The file states the numbers of its cells and of its stored bytes. A cell that is stored once for thousands of rows
    counts as one there, so a few rows at a time are decoded and counted.
    """
    groups = [file.metadata.row_group(index) for index in range(file.metadata.num_row_groups)]
    chunks = [group.column(index) for group in groups for index in range(group.num_columns)]
    stored = sum(chunk.total_uncompressed_size for chunk in chunks)
    if max(stored, _BYTES_OF_A_CELL * sum(chunk.num_values for chunk in chunks)) > allowed:
        return True
    n_rows = _CHECKED_ROWS if stored <= _PLAUSIBLE_COMPRESSION * n_bytes else 1  # a cell can be as large as a column
    decoded = 0
    for batch in file.iter_batches(batch_size=n_rows):
        decoded += sum(map(_bytes_of, batch.columns))
        if decoded > allowed:
            return True
    return False


def _bytes_of(array: Any) -> int:
    """Return the bytes of an array's values; an array of Arrow's type dictionary stores equal ones once."""
    import pyarrow

    if pyarrow.types.is_dictionary(array.type):
        return _bytes_of(array.dictionary_decode())
    if pyarrow.types.is_map(array.type):
        return _bytes_of(array.keys) + _bytes_of(array.items)
    if pyarrow.types.is_nested(array.type):
        parts = array.flatten()
        return sum(map(_bytes_of, parts)) if isinstance(parts, list) else _bytes_of(parts)
    return int(array.nbytes)


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
